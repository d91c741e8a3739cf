# pyright: basic
"""Computes the estimates of tables from the units they were measured on; `make tables` writes them.

A file of docs/results/data/units has one row a unit (a block, a text, a function); `published_studies.py` knows what
the study made of them. Estimates take the place of those that were computed before; rows "as published at COMMIT",
whose units nobody has, stay.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import result_tables
from published_studies import STUDIES

UNITS = result_tables.DATA / "units"
DIGITS = "{:.10g}"
"""Of an estimate in a file: more than any table shows, fewer than rounding on other processors changes."""


def estimates(name: str) -> list[dict[str, str]]:
    """Return the rows that the units of a study make."""
    with (UNITS / f"{name}.csv").open(encoding="utf-8", newline="") as text:
        found = list(STUDIES[name](list(csv.DictReader(text))))
    status = f"computed from units/{name}.csv"
    return [{key: _text(value) for key, value in row.items()} | {"status": status} for row in found]


def _text(value: Any) -> str:
    return DIGITS.format(value) if isinstance(value, float) else str(value)


def write(path: Path, computed: Sequence[dict[str, str]]) -> None:
    """Write computed rows in front of those of the file that are as published."""
    kept = [dict(row) for row in result_tables.read_rows(path.name)] if path.is_file() else []
    rows = [*computed, *(row for row in kept if row["status"].startswith("as published"))]
    used = dict.fromkeys(key for row in rows for key, text in row.items() if text)
    labels = [name for name in used if name not in result_tables.FIELDS]
    fields = [name for name in result_tables.FIELDS if name in used]
    names = [fields[0], *labels, *fields[1:]]
    with path.open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, names, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    result_tables.read_rows.cache_clear()


def main() -> None:
    """Write the estimates of every study, then the tables."""
    for name in STUDIES:
        if (UNITS / f"{name}.csv").is_file():
            write(result_tables.DATA / f"{name}.csv", estimates(name))
    result_tables.main()


if __name__ == "__main__":
    main()
