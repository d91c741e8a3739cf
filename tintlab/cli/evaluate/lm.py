"""`tint eval lm`: perplexity of the rest of a text after training on its first share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tintformer.cli.options import Device, Dtype, Json, Model
from tintformer.cli.rule_setup import check_place
from tintlab.cli.evaluate import eval_options as options
from tintlab.cli.evaluate.eval_run import carry_out, check_audit, started, threads_of

METHODS, SHARES, TUNING = "auxiliary,fine-tuning,linears,moved,moved-same-rate,tint,tint-paper", "0.3,0.5,0.7,0.9", 8
QUICK_METHODS, QUICK_SHARES, QUICK_TUNING, QUICK_BLOCKS = "auxiliary,fine-tuning,moved,tint", "0.5", 4, 16


def language(
    model: Model,
    texts: Annotated[
        str, typer.Argument(help="A name from `tint eval list`, a YAML file, or a text file or directory.")
    ],
    data: Annotated[
        Path | None, typer.Option(help="File or directory to read instead of the described location.")
    ] = None,
    output: options.Output = options.OUTPUT,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A first table in about a minute with a small model; its records serve the whole run."
        ),
    ] = False,
    methods: Annotated[
        str | None,
        typer.Option(help=options.less("Methods to compare; `tint eval list` has all.", METHODS, QUICK_METHODS)),
    ] = None,
    compare: options.Compare = None,
    protocol: options.Protocol = "tuned",
    shares: Annotated[
        str | None, typer.Option(help=options.less("Shares of a block that are trained on.", SHARES, QUICK_SHARES))
    ] = None,
    length: options.LengthOption = 1024,
    blocks: Annotated[
        int | None,
        typer.Option(help=options.less("Blocks to score.", "all but the tuning blocks", f"up to {QUICK_BLOCKS}")),
    ] = None,
    tuning: Annotated[
        int | None,
        typer.Option(help=options.less("Blocks to choose the rates on; they are not scored.", TUNING, QUICK_TUNING)),
    ] = None,
    learning_rate: options.Rate = "auto",
    layers: Annotated[
        int | None, typer.Option(help="How many of the top blocks of the model learn; default: all.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Gradient steps inside the pass.")] = 1,
    engine: options.EngineOption = "fast",
    seed: Annotated[int, typer.Option(help="Draws the blocks.")] = 0,
    dtype: Dtype = "float32",
    device: Device = None,
    jobs: options.Jobs = 1,
    name: options.Name = None,
    track: options.Track = None,
    audit: options.Audit = False,
    json: Json = False,
) -> None:
    """Train on the first share of each block of a text, and score the rest: perplexity by method and share.

    What is done is kept as records in the output directory. The same command again goes on where it was stopped.
    """
    from tintlab.kinds.lm import LanguageModelling, score_at_most
    from tintlab.kinds.recipes import by_protocol, compared
    from tintlab.kinds.runs import Run

    with started(track):
        check_place(dtype, device)
        experiment = LanguageModelling(
            model=model,
            data=texts,
            location=data,
            methods=options.names(methods if methods is not None else QUICK_METHODS if quick else METHODS),
            shares=options.numbers("--shares", shares if shares is not None else QUICK_SHARES if quick else SHARES),
            length=length,
            blocks=blocks,
            tuning=tuning if tuning is not None else QUICK_TUNING if quick else TUNING,
            rates=options.rates(learning_rate),
            layers=layers,
            steps=steps,
            engine=engine,
            dtype=dtype,
            device=device,
            seed=seed,
            threads=threads_of(jobs),
        )
        experiment = by_protocol(experiment, protocol)
        if quick and blocks is None:
            experiment = score_at_most(experiment, QUICK_BLOCKS)
        experiments = (experiment, *compared(experiment, options.names(compare)))
        usual = f"lm-{Path(model).name}-{Path(texts).stem}{'-quick' if quick else ''}"
        run = Run(name=options.named(name, usual), kind="lm", experiments=experiments)
        passed = carry_out(run, output, jobs=jobs, json=json, track=track, audit=audit)
    check_audit(passed)
