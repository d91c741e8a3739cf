# pyright: basic
"""The run: kinds in turn, a state on disk that says what is done, findings in directories, and a table."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing.guard import Report, run_forked
from fuzzing.kinds import Kind

CASES_OF_A_SEED = 10**7
"""A run with seed 3 has the cases 30000000, 30000001, ... of every kind; each can be repeated by that number alone."""
TURN = 2.0
"""Seconds that one kind has before it is another's turn: dear and cheap cases share the time."""
COMMAND = "python tests/fuzz.py repeat"


@dataclass
class Tally:
    """What is done of one kind."""

    done: int = 0
    findings: list[int] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, int] = (0.0, -1)
    """Seconds of CPU time, and the case."""
    largest: tuple[int, int] = (0, -1)
    """Bytes of memory, and the case."""

    def add(self, report: Report) -> None:
        self.done += 1
        self.outcomes[report.outcome if report.finding is None else "finding"] += 1
        if report.finding is not None:
            self.findings.append(report.seed)
        self.slowest = max(self.slowest, (report.cpu, report.seed))
        self.largest = max(self.largest, (report.memory, report.seed))


class Run:
    """A run in a directory of its own; the same again goes on where it was."""

    def __init__(self, directory: Path, seed: int, kinds: Sequence[Kind]):
        self.directory, self.seed, self.kinds = directory, seed, kinds
        self.tallies = {kind.name: Tally() for kind in kinds}
        self.state = directory / "state.json"
        if self.state.exists():
            for name, found in json.loads(self.state.read_text())["kinds"].items():
                self.tallies[name] = _tally(found)

    def go(self, until: Callable[[Tally], bool]) -> None:
        """Groups of cases of each kind in turn, until a kind has had its share or all have."""
        prepared = set[str]()
        sandbox = self.directory / "sandbox"
        shutil.rmtree(sandbox, ignore_errors=True)  # of a case that was killed, which is done again
        sandbox.mkdir(parents=True)
        active = list(self.kinds)
        while active:
            for kind in list(active):
                if kind.name not in prepared:
                    kind.prepare()
                    prepared.add(kind.name)
                    gc.collect()
                turn = time.monotonic() + TURN
                while not (over := until(self.tallies[kind.name])) and time.monotonic() < turn:
                    self._run_group(kind, sandbox)
                if over:
                    active.remove(kind)
        shutil.rmtree(sandbox)

    def _run_group(self, kind: Kind, sandbox: Path) -> None:
        first = self.seed * CASES_OF_A_SEED + self.tallies[kind.name].done
        # To the end of a group of cases that share a model, wherever it was interrupted.
        seeds = range(first, first + kind.group - first % kind.group)
        for report in run_forked(kind, seeds, sandbox):
            self._keep(kind, report, sandbox / f"{kind.name}-{report.seed}")

    def _keep(self, kind: Kind, report: Report, folder: Path) -> None:
        if report.finding is not None:
            target = self.directory / "findings" / folder.name
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            if folder.exists():
                folder.rename(target)
            target.mkdir(exist_ok=True)
            (target / "finding.txt").write_text(
                f"{COMMAND} {kind.name} {report.seed}\n\n{report.finding}\n", errors="replace"
            )
            print(f"finding: {COMMAND} {kind.name} {report.seed}: {_last_line(report.finding)}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        self.tallies[kind.name].add(report)
        self._save()

    def _save(self) -> None:
        kinds = {name: vars(tally) for name, tally in self.tallies.items()}
        temporary = self.state.with_suffix(".new")
        temporary.write_text(json.dumps({"seed": self.seed, "kinds": kinds}))
        os.replace(temporary, self.state)

    @property
    def num_findings(self) -> int:
        return sum(len(tally.findings) for tally in self.tallies.values())

    def table(self) -> str:
        rows = ["| kind | cases | findings | slowest, s | largest, MB | outcomes |", "|---|---|---|---|---|---|"]
        for name, tally in self.tallies.items():
            outcomes = ", ".join(f"{word} {count}" for word, count in tally.outcomes.most_common())
            slowest, largest = f"{tally.slowest[0]:.1f}", f"{tally.largest[0] / 2**20:.0f}"
            rows.append(f"| {name} | {tally.done} | {len(tally.findings)} | {slowest} | {largest} | {outcomes} |")
        done = sum(tally.done for tally in self.tallies.values())
        rows.append(f"| all | {done} | {self.num_findings} | | | |")
        return "\n".join(rows)

    def causes(self) -> str:
        """Findings that end in the same words, counted, with one case of each."""
        found = Counter[str]()
        example: dict[str, str] = {}
        for name, tally in self.tallies.items():
            for seed in tally.findings:
                text = (self.directory / "findings" / f"{name}-{seed}" / "finding.txt").read_text()
                words = f"{name}: {re.sub(r'[0-9]+', '#', _last_line(text))[:150]}"
                found[words] += 1
                example.setdefault(words, f"{COMMAND} {name} {seed}")
        return "\n".join(f"{count:5d}  {words}\n       {example[words]}" for words, count in found.most_common())


def for_minutes(minutes: float) -> Callable[[Tally], bool]:
    end = time.monotonic() + 60 * minutes
    return lambda tally: time.monotonic() >= end


def up_to(cases: int) -> Callable[[Tally], bool]:
    return lambda tally: tally.done >= cases


def repeat(kind: Kind, seed: int, directory: Path) -> Report:
    """One case again; its files stay in the directory."""
    kind.prepare()
    shutil.rmtree(directory, ignore_errors=True)
    (report,) = run_forked(kind, [seed], directory)
    return report


def require_linux() -> None:
    if not sys.platform.startswith("linux"):
        sys.exit("the attack forks and reads /proc, so it runs on Linux alone")


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def _tally(found: dict[str, Any]) -> Tally:
    return Tally(
        done=found["done"],
        findings=found["findings"],
        outcomes=Counter(found["outcomes"]),
        slowest=tuple(found["slowest"]),
        largest=tuple(found["largest"]),
    )
