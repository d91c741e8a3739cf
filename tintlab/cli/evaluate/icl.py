"""`tint eval icl`: accuracy after learning from demonstrations, or from the test input itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from tintformer.cli.options import Device, Dtype, Json, Model
from tintformer.cli.rule_setup import check_place
from tintformer.errors import InputError, brief
from tintlab.cli.evaluate import eval_options as options
from tintlab.cli.evaluate.eval_run import carry_out, check_audit, started, threads_of

SEEDS, TESTS = "0,1,2", 200
QUICK_SEEDS, QUICK_TESTS = "0", 40


def classification(
    model: Model,
    tasks: Annotated[str, typer.Argument(help="Names from `tint eval list` or YAML files, with commas between them.")],
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Examples to read instead of the described ones; of several tasks, DIR/TASK each."),
    ] = None,
    output: options.Output = options.OUTPUT,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A first table in about a minute with a small model; its records serve the whole run."
        ),
    ] = False,
    methods: options.Methods = "auxiliary,fine-tuning,tint",
    compare: options.Compare = None,
    protocol: options.AccuracyProtocol = "tuned",
    shots: Annotated[int, typer.Option(help="Demonstrations; 0 trains on the test input itself.")] = 0,
    mode: Annotated[str, typer.Option(help="single: independent training examples; multi: one text.")] = "single",
    loss: Annotated[
        str | None, typer.Option(help="label: label words alone; full: all tokens. Default: label if there are shots.")
    ] = None,
    test_text: Annotated[bool, typer.Option("--test-text", help="Also train on the text of the test input.")] = False,
    settings: Annotated[
        str, typer.Option(help="Layers x steps: all/1,half/2,quarter/4, or numbers such as 6/2.")
    ] = "all/1",
    seeds: Annotated[
        str | None, typer.Option(help=options.less("Each draws its own demonstrations.", SEEDS, QUICK_SEEDS))
    ] = None,
    tests: Annotated[
        int | None,
        typer.Option(help=options.less("Test examples of each task, as many of each label.", TESTS, QUICK_TESTS)),
    ] = None,
    tuning: options.Tuning = 40,
    learning_rate: options.Rate = "auto",
    variant: Annotated[str | None, typer.Option(help="Another prompt of the description.")] = None,
    normalise: Annotated[str | None, typer.Option(help="length: mean over the tokens of a label word.")] = None,
    engine: options.EngineOption = "fast",
    dtype: Dtype = "float32",
    device: Device = None,
    jobs: options.Jobs = 1,
    name: options.Name = None,
    track: options.Track = None,
    audit: options.Audit = False,
    json: Json = False,
) -> None:
    """Learn from demonstrations or from the test input itself, and choose a label word: accuracy by method."""
    from tintlab.kinds.icl import InContextLearning
    from tintlab.kinds.recipes import by_protocols, compared
    from tintlab.kinds.runs import Run

    with started(track):
        check_place(dtype, device)
        if normalise not in (None, "length"):
            raise InputError(f"--normalise {brief(normalise)} is unknown; it can be length")
        chosen = options.names(tasks)
        if not chosen:
            raise InputError("there is no task; give a name from `tint eval list` or a YAML file")
        base = InContextLearning(
            model=model,
            task=chosen[0],
            variant=variant,
            methods=options.names(methods),
            shots=shots,
            mode=cast(Any, mode),
            loss=cast(Any, loss or ("label" if shots else "full")),
            test_text=test_text,
            seeds=options.seeds(seeds if seeds is not None else QUICK_SEEDS if quick else SEEDS),
            tests=tests if tests is not None else QUICK_TESTS if quick else TESTS,
            tuning=tuning,
            rates=options.rates(learning_rate),
            engine=engine,
            dtype=dtype,
            device=device,
            threads=threads_of(jobs),
        )
        one = len(chosen) == 1
        by_task = [replace(base, task=name, location=data and (data if one else data / name)) for name in chosen]
        experiments = [
            each
            for layers, steps in _layers_and_steps(settings, model, dtype, device)
            for experiment in by_task
            for each in by_protocols(replace(experiment, layers=layers, steps=steps), protocol)
        ]
        experiments += [other for experiment in by_task for other in compared(experiment, options.names(compare))]
        how = f"{shots}-shot-{base.mode}-{base.loss}" if shots else "zero-shot"
        shown = [how, *options.names(settings.replace("/", "x"))]
        shown += ["quick"] if quick else []
        what = [*(Path(name).stem for name in chosen), *options.names(variant), *shown]
        usual = "-".join(["icl", Path(model).name, *what, *([protocol] if protocol != "tuned" else [])])
        name, by_length = options.named(name, usual), normalise == "length"
        run = Run(name=name, kind="icl", experiments=tuple(experiments), by_length=by_length)
        passed = carry_out(run, output, jobs=jobs, json=json, track=track, audit=audit)
    check_audit(passed)


def _layers_and_steps(text: str, model: str, dtype: str, device: str | None) -> list[tuple[int | None, int]]:
    """Settings such as all/1,half/2,quarter/4: how many blocks learn, and in how many steps."""
    from tintlab.kinds.recipes import SETTINGS, share_of_blocks

    found: list[tuple[int | None, int]] = []
    for part in options.names(text):
        layers, _, steps = part.partition("/")
        share = layers in dict(SETTINGS)
        if not (steps.isdecimal() and (share or layers.isdecimal())):
            raise InputError(f"--settings {brief(part)} must be layers/steps, such as all/1, half/2 or 6/2")
        found.append((share_of_blocks(model, layers, dtype, device) if share else int(layers), int(steps)))
    if not found:
        raise InputError("--settings is empty; give layers/steps, such as all/1, half/2 or 6/2")
    return found
