"""What the experiments' commands do: start, run what is left and say how far it is, show and write the tables."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tintformer.cli.rule_setup import finite, quiet_libraries, warnings_as_lines
from tintformer.console import doing, print_json, print_table, say
from tintformer.errors import InputError, TintError
from tintlab.cli.evaluate.tracking import check_tracker, tracking

if TYPE_CHECKING:
    from tintlab.kinds.runs import Run
    from tintlab.study.progress import Workload
    from tintlab.study.runner import ProcessGroup, UnitProgress


@contextmanager
def started(track: str | None = None) -> Generator[ProcessGroup]:
    """What every experiment's command begins with: quiet libraries, warnings of one line, and the launcher's processes.

    Of several processes the first says what there is to say, also to the tracker.
    """
    from tintlab.study.runner import fail_together, process_group

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

    from tintlab.study.runner import process_group

    processes = process_group()
    if jobs > 1 and processes.size > 1:
        raise InputError(
            f"a launcher has started {processes.size} processes, each of which would start --jobs {jobs}; leave --jobs "
            "out, and have it start more"
        )
    return processes.exchange(max(1, torch.get_num_threads() // jobs), {"threads": "counted"})[0]


def carry_out(run: Run, output: Path, *, jobs: int, json: bool, track: str | None = None, audit: bool = False) -> bool:
    """Do what is left of a run, and show and write its tables; says whether an audit of it, if any, found no leak."""
    from tintlab.study.progress import Workload
    from tintlab.study.runner import Runner, process_group
    from tintlab.study.store import RecordStore
    from tintlab.study.tuning import expect_units, run_experiment

    processes, workload = process_group(), Workload()
    run.check_directory(output)
    for experiment in run.experiments:
        doing(f"opening {experiment.model} and its data")
        # Opens models and data: what is wrong with them, anywhere, is told before anything is written.
        expect_units(experiment, workload)
    processes.exchange(None, {"run": run.name})
    advance = told(workload)
    with tracking(track if processes.is_first else None, run, output) as tracker:

        def progress(count: int) -> None:
            advance(count)
            tracker.count(count)

        with Runner(RecordStore(output / "records"), jobs=jobs, progress=progress, group=processes) as runner:
            if processes.is_first:
                run.save(output)
            results: list[list[Any]] = []
            for experiment in run.experiments:
                results.append(run_experiment(experiment, runner, workload))
                tracker.log_results(run, experiment, results[-1])
    if not processes.is_first:
        return True
    audited = audit_run(run, results) if audit else {}
    show(run, results, output, json=json, audited=audited)
    return audited.get("passed", True)


def audit_run(run: Run, results: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """The certificates of a run as a record: a sample of its scores, by all methods at their chosen rates."""
    from tintlab.checks.audit.studies import audit_results

    found = audit_results(run.experiments, results, on_case=lambda name: doing(f"auditing {name}"))
    return {"run": run.name, **found.record()}


def check_audit(passed: bool) -> None:
    """End with exit code 1 if an audit found a leak."""
    if not passed:
        raise typer.Exit(1)


def told(workload: Workload) -> UnitProgress:
    """Counts units of a workload as they are finished, and says how far it is."""

    def advance(count: int) -> None:
        workload.count(count)
        doing(str(workload), workload.share)

    return advance


@contextmanager
def progress_bar(total: int, *, shown: bool) -> Generator[UnitProgress]:
    """The same for a number of units that is known, and that cost about as much as each other."""
    from tintlab.study.progress import Part, Workload

    workload, part = Workload(), Part(experiment=None, setting=None, method="")
    workload.expect(part, total)
    workload.begin(part, total)
    yield told(workload) if shown else lambda _: None


def show(
    run: Run, results: Sequence[Sequence[Any]], output: Path, *, json: bool, audited: dict[str, Any] | None = None
) -> None:
    """Write the tables of a run, and print the first of them, which is narrow enough, or everything as JSON."""
    from tintlab.kinds.runs import save_results

    tables = run.tables(results)
    paths = save_results(run, results, output, audited)
    if json:
        found = [[asdict(result) for result in each] for each in results]
        record = {"run": run.name, "results": found, "tables": [asdict(table) for table in tables]}
        record = {**record, "audit": audited} if audited else record
        # What could not be compared has no number, and JSON no word for that but null.
        print_json(without_nan(record) if run.kind == "compare" else record)
        return
    print_table(tables[0].rows, title=tables[0].title)
    for line in run.findings(results):
        say(line)
    if audited:
        _say_audit(audited)
    say(f"wrote {', '.join(path.name for path in paths)} into {output}")


def without_nan(value: Any) -> Any:
    """The same with null in place of all numbers that are not finite."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return finite(value) if isinstance(value, float) else value


def _say_audit(audited: dict[str, Any]) -> None:
    """The verdict of an audit, and what leaks."""
    certificates = audited["certificates"]
    for leak in audited["leaks"]:
        say(f"audit: LEAK: {leak}")
    for name in audited["diverged"]:
        say(f"audit: {name}: not audited, learning diverges")
    if audited["passed"] and certificates:
        tolerance = max(each["tolerance"] for each in certificates)
        say(f"audit: nothing leaks, {len(certificates)} samples, tolerance {tolerance:.3g} nats")
