# pyright: basic
"""Records: what was saved comes back, whatever else happens to the directory."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tintformer.errors import InputError, TintWarning
from tintlab.study import store as record_store
from tintlab.study.store import RecordStore, canonical, from_json, key_of, to_json

IDENTITY = {"model": "nano", "rule": {"learning_rate": 1e-4}, "seed": 0}
RESULT = {"loss": 3.25, "perplexity": math.inf, "predictions": [0, 1, 1], "note": "Zoë"}

WRITER = """
import sys
from tintlab.study.store import RecordStore, canonical, from_json, key_of, to_json
store, order = RecordStore(sys.argv[1]), range(int(sys.argv[2]))
for number in reversed(order) if sys.argv[3] == "down" else order:
    store.save({"number": number}, {"values": [number] * int(sys.argv[4])})
    print(number, flush=True)
"""


def path_of(store: RecordStore, identity: dict[str, Any] = IDENTITY) -> Path:
    key = key_of(identity)
    return store.directory / key[:2] / f"{key}.json"


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "records")
    assert store.find(IDENTITY) is None and list(store) == []
    assert not store.directory.exists()
    store.save(IDENTITY, RESULT | {"nan": math.nan, "down": -math.inf, "tuple": (1, 2)})
    found = RecordStore(tmp_path / "records").find(dict(reversed(IDENTITY.items())))
    assert found is not None and math.isnan(found.pop("nan"))
    assert found == RESULT | {"down": -math.inf, "tuple": [1, 2]}
    assert store.find(IDENTITY | {"seed": 1}) is None
    json.loads(path_of(store).read_text(), parse_constant=pytest.fail)  # strict JSON


def test_a_record_that_is_there_stays(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.save(IDENTITY, {"loss": 1.0})
    store.save(IDENTITY, {"loss": 2.0})
    assert store.find(IDENTITY) == {"loss": 1.0}


def test_all_records_by_key(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    for number in range(20):
        store.save({"number": number}, {"square": number**2})
    (tmp_path / "notes.json").write_text("not ours")
    (path_of(store, {"number": 0}).parent / ".leftover.json.1.tmp").write_text("{")
    found = list(store)
    assert [record.key for record in found] == sorted(record.key for record in found)
    assert sorted((r.identity["number"], r.result["square"]) for r in found) == [(n, n**2) for n in range(20)]
    assert all(record.key == key_of(record.identity) for record in found)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def alter(path: Path) -> None:
    path.write_text(path.read_text().replace("3.25", "3.26"))


def rename(path: Path) -> None:
    other = RecordStore(path.parent.parent / "other")
    other.save(IDENTITY | {"seed": 7}, RESULT)
    os.replace(path_of(other, IDENTITY | {"seed": 7}), path)


CORRUPTIONS: list[tuple[Callable[[Path], object], str]] = [
    (truncate, "is no JSON: it is truncated or damaged"),
    (lambda path: path.write_bytes(b""), "is no JSON"),
    (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is no JSON"),
    (lambda path: path.write_text("[1]"), "is no record: it must hold identity, result and checksum"),
    (lambda path: path.write_text('{"identity": {}, "result": {}}'), "is no record"),
    (lambda path: path.write_text('{"identity": {}, "result": {"$float": "x"}, "checksum": 1}'), "holds what no"),
    (alter, "has another checksum than its content"),
    (rename, "is the record of another identity than its name says"),
]


@pytest.mark.parametrize(("corrupt", "reason"), CORRUPTIONS)
def test_a_corrupted_record_is_set_aside_once_and_done_again(
    tmp_path: Path, corrupt: Callable[[Path], object], reason: str
) -> None:
    store = RecordStore(tmp_path)
    store.save(IDENTITY, RESULT)
    store.save({"other": 1}, {})
    corrupt(path_of(store))
    content = path_of(store).read_bytes()
    with pytest.warns(TintWarning, match=reason) as caught:
        assert store.find(IDENTITY) is None
    assert len(caught) == 1
    (aside,) = (tmp_path / "corrupt").iterdir()
    assert aside.read_bytes() == content and str(aside) in str(caught[0].message)
    assert store.find(IDENTITY) is None  # said once: a second warning would be an error here
    assert [record.identity for record in store] == [{"other": 1}]
    store.save(IDENTITY, RESULT)
    assert store.find(IDENTITY) == RESULT
    corrupt(path_of(store))
    with pytest.warns(TintWarning, match=reason):
        assert [record.identity for record in store] == [{"other": 1}]
    assert len(list((tmp_path / "corrupt").iterdir())) == 2


def test_saving_over_a_corrupted_record_repairs_it(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.save(IDENTITY, RESULT)
    truncate(path_of(store))
    with pytest.warns(TintWarning, match="is set aside"):
        store.save(IDENTITY, RESULT)
    assert store.find(IDENTITY) == RESULT


def test_a_good_record_that_another_process_has_just_written_is_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RecordStore(tmp_path)
    store.save(IDENTITY, RESULT)
    read, calls = record_store.read_record, []

    def late(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise ValueError("is what it was before the other process repaired it")
        return read(*arguments)

    monkeypatch.setattr(record_store, "read_record", late)
    assert store.find(IDENTITY) == RESULT
    assert store.find(IDENTITY) == RESULT and list((tmp_path / "corrupt").iterdir()) == []


def test_what_cannot_be_read_or_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot (read|write) .*directory"):
        RecordStore(tmp_path / "file").save(IDENTITY, RESULT)
    store = RecordStore(tmp_path)
    path_of(store).mkdir(parents=True)
    with pytest.raises(InputError, match=r"cannot read .*: Is a directory; make it readable or remove it"):
        store.find(IDENTITY)
    with pytest.raises(InputError, match=r"^result\.where is a PosixPath, which JSON cannot keep"):
        RecordStore(tmp_path / "new").save(IDENTITY, {"where": tmp_path})
    assert not (tmp_path / "new").exists()


def start(directory: Path, count: int, order: str, size: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(directory), str(count), order, str(size)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_several_processes_share_a_directory(tmp_path: Path) -> None:
    processes = [start(tmp_path, 150, order, 50) for order in ("up", "down", "up")]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    found = list(RecordStore(tmp_path))
    assert sorted(record.identity["number"] for record in found) == list(range(150))
    assert all(record.result == {"values": [record.identity["number"]] * 50} for record in found)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {f"{record.key}.json" for record in found}


def test_threads_share_a_record(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    threads = [threading.Thread(target=store.save, args=(IDENTITY, RESULT)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.find(IDENTITY) == RESULT and len(list(store)) == 1


KILLED = """
import os, pathlib, signal
moment = sys.argv[5]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Half:
    def __init__(self, file):
        self.file = file
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.file.close()
    def write(self, text):
        self.file.write(text[: len(text) // 2])
        self.file.flush()
        die()

opened, replaced = pathlib.Path.open, os.replace
if moment == "in the middle of the text":
    pathlib.Path.open = lambda path, *rest, **more: Half(opened(path, *rest, **more))
elif moment == "before the rename":
    os.replace = die
else:
    os.replace = lambda source, target: (replaced(source, target), die())
store.save({"number": -1}, {"values": ["last"]})
"""


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is POSIX's")
@pytest.mark.parametrize("moment", ["in the middle of the text", "before the rename", "after the rename"])
def test_a_kill_loses_at_most_the_record_in_flight(tmp_path: Path, moment: str) -> None:
    command = [sys.executable, "-c", WRITER + KILLED, str(tmp_path), "3", "up", "5", moment]
    killed = subprocess.run(command, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = list(tmp_path.rglob(".*.tmp"))
    assert len(left) == 1  # the kill was where it should be
    store = RecordStore(tmp_path)  # a half record would be reported, and a warning is an error
    numbers = sorted(record.identity["number"] for record in store)
    assert numbers == ([-1, 0, 1, 2] if moment == "after the rename" else [0, 1, 2])
    store.save({"number": -1}, {"values": ["last"]})
    assert store.find({"number": -1}) == {"values": ["last"]} and len(list(store)) == 4
    assert not list(tmp_path.rglob("*.tmp"))  # what the killed process left is gone with the next save


KEYS = st.text().filter(lambda key: key != "$float")  # the one key that is refused
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(VALUES)
def test_every_value_survives_strict_json(value: Any) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = json.dumps(to_json(value), allow_nan=False)
    assert same(from_json(json.loads(text, parse_constant=refuse)), value)


@given(st.dictionaries(KEYS, VALUES))
def test_a_key_knows_no_order(value: dict[str, Any]) -> None:
    assert key_of(value) == key_of(dict(reversed(value.items())))
    assert key_of(value | {"seed": 1}) != key_of(value | {"seed": 2})


def test_what_json_would_change_is_refused_with_its_place() -> None:
    assert canonical({"b": (1, 2.5), "a": math.inf}) == '{"a":{"$float":"inf"},"b":[1,2.5]}'
    with pytest.raises(InputError, match=r"^rule\.rates\[1\] is a Tensor, which JSON cannot keep; make it a number"):
        to_json({"rule": {"rates": [1.0, torch.ones(1)]}})
    with pytest.raises(InputError, match=r"^by_layer has the key 3; keys are strings"):
        to_json({"by_layer": {3: 1.0}})
    with pytest.raises(InputError, match=r"keys are strings other than '\$float'"):
        to_json({"$float": "inf"})
