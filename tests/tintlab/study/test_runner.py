# pyright: basic
"""Units of work: done once, kept, shared out, and what is left of them after an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cases import some
from patience import PATIENCE

from tintformer.errors import InputError
from tintlab.study.runner import Runner
from tintlab.study.store import RecordStore


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
def test_results_are_in_order_and_nothing_is_done_twice(tmp_path: Path, jobs: int) -> None:
    experiment, counts = Doubling(tmp_path), []
    with Runner(RecordStore(tmp_path / "records"), jobs=jobs, progress=counts.append) as runner:
        first = runner.complete(experiment, [3, 1, 2])
        again = runner.complete(experiment, [2, 3, 103, 4])
    assert [each["double"] for each in first] == [6, 2, 4]
    assert [each["double"] for each in again] == [4, 6, 6, 8]
    assert experiment.done() == [1, 2, 3, 4]
    assert sum(counts) == 7
    assert first[0]["exact"] == 0.1 + 0.2


@pytest.mark.parametrize("jobs", some([1, 2]))
def test_units_of_one_identity_are_done_once(tmp_path: Path, jobs: int) -> None:
    experiment = Doubling(tmp_path)
    with Runner(RecordStore(tmp_path / "records"), jobs=jobs) as runner:
        assert [each["double"] for each in runner.complete(experiment, [7, 107, 8, 207])] == [14, 14, 16, 14]
    assert experiment.done() == [7, 8]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_keeps_what_was_done_before(tmp_path: Path, jobs: int) -> None:
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


def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys; from pathlib import Path\n"
        f"sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:3]]}\n"
        "from test_runner import RecordStore, Runner, Sleeping\n"
        "if __name__ == '__main__':\n"
        "    with Runner(RecordStore(Path(sys.argv[1]) / 'records'), jobs=2) as runner:\n"
        "        runner.complete(Sleeping(Path(sys.argv[1])), [1, 2])\n"
    )
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path)])
    while parent.poll() is None and len(list(tmp_path.glob("pid-*"))) < 2:
        time.sleep(0.05)
    pids = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + PATIENCE / 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def alive(pid: int) -> bool:
    """A process that has ended but was not waited for by its new parent does not count."""
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def parent_of(tmp_path: Path) -> subprocess.Popen[str]:
    """A command with two processes at work, in a process group of its own, as a terminal starts one."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys; from pathlib import Path\n"
        f"sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:3]]}\n"
        "from test_runner import Doubling, RecordStore, Runner, Sleeping\n"
        "import tintformer.cli, tintformer.cli.app\n"
        "def work():\n"
        "    folder = Path(sys.argv[1])\n"
        "    with Runner(RecordStore(folder / 'records'), jobs=2) as runner:\n"
        "        runner.complete(Doubling(folder), [11, 12, 13])\n"
        "        runner.complete(Sleeping(folder), [1, 2, 3])\n"
        "if __name__ == '__main__':\n"
        "    tintformer.cli.app.app = work\n"
        "    tintformer.cli.main()\n"
    )
    command = [sys.executable, str(script), str(tmp_path)]
    parent = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heed_interrupts,
    )
    while parent.poll() is None and len(list(tmp_path.glob("pid-*"))) < 2:
        time.sleep(0.05)
    return parent


def _heed_interrupts() -> None:
    """A shell starts what runs in its background with interrupts ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def pids_in(tmp_path: Path) -> list[int]:
    return [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]


@pytest.mark.parametrize("whole_group", some([True, False]))
def test_an_interrupt_ends_all_processes_without_a_word(tmp_path: Path, whole_group: bool) -> None:
    parent = parent_of(tmp_path)
    assert len(pids_in(tmp_path)) == 2
    os.killpg(parent.pid, signal.SIGINT) if whole_group else os.kill(parent.pid, signal.SIGINT)
    out, err = parent.communicate(timeout=PATIENCE / 10)  # units in flight take longer
    assert (parent.returncode, out, err) == (130, "", "")
    assert not any(map(alive, pids_in(tmp_path)))
    assert len(list(RecordStore(tmp_path / "records"))) == 3


def test_an_interrupt_while_processes_start_is_silent_too(tmp_path: Path) -> None:
    script = tmp_path / "starting.py"
    script.write_text(
        "import os, signal, sys, threading, time; from pathlib import Path\n"
        f"sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:3]]}\n"
        "from test_runner import RecordStore, Runner, Sleeping\n"
        "import tintformer.cli, tintformer.cli.app\n"
        "def work():\n"
        "    with Runner(RecordStore(Path(sys.argv[1])), jobs=2) as runner:\n"
        "        threading.Timer(0.2, lambda: os.killpg(0, signal.SIGINT)).start()\n"
        "        runner.complete(Sleeping(Path(sys.argv[1])), [1, 2])\n"
        "if __name__ == '__main__':\n"
        "    tintformer.cli.app.app = work\n"
        "    tintformer.cli.main()\n"
    )
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, start_new_session=True, timeout=PATIENCE, preexec_fn=_heed_interrupts
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.sweep
def test_a_killed_process_is_one_line_and_costs_only_its_unit(tmp_path: Path) -> None:
    parent = parent_of(tmp_path)
    os.kill(pids_in(tmp_path)[0], signal.SIGKILL)
    out, err = parent.communicate(timeout=PATIENCE)
    assert parent.returncode == 2 and not out
    assert err.startswith("tint: one of the 2 processes of this run was killed") and err.count("\n") == 1
    assert len(list(RecordStore(tmp_path / "records"))) == 3
