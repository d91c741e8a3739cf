# pyright: basic
"""A plugin of pytest: what processor time each test file takes, children included; `make cost` loads it.

It writes processor_seconds.csv, where the other files keep their rows, and prints sums by folder. What a process takes
to start and to import the test files is in no row.
"""

from __future__ import annotations

import csv
import os
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from nearest import ROOT, TABLE, table

SECONDS: defaultdict[str, float] = defaultdict(float)
TESTS: Counter[str] = Counter()
KEY = "processor seconds"


def spent() -> float:
    """Return the user and system seconds of this process and of the children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Stopwatch:
    """Adds to every report (set-up, call, tear-down) what was spent since the one before: xdist passes it on."""

    before = 0.0

    def pytest_collection_finish(self) -> None:
        self.before = spent()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = spent()
        report.user_properties = [*report.user_properties, (KEY, now - self.before)]
        self.before = now
        return report


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Stopwatch())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    file = report.nodeid.partition("::")[0]
    SECONDS[file] += sum(float(str(value)) for key, value in report.user_properties if key == KEY)
    TESTS[file] += int(report.when == "setup")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the table and print the folders; only the process that all reports reach has a terminal."""
    rows = {path.as_posix(): row for path, row in table().items() if (ROOT / path).exists()}
    rows |= {name: (TESTS[name], seconds) for name, seconds in SECONDS.items()}
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("file", "tests", "seconds"))
        lines.writerows((name, tests, f"{seconds:.1f}") for name, (tests, seconds) in sorted(rows.items()))
    folders: defaultdict[str, float] = defaultdict(float)
    for name, seconds in SECONDS.items():
        folders[str(Path(name).parent)] += seconds
    terminalreporter.section(f"processor time, {sum(SECONDS.values()):.0f} s")
    for name, seconds in sorted(folders.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{seconds:8.1f} s  {name}")
