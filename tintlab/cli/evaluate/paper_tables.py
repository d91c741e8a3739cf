"""`tint eval table-lm`, `table-icl` and `table-settings`: the paper's tables, on its models or on yours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tintformer.cli.options import Device, Dtype, Json
from tintformer.cli.rule_setup import check_place
from tintlab.cli.evaluate import eval_options as options
from tintlab.cli.evaluate.eval_run import carry_out, started, threads_of

if TYPE_CHECKING:
    from tintlab.kinds.icl import InContextLearning
    from tintlab.kinds.runs import Run

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
    output: options.Output = options.OUTPUT,
    methods: options.Methods = METHODS,
    compare: options.Compare = None,
    protocol: options.Protocol = "tuned",
    length: options.LengthOption = 1024,
    blocks: options.Blocks = None,
    tuning: options.TuningBlocks = 8,
    learning_rate: options.Rate = "auto",
    engine: options.EngineOption = "fast",
    dtype: Dtype = "float32",
    device: Device = None,
    jobs: options.Jobs = 1,
    track: options.Track = None,
    json: Json = False,
) -> None:
    """The paper's table of perplexities: WikiText-103 with 30, 50, 70 and 90% of each block trained on."""
    from tintlab.kinds import recipes
    from tintlab.kinds.lm import LanguageModelling
    from tintlab.kinds.runs import Run

    with started(track):
        check_place(dtype, device)
        models = options.names(model) or recipes.TEXT_MODELS
        base = LanguageModelling(
            model=models[0],
            data="wikitext-103",
            location=data,
            methods=options.names(methods),
            length=length,
            blocks=blocks,
            tuning=tuning,
            rates=options.rates(learning_rate),
            engine=engine,
            dtype=dtype,
            device=device,
            threads=threads_of(jobs),
        )
        base = recipes.by_protocol(base, protocol)
        experiments = recipes.table_lm(base, models) + recipes.compared(base, options.names(compare))
        run = Run(name=_name("table-lm", model, protocol), kind="lm", experiments=tuple(experiments))
        carry_out(run, output, jobs=jobs, json=json, track=track)


def table_icl(
    model: Models = None,
    data: TaskData = None,
    output: options.Output = options.OUTPUT,
    tasks: Tasks = None,
    methods: options.Methods = METHODS,
    compare: options.Compare = None,
    protocol: options.AccuracyProtocol = "tuned",
    seeds: options.Seeds = "0,1,2",
    tests: options.Tests = 200,
    tuning: options.Tuning = 40,
    learning_rate: options.Rate = "auto",
    engine: options.EngineOption = "fast",
    dtype: Dtype = "float32",
    device: Device = None,
    jobs: options.Jobs = 1,
    track: options.Track = None,
    json: Json = False,
) -> None:
    """The paper's table of accuracies: seven tasks, without demonstrations and with 32, beside a larger model."""
    with started(track):
        check_place(dtype, device)
        from tintlab.kinds import recipes

        others = options.names(compare) or (() if model else recipes.SIMILAR)
        rows = [
            recipes.table_icl(task, options.names(model) or recipes.TASK_MODELS, others)
            for task in _by_task(tasks, data, methods, seeds, tests, tuning, learning_rate, engine, dtype, device, jobs)
        ]
        run = _run_of_tasks(_name("table-icl", model, protocol), rows, protocol)
        carry_out(run, output, jobs=jobs, json=json, track=track)


def table_settings(
    model: Models = None,
    data: TaskData = None,
    output: options.Output = options.OUTPUT,
    tasks: Tasks = None,
    methods: options.Methods = "auxiliary,tint",
    protocol: options.AccuracyProtocol = "tuned",
    seeds: options.Seeds = "0,1,2",
    tests: options.Tests = 200,
    tuning: options.Tuning = 40,
    learning_rate: options.Rate = "auto",
    engine: options.EngineOption = "fast",
    dtype: Dtype = "float32",
    device: Device = None,
    jobs: options.Jobs = 1,
    track: options.Track = None,
    json: Json = False,
) -> None:
    """The paper's table of settings: 32 demonstrations by loss, format, layers and steps."""
    with started(track):
        check_place(dtype, device)
        from tintlab.kinds import recipes

        rows = [
            recipes.table_settings(task, options.names(model) or recipes.TASK_MODELS)
            for task in _by_task(tasks, data, methods, seeds, tests, tuning, learning_rate, engine, dtype, device, jobs)
        ]
        run = _run_of_tasks(_name("table-settings", model, protocol), rows, protocol)
        carry_out(run, output, jobs=jobs, json=json, track=track)


def _by_task(
    tasks: str | None,
    data: Path | None,
    methods: str,
    seeds: str,
    tests: int | None,
    tuning: int,
    learning_rate: str,
    engine: str,
    dtype: str,
    device: str | None,
    jobs: int,
) -> list[InContextLearning]:
    """One experiment a task, without a model."""
    from tintlab.kinds.icl import InContextLearning
    from tintlab.kinds.recipes import TASKS

    chosen = options.names(tasks) or [task for task in TASKS if data is None or (data / task).exists()] or TASKS
    return [
        InContextLearning(
            model="",
            task=task,
            location=None if data is None else data / task,
            methods=options.names(methods),
            seeds=options.seeds(seeds),
            tests=tests,
            tuning=tuning,
            rates=options.rates(learning_rate),
            engine=engine,
            dtype=dtype,
            device=device,
            threads=threads_of(jobs),
        )
        for task in chosen
    ]


def _run_of_tasks(name: str, by_task: Sequence[Sequence[InContextLearning]], protocol: str) -> Run:
    """Row by row of the table, every task of a row before the next row: what is done first can be read first."""
    from tintlab.kinds.recipes import by_protocols
    from tintlab.kinds.runs import Run

    rows = zip(*by_task, strict=True)
    experiments = (each for row in rows for experiment in row for each in by_protocols(experiment, protocol))
    return Run(name=name, kind="icl", experiments=tuple(experiments))


def _name(recipe: str, models: str | None, protocol: str) -> str:
    """What the files are called; the paper's own models go without saying."""
    usual = "-".join(
        [recipe, *(Path(model).name for model in options.names(models)), *([protocol] if protocol != "tuned" else [])]
    )
    return options.named(None, usual)
