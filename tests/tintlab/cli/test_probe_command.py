# pyright: basic
"""`tint probe`: tables, files and JSON; what is done is kept; bad files end in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import TEXT, save_model

from tintlab.kinds.context_probe import ContextProbe

Run = Callable[..., str]
PROBES = '{"prompt": "The keeper of the lamp is Ada."}\n{"prompt": "The lamp is", "labels": ["red", "blue"]}\n'


@pytest.fixture
def tint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in a folder with a model, in this process; what it prints, or its one line of an error."""
    from tintformer.cli import main

    save_model(tmp_path / "model")
    (tmp_path / "mine.txt").write_text(TEXT[:120], encoding="utf-8")
    (tmp_path / "probes.jsonl").write_text(PROBES, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["tint", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == (2 if printed.err.startswith("tint: ") else 0), printed.err
        return printed.err or printed.out

    return run


def test_files_of_ones_own_are_probed_and_kept(tint: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("probe", "model", "--context", "mine.txt", "--probes", "probes.jsonl", "--quick", "--steps", "1,2")
    words = (*words, "--learning-rate", "0.01")
    printed = tint(*words)
    assert "loss of unrelated texts" in printed and "probability moved" in printed and "mine" in printed
    assert "wrote probe-model-quick.csv, probe-model-quick.md, probe-model-quick.png into tint-probe" in printed
    page = (tmp_path / "tint-probe" / "probe-model-quick.md").read_text(encoding="utf-8")
    assert page.count("over control") == 3 and "innocuous (2), mine (1); 1 texts" in page
    # Everything has a record by now.
    monkeypatch.setattr(ContextProbe, "run", lambda *_: pytest.fail("a unit is done again"))
    record = json.loads(tint(*words, "--json"))
    assert (record["texts"], record["questions"], record["control"]) == (1, 1, "innocuous")
    rows = [row for row in record["rows"] if row["contexts"] == "mine"]
    assert [(row["after"], row["steps"]) for row in rows] == [
        ("reading", None),
        ("learning", 1),
        ("both", 1),
        ("learning", 2),
        ("both", 2),
    ]
    assert all(row["text_loss_low"] <= row["text_loss"] <= row["text_loss_high"] for row in rows)
    assert record["demonstrations"] == [] and len(record["files"]) == 3


def test_bad_files_end_in_one_line(tint: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "It is", "labels": ["yes"]}\n', encoding="utf-8")
    (tmp_path / "binary.txt").write_bytes(b"\0\1\2")
    for words, message in {
        ("--context", "none.txt"): "cannot read none.txt",
        ("--context", "binary.txt"): "is a binary file",
        ("--probes", "bad.jsonl"): "bad.jsonl line 1: labels is ['yes']; give two words at least",
        ("--probes", "none.jsonl"): "cannot read none.jsonl",
        ("--context", "mine.txt", "--probes", "mine.txt"): "mine.txt is no data file",
        ("--jobs", "2", "--device", "cpu"): "--jobs and --device do not go together",
        ("--learning-rate", "fast"): "must be numbers",
        ("--steps", "one"): "must be whole numbers",
    }.items():
        line = tint("probe", "model", *words)
        assert line.count("\n") == 1 and message in line, line
    assert not (tmp_path / "tint-probe").exists()
