# pyright: basic
"""Units of work: done once, kept, shared out, and what is left of them after an error."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import forked
import pytest
from patience import PATIENCE

from tintformer.errors import InputError
from tintlab.study.runner import Runner
from tintlab.study.store import RecordStore


# Elsewhere processes start from nothing, and import: no module that is heavy belongs above.
@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    forked.fork_workers(monkeypatch)


class Numbers:
    """What a runner asks of an experiment, besides its units."""

    kind: ClassVar[str] = "numbers"
    version: ClassVar[int] = 1
    dtype, threads, device_type = "float32", 1, "cpu"


@dataclass(frozen=True)
class Doubling(Numbers):
    """Units are numbers; each leaves a mark when it is done. Numbers that differ by 100 are the same work."""

    marks: Path
    fails_at: int | None = None

    def identity(self, unit: int) -> dict[str, Any]:
        return {"number": unit % 100}

    def run(self, unit: int) -> dict[str, Any]:
        if unit == self.fails_at:
            raise InputError(f"{unit} is unlucky")
        with (self.marks / "done").open("a") as file:
            file.write(f"{unit % 100}\n")
        return {"double": 2 * (unit % 100), "exact": 0.1 + 0.2}

    def done(self) -> list[int]:
        path = self.marks / "done"
        return sorted(map(int, path.read_text().split())) if path.exists() else []


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_are_in_order_and_nothing_is_done_twice(tmp_path: Path, jobs: int, forked_workers: None) -> None:
    experiment, counts = Doubling(tmp_path), []
    with Runner(RecordStore(tmp_path / "records"), jobs=jobs, progress=counts.append) as runner:
        first = runner.complete(experiment, [3, 1, 2])
        again = runner.complete(experiment, [2, 3, 103, 4])
    assert [each["double"] for each in first] == [6, 2, 4]
    assert [each["double"] for each in again] == [4, 6, 6, 8]
    assert experiment.done() == [1, 2, 3, 4]
    assert sum(counts) == 7
    assert first[0]["exact"] == 0.1 + 0.2


@pytest.mark.parametrize("jobs", [1, 2])
def test_units_of_one_identity_are_done_once(tmp_path: Path, jobs: int, forked_workers: None) -> None:
    experiment = Doubling(tmp_path)
    with Runner(RecordStore(tmp_path / "records"), jobs=jobs) as runner:
        assert [each["double"] for each in runner.complete(experiment, [7, 107, 8, 207])] == [14, 14, 16, 14]
    assert experiment.done() == [7, 8]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_keeps_what_was_done_before(tmp_path: Path, jobs: int, forked_workers: None) -> None:
    store = RecordStore(tmp_path / "records")
    with Runner(store, jobs=jobs) as runner, pytest.raises(InputError, match="3 is unlucky"):
        runner.complete(Doubling(tmp_path, fails_at=3), [1, 2, 3])
    kept = {record.identity["number"] for record in store}
    assert kept <= {1, 2} and (jobs > 1 or kept == {1, 2})
    with Runner(store) as runner:
        assert [each["double"] for each in runner.complete(Doubling(tmp_path), [1, 2, 3])] == [2, 4, 6]


def test_records_alone(tmp_path: Path) -> None:
    experiment = Doubling(tmp_path)
    lacking = pytest.raises(InputError, match="lacks records of this run")
    with Runner(RecordStore(tmp_path / "records"), only_records=True) as runner, lacking:
        runner.complete(experiment, [1])
    assert experiment.done() == []


@dataclass(frozen=True)
class Sleeping(Numbers):
    """Units that say who does them, and take long."""

    marks: Path

    def identity(self, unit: int) -> dict[str, Any]:
        return {"number": unit}

    def run(self, unit: int) -> dict[str, Any]:
        (self.marks / f"pid-{os.getpid()}").touch()
        time.sleep(PATIENCE)
        return {}


@forked.needs_fork
def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Processes that are started as a user's are: one that is forked would hold the pipe that tells it of the end."""

    def work() -> None:
        with Runner(RecordStore(tmp_path / "records"), jobs=2) as runner:
            runner.complete(Sleeping(tmp_path), [1, 2])

    parent = forked.Fork(work)
    pids = two_at_work(parent, tmp_path)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + PATIENCE / 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def two_at_work(parent: forked.Fork, tmp_path: Path) -> list[int]:
    """The two processes of a parent, once both have begun with a unit."""
    while parent.poll() is None and len(list(tmp_path.glob("pid-*"))) < 2:
        time.sleep(0.05)
    pids = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    assert len(pids) == 2
    return pids


def alive(pid: int) -> bool:
    """A process that has ended but was not waited for by its new parent does not count."""
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def command_of(work: Callable[[], None]) -> forked.Fork:
    """The command `tint`, which does this instead, in a process group of its own, as a terminal starts one."""
    import tintformer.cli
    import tintformer.cli.app

    def command() -> None:
        tintformer.cli.app.app = work  # pyright: ignore[reportAttributeAccessIssue]
        tintformer.cli.main()

    return forked.Fork(command, own_group=True)


def parent_of(tmp_path: Path) -> forked.Fork:
    """A command with two processes, each in the middle of a unit."""

    def work() -> None:
        with Runner(RecordStore(tmp_path / "records"), jobs=2) as runner:
            runner.complete(Doubling(tmp_path), [11, 12, 13])
            runner.complete(Sleeping(tmp_path), [1, 2, 3])

    return command_of(work)


@forked.needs_fork
@pytest.mark.parametrize("whole_group", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_an_interrupt_ends_all_processes_without_a_word(
    tmp_path: Path, whole_group: bool, forked_workers: None
) -> None:
    parent = parent_of(tmp_path)
    pids = two_at_work(parent, tmp_path)
    os.killpg(parent.pid, signal.SIGINT) if whole_group else os.kill(parent.pid, signal.SIGINT)
    out, err = parent.communicate(timeout=PATIENCE / 10)  # units in flight take longer
    assert (parent.returncode, out, err) == (130, "", "")
    assert not any(map(alive, pids))
    assert len(list(RecordStore(tmp_path / "records"))) == 3


@forked.needs_fork
def test_an_interrupt_while_processes_start_is_silent_too(tmp_path: Path) -> None:
    def work() -> None:
        with Runner(RecordStore(tmp_path), jobs=2) as runner:
            threading.Timer(0.2, lambda: os.killpg(0, signal.SIGINT)).start()
            runner.complete(Sleeping(tmp_path), [1, 2])

    parent = command_of(work)
    out, err = parent.communicate()
    assert (parent.returncode, out, err) == (130, "", "")


@pytest.mark.sweep
@forked.needs_fork
def test_a_killed_process_is_one_line_and_costs_only_its_unit(tmp_path: Path) -> None:
    parent = parent_of(tmp_path)
    os.kill(two_at_work(parent, tmp_path)[0], signal.SIGKILL)
    out, err = parent.communicate()
    assert parent.returncode == 2 and not out
    assert err.startswith("tint: one of the 2 processes of this run was killed") and err.count("\n") == 1
    assert len(list(RecordStore(tmp_path / "records"))) == 3
