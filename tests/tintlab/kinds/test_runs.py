# pyright: basic
"""Result directories that somebody else wrote: `tint eval table` writes inside of them, or says in one line why not."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from praise import save_task

from tintformer.cli import main
from tintlab.study.store import canonical as canonical_json
from tintlab.study.store import from_json, key_of, sha256

NAME = "icl"
HOSTILE = r"<script>x</script> | \input{/etc/passwd} $ & % _ ^^5c [a](http://b) \x1b"
"""As the title of a task; YAML makes an escape character of its end."""


def tint(*words: str | Path) -> Any:
    sys.argv = ["tint", *map(str, words)]
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a task whose title attacks tables, the terminal and figures."""
    place = tmp_path_factory.mktemp("place")
    task = save_task(place / "task")
    quoted = HOSTILE.replace("\\input", "\\\\input")
    task.write_text(task.read_text().replace("title: Praise", f'title: "{quoted}"'))
    before, sys.argv = sys.argv, []
    words = ["--tests", "4", "--seeds", "0", "--learning-rate", "1e-4,1e-3", "--tuning", "4"]
    methods = ["--methods", "auxiliary,tint", "--name", NAME]
    assert tint("eval", "icl", "nano-llama", task, *words, *methods, "-o", place / "above" / "out") == 0
    sys.argv = before
    return place / "above" / "out"


@pytest.fixture
def copy(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "argv", [])
    shutil.copytree(results, tmp_path / "above" / "out")
    for path in (tmp_path / "above" / "out").glob(f"{NAME}*"):
        path.unlink()
    return tmp_path / "above" / "out"


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("unrendered")
def test_titles_are_shown_and_not_obeyed(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tint("eval", "table", copy) == 0
    printed = capfd.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert (copy / f"{NAME}-accuracy.png").is_file() and (copy / f"{NAME}-rates.png").is_file()
    page = (copy / f"{NAME}.md").read_text(encoding="utf-8")
    assert "<script" not in page and "&lt;script&gt;" in page and "[a](" not in page.replace(r"\[a](", "")
    latex = (copy / f"{NAME}.tex").read_text(encoding="utf-8")
    assert r"\input" not in latex and r"\textbackslash{}input" in latex and "^^" not in latex
    for ending in ("md", "tex", "csv"):
        assert "\x1b" not in (copy / f"{NAME}.{ending}").read_text(encoding="utf-8")


def set_name(name: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda run: run.update(name=name)


def set_field(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda run: [experiment.update(fields) for experiment in run["experiments"]]


NO_RUN = "is no run of this version"
RUNS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a name that leads out": (set_name("../../x"), r"the name '\.\./\.\./x' is no name of a file \(it holds /\)"),
    "an absolute name": (set_name("/tmp/x"), "is no name of a file"),
    "a name of another directory": (set_name("records/x"), "is no name of a file"),
    "a name on Windows": (set_name("..\\x"), "is no name of a file"),
    "the parent": (set_name(".."), "is no name of a file"),
    "an empty name": (set_name(""), "is no name of a file"),
    "a zero byte": (set_name("a\0b"), NO_RUN),
    "an escape sequence": (set_name("\x1b[2J"), "is no name of a file"),
    "a long name": (set_name("x" * 300), "is no name of a file .it has more than 200 bytes"),
    "the name of another run": (set_name("another"), "name it as its file, or the file as it"),
    "a number as a name": (set_name(5), "name is 5"),
    "half a character": (set_name("\ud800"), "half a character"),
    "no experiments": (lambda run: run.update(experiments=[]), "it has no experiments"),
    "experiments of numbers": (lambda run: run.update(experiments=[1]), NO_RUN),
    "an unknown kind": (lambda run: run.update(kind=["lm"]), NO_RUN),
    "an unknown key": (lambda run: run.update(more=1), NO_RUN),
    "no truth": (lambda run: run.update(by_length="no"), "by_length is 'no'"),
    "a model of numbers": (set_field(model=[1]), r"model is \[1\]|model is \(1"),
    "a model with a zero byte": (set_field(model="a\0b"), "model is"),
    "a location of numbers": (set_field(location=5), NO_RUN),
    "methods of numbers": (set_field(methods=[1]), "methods is"),
    "no methods": (set_field(methods=[]), NO_RUN),
    "an infinite rate": (set_field(rates=[float("inf")]), "rates is"),
    "a truth as a number": (set_field(tests=True), "tests is True"),
    "a text as a number": (set_field(tests="4"), "tests is '4'"),
    "an unknown mode": (set_field(mode="double"), "mode is 'double'"),
    "an integer of many digits": (set_field(tests=10**4000), "integer of 4001 digits"),
}


@pytest.mark.parametrize("case", RUNS)
def test_hostile_runs(copy: Path, capfd: pytest.CaptureFixture[str], case: str) -> None:
    change, message = RUNS[case]
    path = copy / "runs" / f"{NAME}.json"
    run = json.loads(path.read_text())
    change(run)
    path.write_text(json.dumps(run))
    refuse(copy, capfd, message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"name": "\xff"}', "no UTF-8"),
        (b"null", NO_RUN),
        (b"[]", NO_RUN),
        (b"5", NO_RUN),
        (b"", NO_RUN),
        (b'{"kind": "lm"}', NO_RUN),
    ],
)
def test_what_is_no_run_at_all(copy: Path, capfd: pytest.CaptureFixture[str], data: bytes, message: str) -> None:
    (copy / "runs" / f"{NAME}.json").write_bytes(data)
    refuse(copy, capfd, message)


