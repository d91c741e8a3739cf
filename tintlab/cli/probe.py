"""`tint probe`: does learning from a context change what a model does with unrelated prompts, and does reading it?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import AUTO, Device, Dtype, Json, Model
from tintformer.cli.rule_setup import finite, open_model
from tintformer.console import doing, print_json, print_table, say
from tintformer.errors import InputError
from tintlab.cli.evaluate import eval_options as options
from tintlab.cli.evaluate.eval_run import progress_bar, started, threads_of
from tintlab.cli.sweep import ALL, layer_counts

if TYPE_CHECKING:
    from tintformer.learning.rate_selection import RatePoint
    from tintlab.kinds.probe_result import ProbeResult

OUTPUT = Path("tint-probe")


def probe(
    model: Model,
    *,
    context: Annotated[
        list[Path] | None,
        typer.Option(
            help="A text file to learn from and to read, in place of the sets that ship; may be given again.",
            show_default=False,
        ),
    ] = None,
    probes: Annotated[
        Path | None,
        typer.Option(
            help='Prompts as JSON lines, {"prompt": ...} or {"prompt": ..., "labels": ["yes", "no"]}, in place of '
            "those that ship.",
            show_default=False,
        ),
    ] = None,
    learning_rate: Annotated[
        str, typer.Option(help="Rates, with commas between them, or auto: about what suits the innocuous contexts.")
    ] = AUTO,
    rule: Annotated[str, typer.Option(help="Rules: default, paper, full (SGD), with commas between them.")] = "default",
    layers: Annotated[
        str, typer.Option(help="How many of the top blocks learn: all, or numbers such as 2,4,all.")
    ] = ALL,
    steps: Annotated[str, typer.Option(help="Gradient steps inside the pass, such as 1,2,4.")] = "1",
    tokens: Annotated[
        int | None, typer.Option(min=8, help="Use at most so many tokens of each context; default: of the shortest.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory for records, tables and figure.")] = OUTPUT,
    dtype: Dtype = "float32",
    device: Device = None,
    jobs: options.Jobs = 1,
    name: Annotated[str | None, typer.Option(help="What its files are called.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two contexts of each set, every third prompt, one rate: a first look.")
    ] = False,
    json: Json = False,
) -> None:
    """Learn from contexts, read them, or both, and see what that does to prompts that have nothing to do with them.

    Every set of contexts stands beside innocuous ones of the same length. What is done is kept as records in the output
    directory; the same command again goes on where it was stopped.
    """
    from tintformer.storage.whole_files import check_directory
    from tintlab.kinds.probe_inputs import read_context_files
    from tintlab.kinds.probe_study import ask, prepare
    from tintlab.kinds.sweep import RECORDS

    asked = ask(
        read_context_files(context or ()),
        probes,
        options.rates(learning_rate),
        options.names(rule),
        layer_counts(layers),
        options.whole_numbers("--steps", steps),
        {},
        tokens=tokens,
        quick=quick,
    )
    named = options.named(name, f"probe-{Path(model).name}{'-quick' if quick else ''}")
    if jobs > 1 and device is not None:
        raise InputError("--jobs and --device do not go together: other processes load the model on the CPU")
    with started() as processes:
        from tintlab.kinds.probe import run_probe

        check_directory(output, _files(named))
        check_directory(output / RECORDS)
        auxiliary = open_model(model, dtype, device)
        study = prepare(asked, auxiliary, model, threads=threads_of(jobs), on_point=_tell)
        with progress_bar(len(study.units()), shown=processes.is_first) as advance:
            result = run_probe(study, output=output, jobs=jobs, progress=advance, group=processes)
        if processes.is_first:
            show(result, save(result, output, named), output, json=json)


def _tell(point: RatePoint) -> None:
    doing(f"choosing a learning rate: {point.rate:.3g} gives {point.loss:.4f} nats")


def _files(name: str) -> list[str]:
    return [f"{name}.png", f"{name}.csv", f"{name}.md"]


def save(result: ProbeResult, output: Path, name: str) -> list[Path]:
    """Write the rows, the tables and, where matplotlib is installed, the figure; all or none."""
    from tintformer.storage.whole_files import whole_files
    from tintlab.show.plot_style import has_matplotlib

    contents = {f"{name}.csv": result.csv().encode()}
    contents |= {f"{name}.md": "\n".join(table.markdown() for table in result.tables().values()).encode()}
    contents |= {f"{name}.png": result.png()} if has_matplotlib() else {}
    with whole_files(output, _files(name)) as folder:
        for file, content in contents.items():
            (folder / file).write_bytes(content)
    return [output / file for file in contents]


def show(result: ProbeResult, paths: list[Path], output: Path, *, json: bool) -> None:
    """The tables for people, or everything as JSON."""
    if json:
        print_json(probe_record(result) | {"files": [str(path) for path in paths]})
        return
    from tintlab.kinds.probe_result import MOVED, SAME, TEXT

    tables = result.tables()
    # The others are finer looks at the same, and stand in the files.
    for name in (TEXT, MOVED, SAME):
        if name in tables:
            print_table(tables[name].rows, title=tables[name].title)
            say(tables[name].note)
    say(f"wrote {', '.join(path.name for path in paths)} into {output}")


def probe_record(result: ProbeResult) -> dict[str, Any]:
    """The result for programs; what has diverged is null."""
    rows = [
        {key: finite(value) if isinstance(value, float) else value for key, value in row.items()}
        for row in result.records()
    ]
    return {
        "model": result.model,
        "context_tokens": result.context_tokens,
        "texts": result.num_texts,
        "questions": result.num_questions,
        "control": result.control,
        "balanced": result.balanced,
        "rows": rows[: len(result.rows)],
        "demonstrations": rows[len(result.rows) :],
    }
