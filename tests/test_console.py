# pyright: basic
"""Nothing that somebody else chose is obeyed by the terminal or by rich."""

from __future__ import annotations

import json

import pytest

from tintformer.console import complain, on_one_line, print_json, print_table, printable, say

HOSTILE = "[bold]x[/bold] [/nothing] \x1b[31mred\x1b[0m \x9b31m \x07\r\x08 \u202eabc \ud800 [link=x]y[/link] \x7f"
OBEYED = "\x1b\x9b\x07\r\x08\u202e\ud800\x7f"


def check(printed: str) -> None:
    assert not set(OBEYED) & set(printed)
    assert "[bold]x[/bold]" in printed and "\\x1b[31mred" in printed


def test_lines_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    check(capsys.readouterr().out)
    complain(f"{HOSTILE}\nsecond\n  - a reason\n  - another")
    printed = capsys.readouterr().err
    check(printed)
    assert len(printed.splitlines()) == 3
    assert printable("a\tb\nc é 文 😀") == "a\tb\nc é 文 😀"
    assert on_one_line("a\tb\nc") == "a\\tb\\nc"


def test_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    print_table([{HOSTILE: f"{HOSTILE}\n"}], title=HOSTILE)
    printed = capsys.readouterr().out
    check(printed)
    assert printed.count("[bold]x[/bold]") == 3 and len(printed.splitlines()) == 6
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich writes escape sequences of its own, for the headings
    print_table([{"name": "[red]x[/red]"}])
    assert "[red]x[/red]" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    value = {HOSTILE: ["é 😀", HOSTILE]}
    print_json(value)
    printed = capsys.readouterr().out
    assert not set(OBEYED) & set(printed) and "é 😀" in printed
    assert json.loads(printed) == value
