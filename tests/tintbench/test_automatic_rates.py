# pyright: basic
"""The benchmark of `auto`: a few short pieces, kept one by one, and a table of before and now."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tiny import TEXT, save_model

from tintbench import automatic_rates
from tintformer.errors import InputError


def test_it_measures_keeps_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINTFORMER_CACHE", str(tmp_path / "cache"))
    save_model(tmp_path / "model")
    Path("prose.txt").write_text((TEXT + "\n") * 3)
    Path("rows.jsonl").write_text("".join(json.dumps({"text": TEXT, "label": 0}) + "\n" for _ in range(3)))
    words = ["prose=prose.txt", "rows=rows.jsonl", "--model", "model=4", "--lengths", "16", "40"]
    words += ["--evaluated", "24", "--records", "records", "--output", "out"]
    monkeypatch.setattr(sys, "argv", ["automatic_rates", *words])
    automatic_rates.main()
    records = sorted(Path("records", "model").iterdir())
    assert [path.stem for path in records] == ["prose-16-0", "prose-40-0", "rows-16-0", "rows-40-0"]
    record = json.loads(records[1].read_text())
    assert max(record["curve"].values()) > 0 and record["last_fifth"]["rate"] > 0 and "reason" in record["auto"]
    page = Path("out", "automatic-rates.md").read_text()
    assert "| all | before | 4 |" in page and "| all | now | 4 |" in page and "prose=prose.txt" in page
    # What is there is not done again.
    monkeypatch.setattr(automatic_rates, "Piece", lambda *_: pytest.fail("it was done"))
    automatic_rates.main()
    assert Path("out", "automatic-rates.md").read_text() == page


@pytest.mark.parametrize(
    ("words", "message"),
    [(["prose"], "is not KIND=PATH"), (["a=empty"], "holds no texts"), (["a=none"], "cannot read")],
)
def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    monkeypatch.setattr(sys, "argv", ["automatic_rates", *words])
    with pytest.raises(InputError, match=message):
        automatic_rates.main()
