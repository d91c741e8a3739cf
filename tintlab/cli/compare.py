"""`tint compare`: how much of what reading demonstrations does to a model is what learning from them does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tintformer.cli.options import Device, Dtype, Json, Model
from tintformer.cli.rule_setup import check_place
from tintlab.cli.evaluate import eval_options as options
from tintlab.cli.evaluate.eval_run import carry_out, started, threads_of

OUTPUT = Path("tint-compare")


def _less(text: str, usual: str, quick: str) -> str:
    return f"{text} Default: {usual}; with --quick {quick}."


def compare(
    model: Model,
    tasks: Annotated[str, typer.Argument(help="Names from `tint eval list` or YAML files, with commas between them.")],
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Examples to read instead of the described ones; of several tasks, DIR/TASK each."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory for records, tables and figures.")] = OUTPUT,
    quick: Annotated[
        bool, typer.Option("--quick", help="Less of everything: a first table in about a minute with a small model.")
    ] = False,
    shots: Annotated[
        str | None,
        typer.Option(help=_less("Numbers of demonstrations.", "2,4,8", "2,8"), show_default=False),
    ] = None,
    methods: Annotated[
        str, typer.Option(help="How it learns: methods of `tint eval list`, with commas between them.")
    ] = "tint",
    loss: Annotated[str, typer.Option(help="Learn label words alone (label), or all tokens (full).")] = "label",
    layers: Annotated[
        int | None, typer.Option(help="How many of the top blocks of the model learn; default: all.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Gradient steps.")] = 1,
    seeds: Annotated[
        str | None,
        typer.Option(help=_less("Each draws its own demonstrations.", "0,1,2", "0,1"), show_default=False),
    ] = None,
    tests: Annotated[
        int | None,
        typer.Option(help=_less("Test inputs of each task, as many of each label.", "100", "16"), show_default=False),
    ] = None,
    tuning: Annotated[
        int | None,
        typer.Option(help=_less("Examples that choose the rate, for each seed.", "40", "8"), show_default=False),
    ] = None,
    orders: Annotated[
        int | None, typer.Option(help=_less("Orders of the demonstrations.", "3", "2"), show_default=False)
    ] = None,
    learning_rate: options.Rate = "auto",
    controls: Annotated[
        str, typer.Option(help="What stands beside the model: shuffled labels, an untrained model, both, or none.")
    ] = "shuffled,untrained",
    variant: Annotated[str | None, typer.Option(help="Another prompt of the description.")] = None,
    dtype: Dtype = "float32",
    device: Device = None,
    jobs: options.Jobs = 1,
    name: options.Name = None,
    track: options.Track = None,
    json: Json = False,
) -> None:
    """Read demonstrations in the context, learn from the same ones, and compare what both do to the model.

    Answers, their dependence on the order of demonstrations, and the changes inside of the model, block by block,
    beside the controls. What is done is kept as records in the output directory. The same command again goes on where
    it was stopped.
    """
    from tintlab.kinds.compare import comparisons
    from tintlab.kinds.runs import Run

    with started(track):
        check_place(dtype, device)
        chosen = options.names(tasks)
        experiments = comparisons(
            model,
            chosen,
            data,
            quick=quick,
            given={
                "shots": None if shots is None else options.whole_numbers("--shots", shots),
                "seeds": None if seeds is None else options.seeds(seeds),
                "rates": options.rates(learning_rate),
                "tests": tests,
                "tuning": tuning,
                "orders": orders,
            },
            methods=options.names(methods),
            loss=loss,
            layers=layers,
            steps=steps,
            controls=() if controls == "none" else options.names(controls),
            variant=variant,
            dtype=dtype,
            device=device,
            threads=threads_of(jobs),
        )
        what = [*(Path(task).stem for task in chosen), *options.names(variant), *(["quick"] if quick else [])]
        usual = "-".join(["compare", Path(model).name, *what])
        run = Run(name=options.named(name, usual), kind="compare", experiments=experiments)
        carry_out(run, output, jobs=jobs, json=json, track=track)
