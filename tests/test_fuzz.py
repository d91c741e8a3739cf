# pyright: basic
"""The attack itself: it finds what it should, goes on where it was, and its short form finds nothing."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import get_args, get_type_hints

import forked
import pytest
from fuzzing.draws import draw_batch, draw_rule
from fuzzing.files import HOSTILE, kind_of_base
from fuzzing.guard import run_forked
from fuzzing.kinds import Finding, Kind
from fuzzing.numbers import NUMBERS, engines
from fuzzing.runner import CASES_OF_A_SEED, Run, up_to
from patience import PATIENCE

from tintformer.errors import LoadError
from tintformer.execution.batch import LearningMasks
from tintformer.learning.engine_registry import ENGINES
from tintformer.rule.learning_rule import LearningRule, Optimizer

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks and reads /proc: run it on Linux")
ROOT = Path(__file__).parent.parent


def _connect(place: Path) -> None:
    import socket

    with socket.socket() as opened:
        opened.connect(("127.0.0.1", 9))


def _import(place: Path) -> None:
    (place / "evil_module.py").write_text("x = 1\n")
    sys.path.insert(0, str(place))
    __import__("evil_module")


def _burn(place: Path) -> None:
    while True:
        pass


def _unpickle(place: Path) -> None:
    pickle.loads(pickle.dumps(Path))


def _raise(error: BaseException) -> Callable[[Path], None]:
    def act(place: Path) -> None:
        raise error

    return act


FORBIDDEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "an error of another library": (_raise(KeyError("base")), "KeyError: 'base'"),
    "an error that is no Exception": (_raise(BaseException("panic")), "panic"),
    "a message without end": (_raise(LoadError("x" * 10**5)), "an error of 100000 characters"),
    "no memory": (_raise(MemoryError()), "MemoryError"),
    "much memory": (lambda place: bytearray(3 * 2**28), r"took more than 0\.25 GB|took 0\.[78] GB"),
    "a crash": (lambda place: os.kill(os.getpid(), signal.SIGKILL), "ended by SIGKILL"),
    "an exit": (lambda place: os._exit(3), "exit code 3"),
    "much time": (_burn, "took more than 20 s"),
    "waiting": (lambda place: time.sleep(PATIENCE), "waits for ever"),
    "a connection": (_connect, "socket.connect"),
    "a command": (lambda place: os.system("true"), "os.system"),
    "a process": (lambda place: subprocess.run(["true"], check=False), "subprocess.Popen"),
    "a pickle": (_unpickle, "opened a pickle"),
    "an import": (_import, "imported evil_module from its directory"),
    "a file elsewhere": (lambda place: (place.parent.parent / "x").write_text(""), "outside of its directory"),
    "a removal elsewhere": (lambda place: (place.parent / "output.txt").unlink(), "os.remove .*outside"),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_what_must_not_happen_is_found(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act, message = FORBIDDEN[case]
    monkeypatch.setattr("fuzzing.guard.MAX_IDLE", 1.0)
    if case == "much memory":
        monkeypatch.setattr("fuzzing.guard.MAX_BYTES", 2**28)
    if case == "much time":
        monkeypatch.setattr("fuzzing.guard.MAX_CPU", 0.0)  # one second at least
        message = "took more than 0 s"

    def run(seed: int, place: Path) -> str:
        act(place)
        return "opens"

    (report,) = run_forked(Kind("case", run, guarded=True), [0], tmp_path)
    assert report.finding is not None
    assert re.search(message, report.finding), report.finding


def test_what_may_happen_is_no_finding(tmp_path: Path) -> None:
    def run(seed: int, place: Path) -> str:
        (place / "own").write_text(str(seed))
        if seed:
            raise LoadError("no model")
        return "opens"

    reports = list(run_forked(Kind("case", run, guarded=True), [0, 1], tmp_path))
    assert [(report.outcome, report.finding) for report in reports] == [("opens", None), ("refused", None)]


def _toy(log: Path, *, group: int = 3) -> Kind:
    """Writes down its cases; the fifth is a finding, and the seventh ends its process."""

    def run(seed: int, place: Path) -> str:
        with log.open("a") as file:
            file.write(f"{seed}\n")
        number = seed % CASES_OF_A_SEED
        if number == 5:
            raise Finding("the fifth")
        if number == 7:
            os._exit(1)
        return "same"

    return Kind("toy", run, group=group)


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for cases in (2, 4, 7, 12):
        Run(tmp_path / "run", 3, [_toy(log)]).go(up_to(cases))
    done = [int(line) - 3 * CASES_OF_A_SEED for line in log.read_text().split()]
    assert done == list(range(len(done))) and len(done) >= 12, "a case was left out or done twice"
    run = Run(tmp_path / "run", 3, [_toy(log)])
    assert run.tallies["toy"].findings == [3 * CASES_OF_A_SEED + 5, 3 * CASES_OF_A_SEED + 7]
    assert f"| toy | {len(done)} | 2 |" in run.table() and "the fifth" in run.causes()
    finding = tmp_path / "run" / "findings" / f"toy-{3 * CASES_OF_A_SEED + 5}" / "finding.txt"
    assert finding.read_text().startswith(f"python tests/fuzz.py repeat toy {3 * CASES_OF_A_SEED + 5}\n")


def test_a_killed_run_repeats_the_case_that_it_was_in_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    pid = os.fork()
    if pid == 0:
        try:
            Run(tmp_path / "run", 0, [_toy(log, group=1)]).go(lambda tally: False)
        finally:
            os._exit(0)
    while not (tmp_path / "run" / "state.json").exists():
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    done = json.loads((tmp_path / "run" / "state.json").read_text())["kinds"]["toy"]["done"]
    time.sleep(0.5)  # the case that was running ends by itself
    log.unlink()
    Run(tmp_path / "run", 0, [_toy(log, group=1)]).go(up_to(done + 2))
    assert [int(line) for line in log.read_text().split()] == [done, done + 1]


def test_every_knob_engine_and_mask_is_drawn() -> None:
    from cases import make_model

    rules = [draw_rule(Random(seed), 2, dense=True) for seed in range(150)]
    for field in fields(LearningRule):
        assert len({getattr(rule, field.name) for rule in rules}) > 1, f"{field.name} is always the same"
    assert {rule.optimizer for rule in rules} == set(get_args(Optimizer))
    drawn = [engine for seed, rule in enumerate(rules) for engine in engines(Random(seed), rule)]
    assert {engine["engine"] for engine in drawn} == ENGINES.keys() - {"oracle"}
    batches = [draw_batch(Random(seed), make_model("gpt2"), steps=2) for seed in range(50)]
    assert {key for batch in batches for key in batch} == {"input_ids", "train_mask", *get_type_hints(LearningMasks)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [*NUMBERS, *(kind_of_base(name, hostile.variants[0]) for name, hostile in HOSTILE.items())],
    ids=lambda kind: kind.name,
)
def test_a_case_of_a_kind_finds_nothing(kind: Kind, tmp_path: Path) -> None:
    kind.prepare()
    reports = list(run_forked(kind, [0], tmp_path))
    assert len(reports) == 1 and [report.finding for report in reports if report.finding] == []


@pytest.mark.sweep
def test_the_short_form_finds_nothing(tmp_path: Path) -> None:
    def attack() -> int:
        sys.argv = ["fuzz.py", "--cases", "1", "--seed", "0", "--output", str(tmp_path)]
        import fuzz  # sets variables

        return fuzz.main()

    done = forked.call(attack)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all |" in done.stdout


@pytest.mark.sweep
def test_a_case_is_repeated_by_its_kind_and_number(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "fuzz.py"), "--output", str(tmp_path)]
    for kind in ("continuation", "task"):
        done = subprocess.run(
            [*command, "repeat", kind, "3"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert (tmp_path / "repeat" / f"{kind}-3" / "case").is_dir()
