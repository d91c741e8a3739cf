"""`tint eval stream`: perplexity of documents that are learnt from while they are read, by several methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tintformer.cli.options import CarryOption, Chunk, Device, Dtype, Json, Model, Statistics, Window
from tintformer.cli.rule_setup import check_place
from tintlab.cli.evaluate import eval_options as options
from tintlab.cli.evaluate.eval_run import carry_out, check_audit, started, threads_of


def streams(
    model: Model,
    texts: Annotated[
        str, typer.Argument(help="A name from `tint eval list`, a YAML file, or a text file or directory.")
    ],
    data: Annotated[
        Path | None, typer.Option(help="File or directory to read instead of the described location.")
    ] = None,
    output: options.Output = options.OUTPUT,
    methods: Annotated[
        str, typer.Option(help="Methods to compare; `tint eval list` has all. lora needs the package peft.")
    ] = "auxiliary,sgd,momentum,decay,rms,adam,muon,layer-rates,top-quarter,tint",
    documents: Annotated[
        str,
        typer.Option(
            help="What a document is: described (each file or line), articles (below lines ` = Title = `), blocks "
            "(pieces of --length tokens), or auto: articles where the data have them."
        ),
    ] = "auto",
    chunk: Chunk = 128,
    window: Window = None,
    carry: CarryOption = "cache",
    length: Annotated[int, typer.Option(help="Tokens at which documents are cut.")] = 2048,
    shortest: Annotated[
        int | None, typer.Option(help="Tokens of the shortest document that is taken; default: two chunks.")
    ] = None,
    scored: Annotated[int | None, typer.Option(help="Documents to score; default: all that are not tuned on.")] = None,
    tuning: Annotated[
        int, typer.Option(help="Documents to choose the rates on, and for the statistics of rms; not scored.")
    ] = 6,
    learning_rate: options.Rate = "auto",
    layers: Annotated[
        int | None, typer.Option(help="How many of the top blocks of the model learn; default: all.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Gradient steps for each chunk.")] = 1,
    statistics: Statistics = None,
    batch: Annotated[int, typer.Option(help="Documents that are read together, each with weights of its own.")] = 1,
    seed: Annotated[int, typer.Option(help="Draws the documents.")] = 0,
    dtype: Dtype = "float32",
    device: Device = None,
    jobs: options.Jobs = 1,
    name: options.Name = None,
    audit: options.Audit = False,
    track: options.Track = None,
    json: Json = False,
) -> None:
    """Read documents chunk by chunk, each scored and then learnt from: perplexity, gain by position, and cost.

    All methods read the same windows, each at the rate that other documents have chosen. What is done is kept as
    records in the output directory. The same command again goes on where it was stopped.
    """
    from tintlab.kinds.document_streams import DocumentStreams
    from tintlab.kinds.runs import Run

    with started(track):
        check_place(dtype, device)
        chosen: Any = {"documents": documents, "carry": carry}  # names are checked by the experiment
        experiment = DocumentStreams(
            model=model,
            data=texts,
            location=data,
            methods=options.names(methods),
            chunk=chunk,
            window=window,
            length=length,
            shortest=shortest,
            scored=scored,
            tuning=tuning,
            batch=batch,
            rates=options.rates(learning_rate),
            layers=layers,
            steps=steps,
            statistics=None if statistics is None else str(statistics),
            dtype=dtype,
            device=device,
            seed=seed,
            threads=threads_of(jobs),
            **chosen,
        )
        usual = f"stream-{Path(model).name}-{Path(texts).stem}"
        run = Run(name=options.named(name, usual), kind="stream", experiments=(experiment,))
        passed = carry_out(run, output, jobs=jobs, json=json, track=track, audit=audit)
    check_audit(passed)
