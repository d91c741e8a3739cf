"""`compare`: how much of what reading demonstrations does to a model is what learning from them does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tintformer.errors import InputError
from tintformer.study.frames import as_frame
from tintformer.typed_fields import checked
from tintlab.kinds.compare_results import comparison_tables, findings, task_name
from tintlab.kinds.comparison import ComparedCase, Comparison
from tintlab.kinds.sweep import several
from tintlab.show.tables import ResultTable
from tintlab.study.runner import Jobs, Runner, UnitProgress
from tintlab.study.store import RecordStore
from tintlab.study.tuning import run_experiment

QUICK: dict[str, Any] = {
    "shots": (2, 8),
    "seeds": (0, 1),
    "tests": 16,
    "tuning": 8,
    "orders": 2,
    "rates": (1e-4, 1e-3, 1e-2),
}
"""What `quick` takes in place of what is not given: a first table of a small model in about a minute."""


@dataclass(frozen=True, eq=False, kw_only=True)
class CompareResult:
    """What `compare` found, task by task."""

    experiments: tuple[Comparison, ...]
    """One a task, with all settings."""
    cases: tuple[tuple[ComparedCase, ...], ...]
    """For each of them the model and its controls, with every number of demonstrations."""

    def tables(self) -> list[ResultTable]:
        """All measures with the most demonstrations, with every number of them, and block by block."""
        return comparison_tables(list(zip(self.experiments, self.cases, strict=True)))

    def findings(self) -> list[str]:
        """How much of what reading does is what learning does, in sentences."""
        return findings(list(zip(self.experiments, self.cases, strict=True)))

    def records(self) -> list[dict[str, Any]]:
        """One row a measure: its value and its interval, with what it is a measure of."""
        return [
            {
                "task": task_name(experiment),
                "method": case.method,
                "case": case.case,
                "shots": case.shots,
                "measure": name,
                "block": block,
                **asdict(estimate),
            }
            for experiment, cases in zip(self.experiments, self.cases, strict=True)
            for case in cases
            for name, block, estimate in case.estimates()
        ]

    def frame(self) -> Any:
        """The records as a pandas DataFrame where pandas is installed, otherwise a list of dicts."""
        return as_frame(self.records())

    def __repr__(self) -> str:
        return "\n".join(self.findings())


def compare(
    model: str | os.PathLike[str],
    tasks: str | Sequence[str],
    *,
    data: str | os.PathLike[str] | None = None,
    shots: int | Sequence[int] | None = None,
    method: str | Sequence[str] = "tint",
    learning_rate: float | Sequence[float] | None = None,
    loss: str = "label",
    layers: int | None = None,
    steps: int = 1,
    seeds: Sequence[int] | None = None,
    tests: int | None = None,
    tuning: int | None = None,
    orders: int | None = None,
    controls: Sequence[str] = ("shuffled", "untrained"),
    variant: str | None = None,
    quick: bool = False,
    device: str | None = None,
    dtype: str = "float32",
    output: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    progress: UnitProgress = lambda _: None,
) -> CompareResult:
    """Read demonstrations in the context, learn from the same ones, and compare what both do to a model.

    Args:
        model: A name or a directory, as `tint eval icl` takes it.
        tasks: One task or several: names of shipped descriptions, or YAML files.
        data: Examples to read instead of the described ones; of several tasks, `data/TASK` each.
        shots: Numbers of demonstrations, two at least; as many are taken as fit into the context. By default 2, 4, 8.
        method: How it learns: "tint", "fine-tuning", or another of `tint eval list` that learns; one or several.
        learning_rate: One rate or several to choose from; without any, a grid finds its own range.
        loss: Learn the "label" words of demonstrations, or all of their tokens ("full").
        layers: How many of the top blocks learn; None: all.
        steps: Gradient steps.
        seeds: Each draws its own demonstrations and its own untrained model; by default 0, 1, 2.
        tests: Test inputs of each task, as many of each label; by default 100.
        tuning: Examples of the train pool for each seed that choose the rate; by default 40.
        orders: Orders of the demonstrations that are tried; by default 3.
        controls: "shuffled" labels and an "untrained" model of the same shape, both, one or none.
        variant: Another prompt of the description.
        quick: Take less of everything that is not given: a first table in about a minute with a small model.
        device: Where it computes.
        dtype: The floating-point type of the weights.
        output: A directory in which what is done is kept as records: the same comparison goes on where it was stopped.
        jobs: Processes.
        progress: Called with how many units have been finished since it was last called.
    """
    import torch

    checked("jobs", jobs, Jobs, InputError)
    if not isinstance(model, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError("a comparison loads the model by its name, and an untrained one like it; give the name")
    experiments = comparisons(
        os.fspath(model),
        tuple(several("tasks", tasks)),
        None if data is None else Path(data),
        quick=quick,
        given={
            "shots": None if shots is None else tuple(several("shots", shots)),
            "rates": None if learning_rate is None else tuple(several("learning_rate", learning_rate)),
            "seeds": None if seeds is None else tuple(several("seeds", seeds)),
            "tests": tests,
            "tuning": tuning,
            "orders": orders,
        },
        methods=tuple(several("method", method)),
        loss=loss,
        layers=layers,
        steps=steps,
        controls=tuple(controls),
        variant=variant,
        device=device,
        dtype=dtype,
        threads=max(1, torch.get_num_threads() // jobs),
    )
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory()) if output is None else output)
        runner = stack.enter_context(Runner(RecordStore(place / "records"), jobs=jobs, progress=progress))
        cases = tuple(tuple(run_experiment(experiment, runner)) for experiment in experiments)
    return CompareResult(experiments=experiments, cases=cases)


def comparisons(
    model: str, tasks: Sequence[str], data: Path | None, *, quick: bool, given: dict[str, Any], **fields: Any
) -> tuple[Comparison, ...]:
    """One comparison a task; what is not given is the default, or that of `quick`."""
    if not tasks:
        raise InputError("there is no task; give a name from `tint eval list` or a YAML file")
    chosen = (QUICK if quick else {}) | {name: value for name, value in given.items() if value is not None}
    return tuple(
        Comparison(
            model=model,
            task=task,
            location=data if data is None or len(tasks) == 1 else data / task,
            **chosen,
            **fields,
        )
        for task in tasks
    )
