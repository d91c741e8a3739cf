"""`sweep`: rates, rules, optimisers, layers and steps on one text; its first part trains, the rest is scored."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from tintformer.errors import InputError
from tintformer.learning.rule_making import AUTO, preset_rule, sort_knobs
from tintformer.learning.split import Split
from tintformer.rule.learning_rule import LearningRule, rule_text
from tintformer.storage.whole_files import check_directory
from tintformer.typed_fields import Range, checked, shown
from tintlab.kinds.sweep_result import SweepResult, SweepRow
from tintlab.kinds.text_sweep import TextSweep
from tintlab.study.runner import Jobs, ProcessGroup, Runner, UnitProgress
from tintlab.study.store import RecordStore

if TYPE_CHECKING:
    import torch

    from tintformer.auxiliary.description import Auxiliary

RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
"""Tried unless others are given: with a summed loss the best rates of the models known lie among them."""
RECORDS = "records"
Rules = str | LearningRule | Sequence[str | LearningRule] | Mapping[str, str | LearningRule]
"""Presets and rules, by the names that tables give them if they have any."""
OWN = ("learning_rate", "layers", "steps")
"""Knobs with a column of their own."""


def sweep(
    model: Any,
    text: str | os.PathLike[str],
    *,
    learning_rate: float | Sequence[float] | None = None,
    rule: Rules = "default",
    layers: int | Sequence[int | None] | None = None,
    steps: int | Sequence[int] | None = None,
    optimizer: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    train_fraction: float | None = None,
    train_tokens: int | None = None,
    engine: str = "fast",
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    tokens: int | None = None,
    beyond_context: bool = False,
    output: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    progress: UnitProgress = lambda _: None,
    **knobs: Any,
) -> SweepResult:
    """Learn from the first part of a text by every combination of rates, rules, optimisers, layers and steps; score
    the rest.

    The rate that is best here is best on the tokens that are scored here: of a rate chosen so, expect a little less
    elsewhere.

    Args:
        model: As in `learn`.
        text: As in `learn`.
        learning_rate: One rate or several; without any, six from 1e-5 to 3e-3 are tried.
        rule: "default", "paper", "full", a `LearningRule`, several of them, or a dict of them by name.
        layers: How many of the top blocks learn, one number or several; None among several is all of them.
        steps: Gradient steps, one number or several.
        optimizer: "sgd", "adam", "muon", one or several; without it each rule's own.
        tokenizer: As in `learn`.
        train_fraction: As in `learn`.
        train_tokens: As in `learn`.
        engine: As in `learn`.
        device: As in `learn`.
        dtype: As in `learn`.
        tokens: As in `learn`.
        beyond_context: As in `learn`.
        output: A directory in which what is done is kept as records: the same sweep goes on where it was stopped.
        jobs: Processes, with `output`.
        progress: Called with how many units have been finished since it was last called; there is one for each
            combination, and one for the model as it is.
        **knobs: Other fields of every rule, by name.
    """
    import torch

    from tintformer.learning.engine_registry import check_options
    from tintformer.learning.text import given_text
    from tintformer.learning.text_model import encode_for_split, open_text_model

    checked("jobs", jobs, Jobs, InputError)
    rules = make_rules(learning_rate, rule, layers, steps, knobs, optimizer)
    split, content = Split(train_fraction=train_fraction, train_tokens=train_tokens), given_text(text)
    if jobs > 1 and (device is not None or not isinstance(model, str | os.PathLike)):
        raise InputError("other processes load the model by its name; give one without a device, or jobs=1")
    check_options(engine, {})
    checked("tokens", tokens, Annotated[int | None, Range(at_least=1)], InputError)
    if output is not None:
        check_directory(Path(output) / RECORDS)
    auxiliary = open_text_model(model, tokenizer, device, dtype)
    encoded, num_train = encode_for_split(auxiliary, content, split, tokens=tokens, beyond_context=beyond_context)
    threads = max(1, torch.get_num_threads() // jobs)
    experiment = text_sweep(auxiliary, model, encoded.input_ids, num_train, engine=engine, threads=threads)
    return run_sweep(experiment, rules, auxiliary, output=output, jobs=jobs, progress=progress)


def make_rules(
    learning_rate: float | Sequence[float] | None,
    rule: Rules,
    layers: int | Sequence[int | None] | None,
    steps: int | Sequence[int] | None,
    knobs: Mapping[str, Any],
    optimizer: str | Sequence[str] | None = None,
) -> list[tuple[str, LearningRule]]:
    """Every combination, with the name of its rule; all of them are checked before anything is computed."""
    of_rule, options = sort_knobs("fast", knobs)
    if options:
        raise InputError(f"{next(iter(options))} is a knob of an engine, which a sweep leaves as it is; leave it out")
    rates = list(RATES) if learning_rate is None else several("learning_rate", learning_rate)
    if AUTO in rates:
        raise InputError("a sweep tries the rates that it is given; give numbers, or have tint.learn find one")
    named = list(rule.items()) if isinstance(rule, Mapping) else [(_name(each), each) for each in several("rule", rule)]
    if not named:
        raise InputError("there are no rules; give one at least")
    optimizers: list[dict[str, Any]] = [{}]
    if optimizer is not None:
        optimizers = [{"optimizer": each} for each in several("optimizer", optimizer)]
    if {"optimizer": "rms"} in (*optimizers, {"optimizer": of_rule.get("optimizer")}):
        raise InputError(
            "a sweep tries sgd, adam and muon: rms divides by statistics of a text, which a sweep has not; see "
            "tint.learn(..., optimizer='rms', statistics=...)"
        )
    own: dict[str, list[Any]] = {"learning_rate": rates}
    own |= {"layers": several("layers", layers)} if layers is not None else {}
    own |= {"steps": several("steps", steps)} if steps is not None else {}
    combined = [
        (", ".join([name, *by.values()]), preset_rule(each, {**of_rule, **by, **dict(zip(own, values, strict=True))}))
        for name, each in named
        for by in optimizers
        for values in product(*own.values())
    ]
    # Rules that differ in what the sweep sets alone are one rule here; a name says too little to tell.
    return list(dict.fromkeys(combined))


def several(name: str, given: Any) -> list[Any]:
    """One value or several, in a list, a tuple or an array; each once."""
    if getattr(given, "ndim", 0):
        given = given.tolist()
    values: list[Any] = [*given] if isinstance(given, list | tuple | range) else [given]
    if not values:
        raise InputError(f"{name}={shown(given)} is empty; give one value at least")
    return [value for at, value in enumerate(values) if value not in values[:at]]


def _name(rule: str | LearningRule) -> str:
    return rule_text(rule, leave_out=OWN) if isinstance(rule, LearningRule) else str(rule)


def text_sweep(
    auxiliary: Auxiliary, model: Any, input_ids: tuple[int, ...], train_tokens: int, *, engine: str, threads: int
) -> TextSweep:
    """The experiment; a model that is opened here is not opened again."""
    from tintlab.data.models import OpenModel, model_identity

    tokenizer = auxiliary.tokenizer
    identity = model_identity(auxiliary.model, tokenizer)
    return TextSweep(
        input_ids=input_ids,
        train_tokens=train_tokens,
        model=os.fspath(model) if isinstance(model, str | os.PathLike) else auxiliary.name,
        dtype=str(auxiliary.dtype).removeprefix("torch."),
        engine=engine,
        threads=threads,
        opened=OpenModel(auxiliary=auxiliary, tokenizer=tokenizer, identity=identity),
    )


def run_sweep(
    experiment: TextSweep,
    rules: Sequence[tuple[str, LearningRule]],
    auxiliary: Auxiliary,
    *,
    output: str | os.PathLike[str] | None,
    jobs: int = 1,
    progress: UnitProgress = lambda _: None,
    group: ProcessGroup | None = None,
) -> SweepResult:
    """Do what is left of a sweep, the model as it is first; without an output nothing is kept."""
    for _, rule in rules:
        rule.num_trained(len(auxiliary.blocks))
    units = [None, *(rule for _, rule in rules)]
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory()) if output is None else output)
        runner = stack.enter_context(Runner(RecordStore(place / RECORDS), jobs=jobs, progress=progress, group=group))
        before, *after = runner.complete(experiment, units)
    return SweepResult(
        model=auxiliary.name,
        train_tokens=experiment.train_tokens,
        token_loss_before=tuple(before["token_loss"]),
        rows=tuple(
            _row(name, rule, found["token_loss"], before["token_loss"])
            for (name, rule), found in zip(rules, after, strict=True)
        ),
    )


def _row(name: str, rule: LearningRule, losses: list[float] | None, before: list[float]) -> SweepRow:
    from tintlab.show.intervals import standard_error

    changes = [now - was for now, was in zip(losses or [], before, strict=losses is not None)]
    return SweepRow(
        rule=name,
        learning_rate=rule.rate,
        layers=rule.layers,
        steps=rule.steps,
        loss=math.inf if losses is None else math.fsum(losses) / len(losses),
        change=math.inf if losses is None else math.fsum(changes) / len(changes),
        standard_error=standard_error(changes) if len(changes) > 1 else None,
    )
