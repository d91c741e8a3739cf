"""What is printed: a table for people, JSON for programs, from the same rows; progress on standard error."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Progress = Callable[[str, float], None]
"""Receives what is being done, and the share of the work that is finished, from 0 to 1."""


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(rows: Sequence[Mapping[str, Any]], *, title: str | None = None) -> None:
    """Rows of the same keys as a table; keys are the headings."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in rows[0]:
        table.add_column(heading.replace("_", " "))
    for row in rows:
        table.add_row(*(f"{value:.6g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)


@contextmanager
def progress_bar() -> Generator[Progress]:
    """A bar on standard error that is told what is being done and how much is behind it."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda text, share: bar.update(task, description=text, completed=share)
