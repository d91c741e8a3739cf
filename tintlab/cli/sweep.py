"""`tint sweep`: rates x rules x layers x steps on one text, in one table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import BeyondContext, Device, Dtype, Json, Model, Text, TokensOption, check_rate
from tintformer.cli.rule_setup import finite, open_model
from tintformer.console import print_json, print_table, say
from tintformer.errors import InputError
from tintformer.learning.split import TRAIN_FRACTION, Split
from tintlab.cli.evaluate import eval_options as options
from tintlab.cli.evaluate.eval_run import progress_bar, started, threads_of

if TYPE_CHECKING:
    from tintlab.kinds.sweep_result import SweepResult

OUTPUT = Path("tint-sweep")
ALL = "all"


def sweep(
    model: Model,
    text: Text = None,
    *,
    file: Annotated[Path | None, typer.Option(help="Read the text from a file; - is standard input.")] = None,
    learning_rate: Annotated[
        str | None,
        typer.Option(help="Rates, with commas between them; default: six from 1e-5 to 3e-3.", show_default=False),
    ] = None,
    rule: Annotated[str, typer.Option(help="Rules: default, paper, full (SGD), with commas between them.")] = "default",
    layers: Annotated[
        str, typer.Option(help="How many of the top blocks learn: all, or numbers such as 2,4,all.")
    ] = ALL,
    steps: Annotated[str, typer.Option(help="Gradient steps inside the pass, such as 1,2,4.")] = "1",
    optimizer: Annotated[
        str | None,
        typer.Option(help="Optimisers: sgd, adam, muon, with commas between them; sgd.", show_default=False),
    ] = None,
    train_fraction: Annotated[
        float | None, typer.Option(help=f"Share of the text that is trained on; {TRAIN_FRACTION} by default.")
    ] = None,
    train_tokens: Annotated[int | None, typer.Option(help="Number of tokens that are trained on, instead.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory for records, table and plot.")] = OUTPUT,
    engine: options.EngineOption = "fast",
    dtype: Dtype = "float32",
    device: Device = None,
    jobs: options.Jobs = 1,
    name: Annotated[str | None, typer.Option(help="What its files are called.")] = None,
    tokens: TokensOption = None,
    beyond_context: BeyondContext = False,
    json: Json = False,
) -> None:
    """Train on the first part of a text by every combination of rates, rules, optimisers, layers and steps, and score
    the rest.

    What is done is kept as records in the output directory. The same command again goes on where it was stopped.
    """
    from tintformer.learning.text import read_text
    from tintformer.storage.whole_files import check_directory
    from tintlab.kinds.sweep import RECORDS, make_rules, run_sweep, text_sweep

    rates = None if learning_rate is None else _rates(learning_rate)
    optimizers = None if optimizer is None else options.names(optimizer)
    rules = make_rules(
        rates, options.names(rule), layer_counts(layers), options.whole_numbers("--steps", steps), {}, optimizers
    )
    split, content = Split(train_fraction=train_fraction, train_tokens=train_tokens), read_text(text, file)
    named = options.named(name, f"sweep-{Path(model).name}-{'text' if file is None else file.stem}")
    with started() as processes:
        from tintformer.learning.engine_registry import check_options
        from tintformer.learning.text_model import encode_for_split

        check_options(engine, {})
        check_directory(output, [f"{named}.png", f"{named}.csv"])
        check_directory(output / RECORDS)
        auxiliary = open_model(model, dtype, device)
        encoded, num_train = encode_for_split(auxiliary, content, split, tokens=tokens, beyond_context=beyond_context)
        experiment = text_sweep(auxiliary, model, encoded.input_ids, num_train, engine=engine, threads=threads_of(jobs))
        with progress_bar(len(rules) + 1, shown=processes.is_first) as advance:
            result = run_sweep(
                experiment, rules, auxiliary, output=output, jobs=jobs, progress=advance, group=processes
            )
        if processes.is_first:
            show(result, sorted(save(result, output, named)), output, json=json)


def _rates(text: str) -> list[float]:
    if text == "auto":
        raise InputError("a sweep tries the rates that it is given; give numbers, or have `tint run` find one")
    return [check_rate(rate) for rate in options.numbers("--learning-rate", text)]


def layer_counts(text: str) -> list[int | None]:
    """How many of the top blocks learn, with commas between them; None is all of them."""
    return [None if part == ALL else options.whole_numbers("--layers", part)[0] for part in options.names(text)]


def save(result: SweepResult, output: Path, name: str) -> list[Path]:
    """Write the table and, where matplotlib is installed, the plot; both or none."""
    from tintformer.storage.whole_files import whole_files
    from tintlab.show.plot_style import has_matplotlib

    contents = {f"{name}.csv": result.csv().encode()} | ({f"{name}.png": result.png()} if has_matplotlib() else {})
    with whole_files(output, [f"{name}.png", f"{name}.csv"]) as folder:
        for file, content in contents.items():
            (folder / file).write_bytes(content)
    return [output / file for file in contents]


def show(result: SweepResult, paths: list[Path], output: Path, *, json: bool) -> None:
    """The table for people, or everything as JSON."""
    if json:
        print_json(sweep_record(result) | {"files": [str(path) for path in paths]})
        return
    table = result.table()
    print_table(table.rows, title=table.title)
    say(table.note)
    say(f"wrote {', '.join(path.name for path in paths)} into {output}")


def sweep_record(result: SweepResult) -> dict[str, Any]:
    """The result for programs; what has diverged is null."""
    rows = [
        {key: finite(value) if isinstance(value, float) else value for key, value in row.items()}
        for row in result.records()
    ]
    best = rows[result.rows.index(result.best)]
    return {
        "model": result.model,
        "train_tokens": result.train_tokens,
        "evaluation_tokens": result.evaluation_tokens,
        "loss_before": finite(result.loss_before),
        "perplexity_before": finite(result.perplexity_before),
        "best": None if math.isinf(result.best.loss) else best,
        "rows": rows,
    }
