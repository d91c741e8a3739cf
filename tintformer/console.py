"""What is printed: a table for people, JSON for programs, from the same rows; what is being done on standard error.

Names of models, tasks and tokens come from files that others wrote. None of it reaches the terminal as an instruction:
neither as an escape sequence nor as markup of rich.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

Progress = Callable[[str, float], None]
"""Receives what is being done, and the share of the work that is finished, from 0 to 1."""

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys and does not show: control characters but for the tab and the line break, and marks that turn
the direction of writing; and halves of characters, which cannot be written."""
_BREAK = re.compile(r"\n(?!  - )")
"""A line break of a message that does not begin a reason."""
_LONG_WORD = re.compile(r"(\S{100})\S{100,}(\S{100})")
"""What no name or path in a message needs to be: its ends say which one it is."""
PATIENCE = 60
"""Seconds of a command after which a file hears of its progress. Fewer, and short commands would write there too."""


def printable(text: str) -> str:
    """A text of which a terminal obeys nothing: what it would obey is spelt out, as in a Python string."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def on_one_line(text: str) -> str:
    """The same for a cell or a title, which have no line breaks of their own."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def say(text: str = "") -> None:
    """A line for people on standard output."""
    _STATUS.hide()
    print(printable(text), flush=True)  # results are read as they come, also through a pipe


def print_json(value: Any) -> None:
    _STATUS.hide()
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # JSON spells out most of it by itself; what is left stands inside of strings, where \u means the same.
    print(_OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def print_table(rows: Sequence[Mapping[str, Any]], *, title: str | None = None) -> None:
    """Rows of the same keys as a table; keys are the headings."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def cell(value: Any, style: str = "") -> Text:  # a `Text` is no markup
        return Text(on_one_line(f"{value:.6g}" if isinstance(value, float) else str(value)), style=style)

    table = Table(title=None if title is None else cell(title, "table.title"), title_justify="left")
    for heading in rows[0]:
        table.add_column(cell(heading.replace("_", " ")))
    for row in rows:
        table.add_row(*map(cell, row.values()))
    _STATUS.hide()
    # With COLUMNS=0 a table would show nothing.
    (Console() if Console().width else Console(width=80)).print(table)


class _StatusLine:
    """One line on standard error that says what a command is doing.

    A terminal shows it until something is printed, and again with the next news. A file hears of work that is counted,
    after a minute and then ever more rarely: who reads standard error there looks for what went wrong.
    """

    def __init__(self) -> None:
        self.text = ""
        self.share: float | None = None
        self._is_on = False
        self._live: Live | None = None
        self._started = self._next = 0.0

    def begin(self, text: str) -> None:
        self._is_on, self._started = True, time.monotonic()
        self._next = self._started + PATIENCE
        self.show(text)

    def end(self) -> None:
        self._is_on = False
        self.hide()

    def show(self, text: str, share: float | None = None) -> None:
        """Say what is being done; outside of a command, nothing."""
        self.text, self.share = text, share
        if not self._is_on:
            return
        if _is_terminal(sys.stderr):
            self._draw()
        elif share is not None and (now := time.monotonic()) >= self._next:
            self._next = now + max(PATIENCE, (now - self._started) / 4)
            print(f"tint: {on_one_line(text)} ({share:.0%} done)", file=sys.stderr, flush=True)

    def hide(self) -> None:
        """Leave the terminal to what is printed next."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def hand_over(self, text: str) -> None:
        self.hide()
        if self._is_on and _is_terminal(sys.stderr):
            print(on_one_line(text), file=sys.stderr, flush=True)

    def _draw(self) -> None:
        from rich.console import Console
        from rich.live import Live

        if self._live is None:
            # Not redirected: what is printed to standard output belongs there, whatever is shown here.
            self._live = Live(
                get_renderable=self._line,
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)
            self._live.console.show_cursor()  # a process that is killed could not bring it back
        else:
            self._live.refresh()

    def _line(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 1))
        counted = [] if self.share is None else [ProgressBar(1.0, self.share, width=24), Text(f"{self.share:.0%}")]
        turning = Text(_SPINNER[int(8 * time.monotonic()) % len(_SPINNER)])
        line.add_row(turning, *counted, Text(on_one_line(self.text), no_wrap=True, overflow="crop"))
        return line


_SPINNER = "|/-\\"
_STATUS = _StatusLine()


def _is_terminal(stream: Any) -> bool:
    """Whether what is written can be erased again; nothing may force it, as FORCE_COLOR forces rich, into a file."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def greeting(text: str) -> Generator[None]:
    """Show a few words on a terminal while the commands are imported; without rich, which is a good part of that."""
    shown = text if _is_terminal(sys.stderr) and _is_first() else ""
    print(shown, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(f"\r{' ' * len(shown)}\r" if shown else "", end="", file=sys.stderr, flush=True)


def _is_first() -> bool:
    """Of the processes of a launcher the first does the talking."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def working(text: str) -> Generator[None]:
    """As long as it lasts, a line on standard error says what is being done, this text first; see `doing`."""
    if not _is_first():
        yield
        return
    _STATUS.begin(text)
    try:
        yield
    finally:
        _STATUS.end()


def doing(text: str, share: float | None = None) -> None:
    """Say what a command is doing now and, where it is known, the share of the work that is finished, from 0 to 1."""
    _STATUS.show(text, share)


def hand_over(text: str) -> None:
    """Leave the terminal to a library that draws bars of its own, below a line that says what is done.

    Nothing happens outside of a command or where nobody watches. The next `doing` takes the terminal back.
    """
    _STATUS.hand_over(text)


@contextmanager
def progress_bar() -> Generator[Progress]:
    """A bar on standard error that is told what is being done and how much is behind it."""
    yield doing
    _STATUS.hide()


def complain(message: str) -> None:
    """One line on standard error; only the reasons that a message lists stand on lines of their own."""
    _STATUS.hide()
    if sys.stderr is not None:  # closed by the shell
        lines = _LONG_WORD.sub(r"\1...\2", _BREAK.sub(" ", printable(message)))
        print(f"tint: {lines}", file=sys.stderr)
