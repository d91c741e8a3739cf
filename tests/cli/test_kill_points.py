# pyright: basic
"""Every command and save that writes, struck by kills, interrupts and full disks: `kills`, on the table `writers`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import forked
import kills
import pytest
from all_commands import all_commands
from writers import READERS, WRITERS, import_libraries

SHORT = [
    *("reads: run", "reads: plan", "reads: audit", "reads: fetch"),
    *("adapt", "report", "sweep", "fetch", "load: GGUF", "RecordStore.save"),
]
"""What is struck in every run of the tests; the sweep does all."""

linux = pytest.mark.skipif(sys.platform != "linux", reason="what a process touches is found out through /proc")


def test_every_command_is_in_the_table() -> None:
    known = {writer.name for writer in WRITERS} | set(READERS)
    missing = set(all_commands()) - known
    assert not missing, f"add {missing} to WRITERS or READERS of tests/writers.py"


def strike(folder: Path, limit: int | None, *names: str) -> None:
    import_libraries()
    done = forked.call(lambda: kills.main(folder, limit, list(names)))
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert {result["writer"] for result in results} == set(names)
    failures = {result["writer"]: result["failures"] for result in results if result["failures"]}
    assert not failures, json.dumps(failures, indent=1)


@linux
def test_old_or_new_stands_after_a_sample_of_faults(tmp_path: Path) -> None:
    strike(tmp_path, 2, *SHORT)


@linux
@pytest.mark.sweep
@pytest.mark.parametrize("name", [*(writer.name for writer in WRITERS), *(f"reads: {name}" for name in READERS)])
def test_old_or_new_stands_after_every_fault(tmp_path: Path, name: str) -> None:
    strike(tmp_path, None, name)
