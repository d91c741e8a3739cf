# pyright: basic
"""Nothing that somebody else chose is obeyed by the terminal or by rich; the line that says what is being done."""

from __future__ import annotations

import io
import json
import sys

import pytest

from tintformer import console
from tintformer.console import (
    complain,
    doing,
    greeting,
    hand_over,
    on_one_line,
    print_json,
    print_table,
    printable,
    say,
    working,
)

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


class Terminal(io.StringIO):
    """Takes what is written, as a terminal would."""

    def isatty(self) -> bool:
        return True

    def new(self) -> str:
        """What was written since the last call."""
        written = self.getvalue()
        self.seek(0)
        self.truncate()
        return written


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal into the place of standard error; in the test itself, since pytest puts its own there before."""
    terminal = Terminal()
    for name, value in {"TERM": "xterm", "COLUMNS": "120", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_a_terminal_shows_what_is_being_done_until_something_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = open_terminal(monkeypatch)
    with working("starting"):
        assert "starting" in terminal.new()
        doing(f"loading {HOSTILE}")
        assert "loading [bold]x[/bold] [/nothing] \\x1b[31mred" in terminal.new()
        doing("counting", 0.25)
        drawn = terminal.new()
        assert "counting" in drawn and "25%" in drawn
        say("a result")
        assert capsys.readouterr().out == "a result\n"
        assert terminal.new().endswith("\x1b[2K")  # erased, and not drawn again
        assert console._STATUS._live is None
        doing("more")
        assert "more" in terminal.new()
        hand_over("downloading")
        assert terminal.new().endswith("downloading\n") and console._STATUS._live is None
        doing("the end")
    terminal.new()
    doing("outside of a command")
    hand_over("outside of a command")
    assert terminal.new() == "" and capsys.readouterr().out == ""


def test_a_greeting_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with greeting("starting"):
        assert terminal.new() == "starting"
    assert terminal.new() == f"\r{' ' * len('starting')}\r"
    monkeypatch.setenv("RANK", "1")
    with greeting("starting"):
        pass
    assert terminal.new() == ""


def test_an_error_ends_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with pytest.raises(ValueError, match="wrong"), working("starting"):
        raise ValueError("wrong")
    assert console._STATUS._live is None
    terminal.new()
    complain("wrong")
    assert terminal.new() == "tint: wrong\n"


@pytest.mark.parametrize("silenced", ["a second process", "a dumb terminal"])
def test_who_is_silent(monkeypatch: pytest.MonkeyPatch, silenced: str) -> None:
    terminal = open_terminal(monkeypatch)
    monkeypatch.setenv(*(("RANK", "1") if silenced == "a second process" else ("TERM", "dumb")))
    with working("starting"):
        doing("loading")
        doing("counting", 0.5)
    assert terminal.new() == ""


def test_a_file_hears_of_counted_work_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    with working("starting"):
        for second in range(1000):
            now = float(second)
            doing("loading")
            doing(f"{second} of 1000\n", second / 1000)
        say("a result")
    printed = capsys.readouterr()
    assert printed.out == "a result\n"
    lines = printed.err.splitlines()
    assert lines[:2] == ["tint: 60 of 1000\\n (6% done)", "tint: 120 of 1000\\n (12% done)"]
    assert 5 < len(lines) < 12  # ever more rarely
