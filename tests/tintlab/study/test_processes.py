# pyright: basic
"""Runs under torchrun and accelerate launch: two processes give what one gives, also after one of them was killed."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from patience import PATIENCE
from praise import save_task
from test_runner import Doubling
from typer.testing import CliRunner

from tintformer.bundled import read_text
from tintformer.cli.app import app
from tintformer.errors import InputError, TintError
from tintlab.cli.evaluate.eval_run import threads_of
from tintlab.study.runner import ProcessGroup, Runner, fail_together, process_group, unit_identity
from tintlab.study.store import RecordStore

TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
ACCELERATE = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
"""Its name for several processes, with or without GPUs: `--cpu` starts one."""
RATES = ["--learning-rate", "1e-4,5e-4", "--methods", "auxiliary,tint"]
ICL = ["--shots", "4", "--loss", "label", "--seeds", "0,1", "--tests", "50", "--tuning", "10", *RATES]
LM = ["--length", "64", "--blocks", "24", "--tuning", "8", "--shares", "0.5", *RATES]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, a task, and what one process makes of them."""
    place = tmp_path_factory.mktemp("place")
    text = "\n".join(read_text(name) for name in ("visit", "address")) + "\n"
    (place / "texts.txt").write_text(3 * text, encoding="utf-8")
    save_task(place / "praise")
    for words in (language(place, "one-lm"), classification(place, "one-icl")):
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    return place


def language(place: Path, output: str) -> list[str]:
    return ["eval", "lm", "nano-llama", str(place / "texts.txt"), *LM, "-o", str(place / output)]


def classification(place: Path, output: str) -> list[str]:
    return ["eval", "icl", "nano-llama", str(place / "praise" / "praise.yaml"), *ICL, "-o", str(place / output)]


