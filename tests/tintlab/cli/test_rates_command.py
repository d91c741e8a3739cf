# pyright: basic
"""`tint rates`: a prior is measured, kept under the model's weights, and used by what comes after."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import TEXT, save_model

Run = Callable[..., str]


@pytest.fixture
def tint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process; what it prints, or its one line of an error."""
    from tintformer.cli import main

    def run(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["tint", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == (2 if printed.err.startswith("tint: ") else 0), printed.err
        return printed.err or printed.out

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINTFORMER_CACHE", str(tmp_path / "cache"))
    save_model(tmp_path / "model")
    (tmp_path / "texts").mkdir()
    for number in range(4):
        (tmp_path / "texts" / f"{number}.txt").write_text((TEXT + "\n") * 4, encoding="utf-8")
    return tmp_path


def test_a_prior_is_measured_and_used(here: Path, tint: Run) -> None:
    def answer(*words: object) -> dict[str, Any]:
        return json.loads(tint(*words, "--json"))

    run = ("run", here / "model", TEXT[:60])
    without = answer(*run)["rate_choice"]
    assert (without["rate"], without["helps"], without["source"]) == (0.0, False, "nothing")
    record = answer("rates", here / "model", here / "texts")
    file = Path(record["file"])
    assert file.parent == here / "cache" / "rates" and file.name.startswith(record["weights"][0][:32])
    assert record["lengths"][0]["tokens"] == 32 and record["lengths"][0]["pieces"] >= 6
    choice = answer(*run)["rate_choice"]
    assert (choice["source"], choice["helps"]) == ("prior", False) and choice["rate"] > 0
    assert choice["reason"].startswith("not enough text to tell: ")
    assert answer(*run, "--steps", "2")["rate_choice"]["source"] == "nothing"  # measured for another rule
    assert "not enough text to tell" in tint(*run)
    assert "its gain" in tint("rates", here / "model", here / "texts", "-o", here / "mine.json")
    shorter = answer("rates", here / "model", here / "texts", "--lengths", "24", "-o", here / "mine.json")
    assert [table["tokens"] for table in shorter["lengths"]] == [24]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["texts", "--learning-rate", "1e-3"], "leave out --learning-rate"),
        (["empty"], "holds no texts"),
        (["short.txt"], "are needed, so give more texts or longer ones"),
        (["none.txt"], "cannot read"),
        (["texts", "-o", "no/where.json"], "there is no directory"),
        (["texts", "--lengths", "8,32"], "has pieces of 8 tokens; give 16 at least"),
        (["texts", "--lengths", "32,many"], "must be whole numbers with commas between them"),
    ],
)
def test_bad_input(here: Path, tint: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    monkeypatch.chdir(here)
    (here / "short.txt").write_text("The lamp in the harbour is red.")
    (here / "empty").mkdir()
    err = tint("rates", "model", *words)
    assert err.startswith("tint: ") and err.count("\n") == 1 and message in err
    assert not (here / "cache").exists()
