"""The benchmark itself: every case of every model, one list of records a case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tintformer.benchmarks.cases import CASES
from tintformer.benchmarks.contestant import Contestant, Ground
from tintformer.benchmarks.contestants import participants, prepare
from tintformer.benchmarks.memory import Peak, measure_peak
from tintformer.benchmarks.records import Measured, make_records
from tintformer.benchmarks.settings import Settings
from tintformer.benchmarks.shapes import check_models, make_model
from tintformer.benchmarks.timing import multiply_add_peak, take_turns, threads
from tintformer.errors import TintError
from tintformer.rule.learning_rule import LearningRule
from tintformer.storage.loading import load

Progress = Callable[[str, float], None]
"""Told what runs now, and how much of the whole is done."""


def measure(settings: Settings, progress: Progress = lambda text, share: None) -> Iterator[list[dict[str, Any]]]:
    """Records of one model and case after the other, as they are measured."""
    check_models(settings.models)
    pairs = _pairs(settings)
    with threads(settings.threads):
        ground: Ground | None = None
        for index, (model, case) in enumerate(pairs):
            if ground is None or model != pairs[index - 1][0]:
                progress(f"{model}: making the model", index / len(pairs))
                ground = None  # frees one model before the next is made
                ground = lay_ground(settings, model)
            yield _measure_case(settings, ground, model, case, _within(progress, index, len(pairs), f"{model}, {case}"))


def lay_ground(settings: Settings, model: str) -> Ground:
    """Make the model and all that its contestants share."""
    auxiliary = load(make_model(model, getattr(torch, settings.dtype), seed=settings.seed))
    rule = LearningRule(learning_rate=settings.learning_rate)
    return Ground(auxiliary=auxiliary, rule=rule, engine=settings.engine, seed=settings.seed)


def _pairs(settings: Settings) -> list[tuple[str, str]]:
    """Models and cases, grouped by model; a case that is meant for one model runs once, with it."""
    pairs = [(model, case) for model in settings.models for case in settings.cases if CASES[case].model is None]
    own = [(CASES[case].model, case) for case in settings.cases]
    return pairs + [(model, case) for model, case in own if model is not None]


def _measure_case(
    settings: Settings, ground: Ground, model: str, case: str, progress: Progress
) -> list[dict[str, Any]]:
    names = participants(CASES[case], settings)
    repetitions = min(settings.repetitions, CASES[case].max_repetitions or settings.repetitions)
    num_turns = len(names) * (1 + repetitions + settings.memory)
    turns = iter(range(num_turns))

    def on_turn(text: str) -> None:
        progress(text, next(turns) / num_turns)

    memory: dict[str, Peak] = {}
    if settings.memory:  # before anything is prepared here: two processes at their peak might not fit
        for name in names:
            on_turn(f"{name}: memory")
            memory[name] = measure_peak(settings, model, case, name)
    contestants: dict[str, Contestant] = {}
    losses: dict[str, Tensor | None] = {}
    skipped: dict[str, str] = {}
    for name in names:
        on_turn(f"{name}: warm-up")
        try:
            contestants[name] = prepare(name, ground, CASES[case])
            losses[name] = contestants[name].run()
        except TintError as error:  # one that cannot do this case must not end hours of measuring
            contestants.pop(name, None)
            skipped[name] = str(error)
    seconds = take_turns(contestants, repetitions, on_turn)
    measured = {
        name: Measured(contestants[name], seconds[name], losses[name], memory.get(name, Peak())) for name in contestants
    }
    return make_records(settings, model, case, measured, skipped, multiply_add_peak(ground.auxiliary.dtype))


def _within(progress: Progress, index: int, count: int, title: str) -> Progress:
    """Progress of one of `count` equal parts, as progress of the whole."""
    return lambda text, share: progress(f"{title}, {text}", (index + share) / count)
