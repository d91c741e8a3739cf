"""How commands answer: a table for people, JSON for programs, from the same rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


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
