"""`tint eval table-lm`, `table-icl` and `table-settings`: the paper's tables, on its models or on yours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tintformer.cli.evaluate.shared import (
    OUTPUT,
    Blocks,
    Compare,
    Engine,
    Jobs,
    Length,
    Methods,
    Output,
    Protocol,
    Rate,
    Seeds,
    Tests,
    Track,
    Tuning,
    TuningBlocks,
    carry_out,
    check_tasks,
    names,
    numbers,
    rates,
    started,
    threads_of,
)
from tintformer.cli.options import Json

if TYPE_CHECKING:
    from tintformer.experiments.classification import InContextLearning

Models = Annotated[str | None, typer.Option("--model", help="Models, with commas between them; default: the paper's.")]
Tasks = Annotated[
    str | None, typer.Option(help="Tasks to do; default: the paper's seven, or those of them that --data has.")
]
TaskData = Annotated[
    Path | None, typer.Option("--data", help="Directory with one directory of examples for each task.")
]
METHODS = "auxiliary,fine-tuning,tint"


def table_lm(
    model: Models = None,
    data: Annotated[Path | None, typer.Option("--data", help="WikiText-103's file, instead of the hub's.")] = None,
    output: Output = OUTPUT,
    methods: Methods = METHODS,
    compare: Compare = None,
    protocol: Protocol = "tuned",
    length: Length = 1024,
    blocks: Blocks = None,
    tuning: TuningBlocks = 8,
    learning_rate: Rate = "auto",
    engine: Engine = "fast",
    jobs: Jobs = 1,
    track: Track = None,
    json: Json = False,
) -> None:
    """The paper's table of perplexities: WikiText-103 with 30, 50, 70 and 90% of each block trained on."""
    from tintformer.experiments import recipes
    from tintformer.experiments.language import LanguageModelling
    from tintformer.experiments.protocols import by_protocol
    from tintformer.experiments.runs import Run

    with started(track):
        models = names(model) or recipes.TEXT_MODELS
        base = LanguageModelling(
            model=models[0],
            data="wikitext-103",
            location=data,
            methods=names(methods),
            length=length,
            blocks=blocks,
            tuning=tuning,
            rates=rates(learning_rate),
            engine=engine,
            threads=threads_of(jobs),
        )
        base = by_protocol(base, protocol)
        experiments = recipes.table_lm(base, models) + recipes.compared(base, names(compare))
        run = Run(name=_name("table-lm", model, protocol), kind="lm", experiments=tuple(experiments))
        carry_out(run, output, jobs=jobs, json=json, track=track)


def table_icl(
    model: Models = None,
    data: TaskData = None,
    output: Output = OUTPUT,
    tasks: Tasks = None,
    methods: Methods = METHODS,
    compare: Compare = None,
    protocol: Protocol = "tuned",
    seeds: Seeds = "0,1,2",
    tests: Tests = 200,
    tuning: Tuning = 40,
    learning_rate: Rate = "auto",
    engine: Engine = "fast",
    jobs: Jobs = 1,
    track: Track = None,
    json: Json = False,
) -> None:
    """The paper's table of accuracies: seven tasks, without demonstrations and with 32, beside a larger model."""
    from tintformer.experiments import recipes

    others = names(compare) or (() if model else recipes.SIMILAR)
    with started(track):
        base = _base(tasks, data, methods, seeds, tests, tuning, learning_rate, engine, jobs)
        models = names(model) or recipes.TASK_MODELS

        def build(task: InContextLearning) -> Sequence[InContextLearning]:
            return recipes.table_icl(task, models, others)

        _carry_out(_name("table-icl", model, protocol), base, build, protocol, output, jobs, json, track)


def table_settings(
    model: Models = None,
    data: TaskData = None,
    output: Output = OUTPUT,
    tasks: Tasks = None,
    methods: Methods = "auxiliary,tint",
    protocol: Protocol = "tuned",
    seeds: Seeds = "0,1,2",
    tests: Tests = 200,
    tuning: Tuning = 40,
    learning_rate: Rate = "auto",
    engine: Engine = "fast",
    jobs: Jobs = 1,
    track: Track = None,
    json: Json = False,
) -> None:
    """The paper's table of settings: 32 demonstrations by loss, format, layers and steps."""
    from tintformer.experiments import recipes

    with started(track):
        base = _base(tasks, data, methods, seeds, tests, tuning, learning_rate, engine, jobs)
        models = names(model) or recipes.TASK_MODELS

        def build(task: InContextLearning) -> Sequence[InContextLearning]:
            return recipes.table_settings(task, models)

        _carry_out(_name("table-settings", model, protocol), base, build, protocol, output, jobs, json, track)


def _base(
    tasks: str | None,
    data: Path | None,
    methods: str,
    seeds: str,
    tests: int | None,
    tuning: int,
    learning_rate: str,
    engine: str,
    jobs: int,
) -> list[InContextLearning]:
    """One experiment a task, without a model."""
    from tintformer.experiments.classification import InContextLearning
    from tintformer.experiments.recipes import TASKS

    chosen = names(tasks) or [task for task in TASKS if data is None or (data / task).exists()] or TASKS
    return [
        InContextLearning(
            model="",
            task=task,
            location=None if data is None else data / task,
            methods=names(methods),
            seeds=tuple(int(seed) for seed in numbers("--seeds", seeds)),
            tests=tests,
            tuning=tuning,
            rates=rates(learning_rate),
            engine=engine,
            threads=threads_of(jobs),
        )
        for task in chosen
    ]


def _carry_out(
    name: str,
    base: Sequence[InContextLearning],
    build: Callable[[InContextLearning], Sequence[InContextLearning]],
    protocol: str,
    output: Path,
    jobs: int,
    json: bool,
    track: str | None,
) -> None:
    from tintformer.experiments.protocols import by_protocol
    from tintformer.experiments.runs import Run

    # Row by row of the table, every task of a row before the next row: what is done first can be read first.
    rows = zip(*(build(task) for task in base), strict=True)
    experiments = tuple(by_protocol(experiment, protocol) for row in rows for experiment in row)
    check_tasks(experiments)
    carry_out(Run(name=name, kind="icl", experiments=experiments), output, jobs=jobs, json=json, track=track)


def _name(recipe: str, models: str | None, protocol: str) -> str:
    """What the files are called; the paper's own models go without saying."""
    return "-".join(
        [recipe, *(Path(model).name for model in names(models)), *(["paper"] if protocol == "paper" else [])]
    )
