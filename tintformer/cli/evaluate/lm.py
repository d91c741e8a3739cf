"""`tint eval lm`: perplexity of the rest of a text after training on its first share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tintformer.cli.evaluate import eval_options as options
from tintformer.cli.evaluate.eval_run import carry_out, check_audit, started, threads_of
from tintformer.cli.options import Device, Dtype, Json, Model
from tintformer.cli.rule_setup import check_place


def language(
    model: Model,
    texts: Annotated[
        str, typer.Argument(help="A name from `tint eval list`, a YAML file, or a text file or directory.")
    ],
    data: Annotated[
        Path | None, typer.Option(help="File or directory to read instead of the described location.")
    ] = None,
    output: options.Output = options.OUTPUT,
    methods: options.Methods = "auxiliary,fine-tuning,linears,moved,moved-same-rate,tint,tint-paper",
    compare: options.Compare = None,
    protocol: options.Protocol = "tuned",
    shares: Annotated[str, typer.Option(help="Shares of a block that are trained on.")] = "0.3,0.5,0.7,0.9",
    length: options.LengthOption = 1024,
    blocks: options.Blocks = None,
    tuning: options.TuningBlocks = 8,
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
    from tintformer.experiments.language_modelling import LanguageModelling
    from tintformer.experiments.recipes import by_protocol, compared
    from tintformer.experiments.runs import Run

    with started(track):
        check_place(dtype, device)
        experiment = LanguageModelling(
            model=model,
            data=texts,
            location=data,
            methods=options.names(methods),
            shares=options.numbers("--shares", shares),
            length=length,
            blocks=blocks,
            tuning=tuning,
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
        experiments = (experiment, *compared(experiment, options.names(compare)))
        usual = f"lm-{Path(model).name}-{Path(texts).stem}"
        run = Run(name=options.named(name, usual), kind="lm", experiments=experiments)
        passed = carry_out(run, output, jobs=jobs, json=json, track=track, audit=audit)
    check_audit(passed)
