"""What the experiments' commands share: their options, the files that tables go to, and a bar."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.evaluate.tracking import check_tracker, tracking
from tintformer.cli.rule_setup import quiet_libraries, warnings_as_lines
from tintformer.console import print_json, print_table
from tintformer.errors import InputError, TintError

if TYPE_CHECKING:
    from tintformer.experiments.classification import InContextLearning
    from tintformer.experiments.processes import Group
    from tintformer.experiments.runs import Run
    from tintformer.experiments.work import Progress

Rate = Annotated[
    str,
    typer.Option("--learning-rate", help="A number, numbers to choose from (1e-4,3e-4), or auto: a grid of its own."),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Directory for records and tables.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes; the cores are divided among them.")]
Engine = Annotated[str, typer.Option(help="fast, simulator, reference or oracle; they agree.")]
Protocol = Annotated[
    str,
    typer.Option(help="tuned: rates from data that is not scored; paper: as the authors, rates from what is scored."),
]
Compare = Annotated[
    str | None, typer.Option(help="Other models, with commas between them, that are scored as they are.")
]
Methods = Annotated[str, typer.Option(help="Methods to compare; `tint eval list` has all.")]
Length = Annotated[int, typer.Option(help="Tokens of a block; never more than the model's context.")]
Blocks = Annotated[int | None, typer.Option(help="Blocks to score; default: all that are not tuned on.")]
TuningBlocks = Annotated[int, typer.Option("--tuning", help="Blocks to choose the rates on; they are not scored.")]
Seeds = Annotated[str, typer.Option(help="Each draws its own demonstrations.")]
Tests = Annotated[int | None, typer.Option(help="Test examples of each task, as many of each label.")]
Tuning = Annotated[int, typer.Option(help="Examples of the train pool that choose the rate, for each seed.")]
Name = Annotated[
    str | None,
    typer.Option(help="What its files are called, to keep them beside those of the same run by other methods."),
]
Track = Annotated[
    str | None,
    typer.Option(
        "--track", help="Tell a tracker of progress and results: trackio, wandb, tensorboard, or another of accelerate."
    ),
]
OUTPUT = Path("tint-eval")


@contextmanager
def started(track: str | None = None) -> Generator[Group]:
    """What every experiment's command begins with: quiet libraries, warnings of one line, and the launcher's processes.

    Of several processes the first says what there is to say, also to the tracker.
    """
    from tintformer.experiments.processes import group, together

    quiet_libraries()
    processes = group()

    def gather(messages: list[str]) -> list[str]:
        everybody = processes.exchange(messages, {"warnings": "told"})
        return [message for each in everybody for message in each] if processes.leads else []

    try:
        with together(processes), warnings_as_lines(gather):
            if processes.leads:
                check_tracker(track)
            yield processes
    except (TintError, OSError) as error:
        if processes.leads:
            raise
        processes.wait_for_first()
        raise typer.Exit(2) from error


def names(text: str | None) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(part.strip() for part in text.split(",")) if text else ()


def named(name: str | None, usual: str) -> str:
    """What a run's files are called: the user's name for it, or the usual one."""
    if name is not None and (not name or Path(name).name != name or name.startswith(".")):
        raise InputError(f"--name {name!r} is no name of a file; leave out directories, and a dot in front")
    return name or usual


def threads_of(jobs: int) -> int:
    """The cores, divided among the processes; those of other machines take as many threads as the first one."""
    import torch

    from tintformer.experiments.processes import group

    processes = group()
    if jobs > 1 and processes.size > 1:
        raise InputError(
            f"a launcher has started {processes.size} processes, each of which would start --jobs {jobs}; leave --jobs "
            "out, and have it start more"
        )
    return processes.exchange(max(1, torch.get_num_threads() // jobs), {"threads": "counted"})[0]


def check_tasks(experiments: Sequence[InContextLearning]) -> None:
    """Open every task, so that one that is wrong is told before any work is done."""
    from tintformer.experiments.classification import open_classification

    for experiment in experiments:
        open_classification(experiment).count("test")


def rates(text: str) -> tuple[float, ...] | None:
    """The grid that an option names; None where it is to be found."""
    return None if text == "auto" else numbers("--learning-rate", text)


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Numbers with commas between them."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{option} {text!r} must be numbers with commas between them, such as 0.3,0.5") from error


def carry_out(run: Run, output: Path, *, jobs: int, json: bool, track: str | None = None) -> None:
    """Do what is left of a run, and show and write its tables."""
    from tintformer.experiments.processes import group
    from tintformer.experiments.records import Store
    from tintformer.experiments.work import workers

    processes = group()
    # Opens models and data: what is wrong with them, anywhere, is told before anything is written.
    total, *_ = processes.exchange(run.num_units(), {"run": run.name})
    with (
        counted(total, shown=processes.leads) as bar,
        tracking(track if processes.leads else None, run, output) as tracker,
        workers(Store(output / "records"), jobs=jobs, progress=both(bar, tracker.count), group=processes) as crew,
    ):
        if processes.leads:
            run.save(output)
        results = run.results(crew, tracker.log)
    if processes.leads:
        show(run, results, output, json=json)


def show(run: Run, results: Sequence[Sequence[Any]], output: Path, *, json: bool) -> None:
    """Write the tables of a run, and print the first of them, which is narrow enough, or everything as JSON."""
    from tintformer.experiments.runs import save_results

    tables = run.tables(results)
    paths = save_results(run, results, output)
    if json:
        found = [[asdict(result) for result in each] for each in results]
        print_json({"run": run.name, "results": found, "tables": [asdict(table) for table in tables]})
        return
    print_table(tables[0].rows, title=tables[0].title)
    print(f"wrote {', '.join(path.name for path in paths)} into {output}")


def both(*listeners: Progress) -> Progress:
    """One that tells all of them."""

    def progress(count: int) -> None:
        for each in listeners:
            each(count)

    return progress


@contextmanager
def counted(total: int, *, shown: bool) -> Generator[Progress]:
    """A bar with the time that is left, by the number of units."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns: tuple[Any, ...] = (TextColumn("units"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task("units", total=total)
        yield lambda count: bar.advance(task, count)
