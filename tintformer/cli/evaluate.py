"""`tint eval`: the paper's experiments on any model and data, resumable."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tintformer.cli.learning import check_dtype, plain_warnings, quiet_libraries
from tintformer.cli.options import Dtype, Model
from tintformer.cli.output import Json, print_json, print_table
from tintformer.errors import InputError

if TYPE_CHECKING:
    from tintformer.experiments.language import LanguageModelling
    from tintformer.experiments.tables.table import Table
    from tintformer.experiments.work import Progress

evaluate = typer.Typer(help="The paper's experiments on any model and data.", no_args_is_help=True)

Rate = Annotated[
    str,
    typer.Option("--learning-rate", help="A number, numbers to choose from (1e-4,3e-4), or auto: a grid of its own."),
]
Data = Annotated[
    Path | None, typer.Option("--data", help="File or directory to read instead of the described location.")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Directory for records and tables.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes; the cores are divided among them.")]


@evaluate.command("lm")
def language(
    model: Model,
    texts: Annotated[
        str, typer.Argument(help="A name from `tint eval list`, a YAML file, or a text file or directory.")
    ],
    data: Data = None,
    output: Output = Path("tint-eval"),
    methods: Annotated[str, typer.Option(help="Methods to compare; `tint eval list` has all.")] = (
        "auxiliary,fine-tuning,linears,moved,moved-same-rate,tint,tint-paper"
    ),
    shares: Annotated[str, typer.Option(help="Shares of a block that are trained on.")] = "0.3,0.5,0.7,0.9",
    length: Annotated[int, typer.Option(help="Tokens of a block; never more than the model's context.")] = 1024,
    blocks: Annotated[int | None, typer.Option(help="Blocks to score; default: all that are not tuned on.")] = None,
    tuning: Annotated[int, typer.Option(help="Blocks to choose the rates on; they are not scored.")] = 8,
    learning_rate: Rate = "auto",
    layers: Annotated[
        int | None, typer.Option(help="How many of the top blocks of the model learn; default: all.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Gradient steps inside the pass.")] = 1,
    engine: Annotated[str, typer.Option(help="fast, simulator, reference or oracle; they agree.")] = "fast",
    seed: Annotated[int, typer.Option(help="Draws the blocks.")] = 0,
    dtype: Dtype = "float32",
    jobs: Jobs = 1,
    json: Json = False,
) -> None:
    """Train on the first share of each block of a text, and score the rest: perplexity by method and share.

    What is done is kept as records in the output directory. The same command again goes on where it was stopped.
    """
    from tintformer.experiments.language import LanguageModelling, run_language
    from tintformer.experiments.records import Store
    from tintformer.experiments.tables.language import language_tables
    from tintformer.experiments.work import workers

    check_dtype(dtype)
    with plain_warnings():
        quiet_libraries()
        import torch

        experiment = LanguageModelling(
            model=model,
            data=texts,
            location=data,
            methods=tuple(methods.split(",")),
            shares=numbers("--shares", shares),
            length=length,
            blocks=blocks,
            tuning=tuning,
            rates=None if learning_rate == "auto" else numbers("--learning-rate", learning_rate),
            layers=layers,
            steps=steps,
            engine=engine,
            dtype=dtype,
            seed=seed,
            threads=max(1, torch.get_num_threads() // jobs),
        )
        with (
            counted(_steps_of(experiment)) as progress,
            workers(Store(output / "records"), jobs=jobs, progress=progress) as crew,
        ):
            results = run_language(experiment, crew)
        tables = language_tables(experiment, results)
    name = f"lm-{Path(model).name}-{Path(texts).stem}"
    save_tables(tables, output, name)
    if json:
        print_json({"results": [asdict(result) for result in results], "tables": [asdict(table) for table in tables]})
        return
    for table in tables:
        print_table(table.rows, title=table.title)
    print(f"wrote {output / name}.md, .tex and .csv; records are in {output / 'records'}")


@evaluate.command("icl")
def classification(
    model: Model,
    tasks: Annotated[str, typer.Argument(help="Names from `tint eval list` or YAML files, with commas between them.")],
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Examples to read instead of the described ones; of several tasks, DIR/TASK each."),
    ] = None,
    output: Output = Path("tint-eval"),
    methods: Annotated[str, typer.Option(help="Methods to compare; `tint eval list` has all.")] = (
        "auxiliary,fine-tuning,tint"
    ),
    shots: Annotated[int, typer.Option(help="Demonstrations; 0 trains on the test input itself.")] = 0,
    mode: Annotated[str, typer.Option(help="single: independent training examples; multi: one text.")] = "single",
    loss: Annotated[
        str | None, typer.Option(help="label: label words alone; full: all tokens. Default: label if there are shots.")
    ] = None,
    test_text: Annotated[bool, typer.Option("--test-text", help="Also train on the text of the test input.")] = False,
    settings: Annotated[
        str, typer.Option(help="Layers x steps: all/1,half/2,quarter/4, or numbers such as 6/2.")
    ] = "all/1",
    seeds: Annotated[str, typer.Option(help="Each draws its own demonstrations.")] = "0,1,2",
    tests: Annotated[int | None, typer.Option(help="Test examples, as many of each label.")] = 200,
    tuning: Annotated[int, typer.Option(help="Examples of the train pool that choose the rate, for each seed.")] = 40,
    learning_rate: Rate = "auto",
    variant: Annotated[str | None, typer.Option(help="Another prompt of the description.")] = None,
    normalise: Annotated[str | None, typer.Option(help="length: mean over the tokens of a label word.")] = None,
    engine: Annotated[str, typer.Option(help="fast, simulator, reference or oracle; they agree.")] = "fast",
    dtype: Dtype = "float32",
    jobs: Jobs = 1,
    json: Json = False,
) -> None:
    """Learn from demonstrations or from the test input itself, and choose a label word: accuracy by method."""
    from tintformer.experiments.classification import InContextLearning
    from tintformer.experiments.classification_run import ClassificationResult, run_classification
    from tintformer.experiments.records import Store
    from tintformer.experiments.tables.classification import classification_tables
    from tintformer.experiments.work import workers

    check_dtype(dtype)
    if normalise not in (None, "length"):
        raise InputError(f"--normalise {normalise!r} is unknown; it can be length")
    with plain_warnings():
        quiet_libraries()
        import torch

        names = tasks.split(",")
        experiments = [
            InContextLearning(
                model=model,
                task=name,
                location=None if data is None else data / name if len(names) > 1 else data,
                variant=variant,
                methods=tuple(methods.split(",")),
                shots=shots,
                mode=cast(Any, mode),
                loss=cast(Any, loss or ("label" if shots else "full")),
                test_text=test_text,
                layers=layers,
                steps=steps,
                seeds=tuple(int(seed) for seed in numbers("--seeds", seeds)),
                tests=tests,
                tuning=tuning,
                rates=None if learning_rate == "auto" else numbers("--learning-rate", learning_rate),
                engine=engine,
                dtype=dtype,
                threads=max(1, torch.get_num_threads() // jobs),
            )
            for layers, steps in _layers_and_steps(settings, model)
            for name in names
        ]
        done: list[tuple[InContextLearning, list[ClassificationResult]]] = []
        with counted(None) as progress, workers(Store(output / "records"), jobs=jobs, progress=progress) as crew:
            for experiment in experiments:
                done.append((experiment, run_classification(experiment, crew)))
        tables = classification_tables(done, by_length=normalise == "length")
    name = f"icl-{Path(model).name}-{shots}-shot"
    save_tables(tables, output, name)
    if json:
        results = [{"task": each.task, "results": [asdict(result) for result in found]} for each, found in done]
        print_json({"results": results, "tables": [asdict(table) for table in tables]})
        return
    print_table(tables[0].rows, title=tables[0].title)
    print(f"wrote {output / name}.md, .tex and .csv; records are in {output / 'records'}")


def _layers_and_steps(text: str, model: str) -> list[tuple[int | None, int]]:
    """Settings such as all/1,half/2,quarter/4: how many blocks learn, and in how many steps."""
    from tintformer.auxiliary.known import read_config

    shares = {"all": 1, "half": 2, "quarter": 4}
    found: list[tuple[int | None, int]] = []
    for part in text.split(","):
        layers, _, steps = part.partition("/")
        try:
            if layers in shares:
                count = read_config(model).num_hidden_layers // shares[layers] if layers != "all" else None
            else:
                count = int(layers)
            found.append((count, int(steps)))
        except ValueError as error:
            raise InputError(f"--settings {part!r} must be layers/steps, such as all/1, half/2 or 6/2") from error
    return found


@evaluate.command("list")
def listing(json: Json = False) -> None:
    """What ships: descriptions of data, and the methods that are compared."""
    from tintformer.experiments.described import read_description, shipped
    from tintformer.experiments.methods import METHODS

    descriptions = {name: read_description(name)[0] for name in shipped()}
    data = [{"name": name, "kind": each["kind"], "title": each["title"]} for name, each in descriptions.items()]
    methods = [{"method": name, "title": method.title} for name, method in METHODS.items()]
    if json:
        print_json({"data": data, "methods": methods})
        return
    print_table(data, title="data")
    print_table(methods, title="methods")


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Numbers with commas between them."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{option} {text!r} must be numbers with commas between them, such as 0.3,0.5") from error


def save_tables(tables: list[Table], directory: Path, name: str) -> None:
    """One file a format, with all tables."""
    from tintformer.files import whole_file

    directory.mkdir(parents=True, exist_ok=True)
    for ending in ("markdown", "latex", "csv"):
        suffix = {"markdown": "md", "latex": "tex", "csv": "csv"}[ending]
        with whole_file(directory / f"{name}.{suffix}") as temporary:
            temporary.write_text("\n".join(getattr(table, ending)() for table in tables), encoding="utf-8")


def _steps_of(experiment: LanguageModelling) -> int:
    """About how many units there will be; how many rates are tried is known only afterwards."""
    from tintformer.experiments.language import AT_ONCE, open_language

    opened = open_language(experiment)
    rates = 10 if experiment.rates is None else len(experiment.rates)
    per_method = -(-len(opened.scored) // AT_ONCE) + rates * -(-len(opened.tuning) // AT_ONCE)
    return len(experiment.shares) * len(experiment.methods) * per_method


@contextmanager
def counted(total: int | None) -> Generator[Progress]:
    """A bar with the time that is left, by the number of units."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns: tuple[Any, ...] = (TextColumn("units"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("units", total=total)
        yield lambda count: bar.advance(task, count)
