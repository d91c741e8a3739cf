"""What is printed: a table for people, JSON for programs, from the same rows; progress on standard error.

Names of models, tasks and tokens come from files that others wrote. None of it reaches the terminal as an instruction:
neither as an escape sequence nor as markup of rich.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Progress = Callable[[str, float], None]
"""Receives what is being done, and the share of the work that is finished, from 0 to 1."""

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys and does not show: control characters but for the tab and the line break, and marks that turn
the direction of writing; and halves of characters, which cannot be written."""
_BREAK = re.compile(r"\n(?!  - )")
"""A line break of a message that does not begin a reason."""
_LONG_WORD = re.compile(r"(\S{100})\S{100,}(\S{100})")
"""What no name or path in a message needs to be: its ends say which one it is."""


def printable(text: str) -> str:
    """A text of which a terminal obeys nothing: what it would obey is spelt out, as in a Python string."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def on_one_line(text: str) -> str:
    """The same for a cell or a title, which have no line breaks of their own."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def say(text: str = "") -> None:
    """A line for people on standard output."""
    print(printable(text))


def print_json(value: Any) -> None:
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
    # With COLUMNS=0 a table would show nothing.
    (Console() if Console().width else Console(width=80)).print(table)


@contextmanager
def progress_bar() -> Generator[Progress]:
    """A bar on standard error that is told what is being done and how much is behind it."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda text, share: bar.update(task, description=escape(on_one_line(text)), completed=share)


def complain(message: str) -> None:
    """One line on standard error; only the reasons that a message lists stand on lines of their own."""
    if sys.stderr is not None:  # closed by the shell
        lines = _LONG_WORD.sub(r"\1...\2", _BREAK.sub(" ", printable(message)))
        print(f"tint: {lines}", file=sys.stderr)