def refuse(directory: Path, capfd: pytest.CaptureFixture[str], message: str) -> None:
    before = files(directory.parent.parent)
    capfd.readouterr()
    assert tint("eval", "table", directory) == 2
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and len(printed.err) < 800, printed.err
    assert re.search(message, printed.err), printed.err
    assert files(directory.parent.parent) == before


@pytest.mark.parametrize("result", [{}, {"scores": "x"}, {"scores": [[1e308]]}, {"deep": {"$float": "1e999"}}])
def test_hostile_records(copy: Path, capfd: pytest.CaptureFixture[str], result: dict[str, Any]) -> None:
    """A record whose checksum is right, and whose result is not what its unit gives."""
    path = next((copy / "records").glob("[0-9a-f][0-9a-f]/*.json"))
    record = json.loads(path.read_text())
    identity = from_json(record["identity"])
    record |= {"result": result, "checksum": sha256(canonical_json([identity, from_json(result)]))}
    assert key_of(identity) == path.stem
    path.write_text(json.dumps(record))
    refuse(copy, capfd, "a record in .* holds no result of its unit .*; remove it")


@pytest.mark.parametrize(
    "data", [b"[" * 900 + b"]" * 900, b"[" * 100_000, b'{"identity": ' + b"9" * 5000 + b"}", b"\xff"]
)
def test_damaged_records_are_set_aside(copy: Path, capfd: pytest.CaptureFixture[str], data: bytes) -> None:
    path = next((copy / "records").glob("[0-9a-f][0-9a-f]/*.json"))
    path.write_bytes(data)
    assert tint("eval", "table", copy) == 2
    printed = capfd.readouterr().err
    assert printed.count("\n") == 1 and "lacks records of this run" in printed
    assert [kept.read_bytes() for kept in (copy / "records" / "corrupt").iterdir()] == [data]


@pytest.mark.parametrize("key", ["model", "task"])
def test_a_run_that_names_the_hub_asks_nobody(
    copy: Path, key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(*args: Any, **keywords: Any) -> Any:
        raise AssertionError("somebody was asked")

    path = copy / "runs" / f"{NAME}.json"
    run = json.loads(path.read_text())
    for experiment in run["experiments"]:
        experiment[key] = "sst2" if key == "task" else "somebody/some-model"
    path.write_text(json.dumps(run))
    monkeypatch.setattr("socket.socket.connect", connect)
    monkeypatch.setattr("socket.getaddrinfo", connect)
    assert tint("eval", "table", copy) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "tint:" in said