def launched(launcher: list[str], *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def script(place: Path) -> str:
    """`tint` that says who it is; `{rank}` in its words is its rank, as if each were on a machine of its own."""
    path = place / "ranked.py"
    path.write_text(
        "import os, sys; from pathlib import Path; from tintformer.cli import main\n"
        "rank = os.environ['RANK']\n"
        "Path(__file__).with_name(f'pid-{rank}').write_text(str(os.getpid()))\n"
        "sys.argv = ['tint', *(word.replace('{rank}', rank) for word in sys.argv[1:])]\n"
        "main()\n"
    )
    return str(path)


@pytest.mark.sweep
def test_two_processes_on_one_disk_give_the_same_files(place: Path) -> None:
    words = [*classification(place, "two-icl"), "--track", "tensorboard"]
    code, out, err = ended(launched(ACCELERATE, script(place), *words))
    assert code == 0, err
    assert (place / "pid-0").read_text() != (place / "pid-1").read_text()
    assert out.count("the model as it is") == 2  # plain and calibrated: one process prints
    told = [line for line in err.splitlines() if line.startswith("tint:")]
    assert all(" units (" in line for line in told), err  # nothing but how far a slow machine has come
    assert len(list((place / "two-icl").glob("tracking/*/events.*"))) == 1  # and one tracks
    written = {name: each for name, each in files(place / "two-icl").items() if not name.startswith("tracking")}
    assert written == files(place / "one-icl")


@pytest.mark.sweep
def test_a_killed_worker_without_a_common_disk_costs_only_what_it_was_doing(place: Path) -> None:
    words = [script(place), *language(place, "disk-{rank}")]
    first, second = place / "disk-0", place / "disk-1"
    process = launched(TORCHRUN, *words)
    while process.poll() is None and len(list(second.glob("records/*/*.json"))) < 3:
        time.sleep(0.01)
    os.kill(int((place / "pid-1").read_text()), signal.SIGKILL)
    code, out, err = ended(process)
    whole = files(place / "one-lm")
    kept = {
        path: path.stat().st_mtime_ns for path in (*first.glob("records/*/*.json"), *second.glob("records/*/*.json"))
    }
    assert code != 0 and not out and err.count("tint:") <= 1  # the launcher may end the other before it can say it
    assert 3 <= len({path.name for path in kept}) < sum(name.startswith("records") for name in whole)
    assert not list(first.glob("*.md"))

    code, out, err = ended(launched(TORCHRUN, *words))
    assert code == 0, err
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    assert files(first) == whole
    assert files(second) == {name: content for name, content in whole.items() if name.startswith("records")}


@pytest.mark.slow
@pytest.mark.sweep
def test_an_error_in_one_process_is_one_line_and_the_end_of_all(place: Path) -> None:
    words = language(place, "nothing-{rank}")
    words[3] = str(place / "texts-{rank}.txt")
    (place / "texts-0.txt").write_bytes((place / "texts.txt").read_bytes())
    code, out, err = ended(launched(TORCHRUN, script(place), *words))
    said = [line for line in err.splitlines() if line.startswith("tint:")]
    assert code != 0 and not out and len(said) == 1
    assert "rank 1, on " in said[0] and "texts-1.txt' is unknown" in said[0]
    assert "tintformer" not in err.replace("ranked.py", "").partition(said[0])[0]  # no traceback of ours
    assert not list(place.glob("nothing-*"))


class Threads(ProcessGroup):
    """Ranks that are threads of this process, and meet at a barrier instead of by gloo."""

    def __init__(self, rank: int, size: int, table: list[Any], barrier: Barrier):
        super().__init__(rank, size)
        self.table, self.barrier = table, barrier

    def _gather(self, mine: Any) -> list[Any]:
        self.table[self.rank] = mine
        self.barrier.wait(PATIENCE)
        told = list(self.table)
        self.barrier.wait(PATIENCE)
        return told


def ranks(do: Callable[[ProcessGroup], Any], size: int = 3) -> list[Any]:
    """What comes out of each rank: a value or an error."""
    table, barrier = [None] * size, Barrier(size)

    def run(rank: int) -> Any:
        try:
            processes = Threads(rank, size, table, barrier)
            with fail_together(processes):
                return do(processes)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


@pytest.mark.parametrize("common", [True, False])
def test_every_rank_ends_up_with_all_records_and_nothing_is_done_twice(tmp_path: Path, common: bool) -> None:
    experiment = Doubling(tmp_path)
    stores = [RecordStore(tmp_path / ("records" if common else f"records-{rank}")) for rank in range(3)]
    for store, number in zip(stores, (5, 6, 5), strict=True):  # as if an earlier run had been stopped
        store.save(unit_identity(experiment, number), {"double": 2 * number, "exact": 0.1 + 0.2})

    def complete(group: ProcessGroup) -> list[int]:
        results = Runner(stores[group.rank], group=group).complete(experiment, [1, 2, 3, 4, 5, 6, 104, 7])
        return [each["double"] for each in results]

    assert ranks(complete) == [[2, 4, 6, 8, 10, 12, 8, 14]] * 3
    assert experiment.done() == [1, 2, 3, 4, 7]
    for store in stores:
        assert sorted(record.identity["number"] for record in store) == [1, 2, 3, 4, 5, 6, 7]
    assert len({path.read_bytes() for path in tmp_path.glob("records*/*/*.json")}) == 7


def test_what_was_done_in_the_turn_of_an_error_is_kept(tmp_path: Path) -> None:
    experiment, store = Doubling(tmp_path, fails_at=5), RecordStore(tmp_path / "records")
    first, failed, third = ranks(lambda group: Runner(store, group=group).complete(experiment, [1, 2, 3, 4, 5, 6]))
    assert isinstance(failed, InputError) and str(failed) == "5 is unlucky"
    assert str(first) == str(third) == f"rank 1, on {platform.node()}: 5 is unlucky"
    assert experiment.done() == sorted(record.identity["number"] for record in store) == [1, 2, 3, 4, 6]


def test_ranks_that_do_something_else_are_told_apart(tmp_path: Path) -> None:
    def complete(group: ProcessGroup) -> Any:
        return Runner(RecordStore(tmp_path), group=group).complete(Doubling(tmp_path), [1, 2 + group.rank // 2])

    for error in ranks(complete):
        assert "rank 2, on" in str(error) and "differs from rank 0 in number; all" in str(error)
    early = ranks(lambda group: None if group.rank == 1 else complete(group))
    assert all(isinstance(each, InputError) and "rank 1, on" in str(each) for each in early)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError("blocks")])
def test_any_error_is_told_by_the_others_in_one_line(error: Exception) -> None:
    def fail(group: ProcessGroup) -> None:
        if group.rank == 0:
            raise error

    first, second, third = ranks(fail)
    assert first is error
    assert isinstance(second, TintError) and str(second) == str(third) and "\n" not in str(second)
    assert str(error.args[-1]) in str(second)


def test_processes_start_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tintlab.study.runner.process_group", lambda: ProcessGroup(0, 2))
    with pytest.raises(InputError, match="started 2 processes, each of which would start --jobs 3"):
        threads_of(3)


def test_a_launcher_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    process_group.cache_clear()
    with pytest.raises(InputError, match="WORLD_SIZE=2 but the other processes cannot be met"):
        CliRunner().invoke(app, language(tmp_path, "x"), catch_exceptions=False)
    assert not (tmp_path / "x").exists()
