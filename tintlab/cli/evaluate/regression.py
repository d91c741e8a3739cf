"""`tint eval regression`: squared error after k examples, by descent inside the pass and in closed form."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tintformer.cli.options import Dtype, Json
from tintformer.cli.rule_setup import check_dtype
from tintformer.errors import InputError, brief
from tintlab.cli.evaluate import eval_options as options
from tintlab.cli.evaluate.eval_run import carry_out, started, threads_of


def in_context_regression(
    function: Annotated[
        str, typer.Option(help="What is learnt: linear, perceptron (one hidden layer), or both with a comma.")
    ] = "linear",
    output: options.Output = options.OUTPUT,
    methods: Annotated[
        str, typer.Option(help="Methods to compare; `tint eval list` has all.")
    ] = "auxiliary,one-step,many-steps,least-squares,perceptron",
    inputs: Annotated[int, typer.Option(help="Numbers in an input.")] = 8,
    noise: Annotated[float, typer.Option(help="Standard deviation of the noise in the examples.")] = 0.0,
    examples: Annotated[str, typer.Option(help="Sizes of the context.")] = "1,2,4,6,8,10,12,16,24,32",
    queries: Annotated[int, typer.Option(help="Queries of each function.")] = 16,
    functions: Annotated[int, typer.Option(help="Functions that are scored.")] = 256,
    tuning: Annotated[int, typer.Option(help="Functions to choose the rates on; they are not scored.")] = 64,
    learning_rate: options.Rate = "auto",
    steps: Annotated[int, typer.Option(help="Gradient steps of the methods that make many.")] = 100,
    hidden: Annotated[int, typer.Option(help="Hidden units of the perceptron that learns.")] = 64,
    engine: Annotated[str, typer.Option(help="fast, simulator, network, reference or oracle; they agree.")] = "fast",
    seed: Annotated[int, typer.Option(help="Draws the functions and the initial weights.")] = 0,
    dtype: Dtype = "float32",
    jobs: options.Jobs = 1,
    name: options.Name = None,
    track: options.Track = None,
    json: Json = False,
) -> None:
    """Learn random functions from the examples in their context: squared error by method and number of examples.

    What is done is kept as records in the output directory. The same command again goes on where it was stopped.
    """
    from tintlab.kinds.regression import RATES, InContextRegression
    from tintlab.kinds.runs import Run

    with started(track):
        check_dtype(dtype)
        kinds: Any = options.names(function)  # checked by the experiment
        if not kinds:
            raise InputError("there is no function; give --function linear or perceptron")
        sizes = options.numbers("--examples", examples)
        if not all(size.is_integer() for size in sizes):
            raise InputError(f"--examples {brief(examples)} must be whole numbers with commas between them")
        experiments = tuple(
            InContextRegression(
                model=kind,
                methods=options.names(methods),
                rates=options.rates(learning_rate) or RATES,
                steps=steps,
                inputs=inputs,
                noise=noise,
                examples=tuple(map(int, sizes)),
                queries=queries,
                functions=functions,
                tuning=tuning,
                hidden=hidden,
                engine=engine,
                dtype=dtype,
                seed=seed,
                threads=threads_of(jobs),
            )
            for kind in kinds
        )
        usual = f"regression-{'-'.join(kinds)}-{inputs}"
        run = Run(name=options.named(name, usual), kind="regression", experiments=experiments)
        carry_out(run, output, jobs=jobs, json=json, track=track)
