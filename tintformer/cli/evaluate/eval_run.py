"""What the experiments' commands do: start, run what is left with a progress bar, show and write the tables."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tintformer.cli.evaluate.tracking import check_tracker, tracking
from tintformer.cli.rule_setup import quiet_libraries, warnings_as_lines
from tintformer.console import print_json, print_table, say
from tintformer.errors import InputError, TintError

if TYPE_CHECKING:
    from tintformer.experiments.runner import ProcessGroup, UnitProgress
    from tintformer.experiments.runs import Run


@contextmanager
def started(track: str | None = None) -> Generator[ProcessGroup]:
    """What every experiment's command begins with: quiet libraries, warnings of one line, and the launcher's processes.

    Of several processes the first says what there is to say, also to the tracker.
    """
    from tintformer.experiments.runner import fail_together, process_group

    quiet_libraries()
    processes = process_group()

    def of_all_processes(messages: list[str]) -> list[str]:
        everybody = processes.exchange(messages, {"warnings": "told"})
        return [message for each in everybody for message in each] if processes.is_first else []

    try:
        with fail_together(processes), warnings_as_lines(of_all_processes):
            if processes.is_first:
                check_tracker(track)
            yield processes
    except (TintError, OSError) as error:
        if processes.is_first:
            raise
        processes.wait_for_first()
        raise typer.Exit(2) from error


def threads_of(jobs: int) -> int:
    """The cores, divided among the processes; those of other machines take as many threads as the first one."""
    import torch

    from tintformer.experiments.runner import process_group

    processes = process_group()
    if jobs > 1 and processes.size > 1:
        raise InputError(
            f"a launcher has started {processes.size} processes, each of which would start --jobs {jobs}; leave --jobs "
            "out, and have it start more"
        )
    return processes.exchange(max(1, torch.get_num_threads() // jobs), {"threads": "counted"})[0]


def carry_out(run: Run, output: Path, *, jobs: int, json: bool, track: str | None = None) -> None:
    """Do what is left of a run, and show and write its tables."""
    from tintformer.experiments.record_store import RecordStore
    from tintformer.experiments.runner import Runner, process_group
    from tintformer.experiments.tuning import num_units, run_experiment

    processes = process_group()
    run.check_directory(output)
    # Opens models and data: what is wrong with them, anywhere, is told before anything is written.
    total, *_ = processes.exchange(sum(map(num_units, run.experiments)), {"run": run.name})
    with (
        progress_bar(total, shown=processes.is_first) as advance,
        tracking(track if processes.is_first else None, run, output) as tracker,
    ):

        def progress(count: int) -> None:
            advance(count)
            tracker.count(count)

        with Runner(RecordStore(output / "records"), jobs=jobs, progress=progress, group=processes) as runner:
            if processes.is_first:
                run.save(output)
            results: list[list[Any]] = []
            for experiment in run.experiments:
                results.append(run_experiment(experiment, runner))
                tracker.log_results(run, experiment, results[-1])
    if processes.is_first:
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
    say(f"wrote {', '.join(path.name for path in paths)} into {output}")


@contextmanager
def progress_bar(total: int, *, shown: bool) -> Generator[UnitProgress]:
    """A bar with the time that is left, by the number of units."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns: tuple[Any, ...] = (TextColumn("units"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task("units", total=total)
        yield lambda count: bar.advance(task, count)
