"""Recipes: the paper's three tables as runs, on its models or on any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tintformer.experiments.classification import InContextLearning
from tintformer.experiments.language import LanguageModelling

TASKS = ("subj", "agnews", "sst2", "cr", "mr", "mpqa", "amazon")
"""In the order of the paper's columns."""
TEXT_MODELS = ("gpt2", "facebook/opt-125m")
TASK_MODELS = ("facebook/opt-125m",)
SIMILAR = ("facebook/opt-1.3b",)
"""Models as large as the simulator of those: what the paper compares with."""
SETTINGS = (("all", 1), ("half", 2), ("quarter", 4))
"""Blocks that learn and steps, of one budget."""
_SHARES = {"all": 1, "half": 2, "quarter": 4}


def share_of_blocks(model: str, share: str, dtype: str = "float32") -> int | None:
    """How many of a model's blocks "all" (None), "half" or "quarter" of them are, at least one."""
    from tintformer.experiments.models import open_model

    # The model itself is asked, which the experiment opens anyway: some files have no configuration beside them.
    return None if share == "all" else max(1, len(open_model(model, dtype).auxiliary.blocks) // _SHARES[share])


def compared(experiment: Any, models: Sequence[str]) -> list[Any]:
    """The same experiment on other models as they are."""
    return [replace(experiment, model=model, methods=("auxiliary",), layers=None, steps=1) for model in models]


def table_lm(base: LanguageModelling, models: Sequence[str]) -> list[LanguageModelling]:
    """Perplexity by share of every model."""
    return [replace(base, model=model) for model in models]


def table_icl(base: InContextLearning, models: Sequence[str], others: Sequence[str]) -> list[InContextLearning]:
    """Without demonstrations and with 32 of them: as they are, in the context, and learnt from."""
    zero = replace(base, shots=0, loss="full")
    shown = replace(base, shots=32, mode="multi", loss="label", methods=("auxiliary",))
    learnt = replace(base, shots=32, mode="single", loss="label")
    found: list[InContextLearning] = []
    for model in models:
        found += [*_settings(zero, model), replace(shown, model=model), *_settings(learnt, model)]
    return found + [each for way in (zero, shown) for each in compared(way, others)]


def table_settings(base: InContextLearning, models: Sequence[str]) -> list[InContextLearning]:
    """32 demonstrations by loss, format, layers and steps."""
    return [
        each
        for model in models
        for loss in ("label", "full")
        for mode in ("single", "multi")
        for each in _settings(replace(base, shots=32, mode=mode, loss=loss), model)
    ]


def _settings(base: InContextLearning, model: str) -> list[InContextLearning]:
    return [
        replace(base, model=model, layers=share_of_blocks(model, share, base.dtype), steps=steps)
        for share, steps in SETTINGS
    ]
