# pyright: basic
"""Makes every table of results in the documentation from its rows; `make tables` writes them in place.

A table stands below a mark, `<!-- rows: FILE#TABLE -->`. FILE is a CSV file of docs/results/data with one estimate a
row: the table that it belongs to, labels (model, method, task), a metric, and its numbers. `tables.yaml` declares for
every table its columns, each by a heading and patterns of cells: `{gain:.4f}` is the estimate of the metric `gain` with
its interval or error, `{gain.value:.4f}` its value alone. The first pattern counts whose numbers are all there; without
any the cell is empty. A pattern may have words, and no number of its own.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

DOCS = Path(__file__).parents[1]
DATA = DOCS / "results" / "data"
NUMBERS = ("value", "low", "high", "error", "spread", "n")
"""An estimate, its 95% interval, its standard error, its standard deviation over seeds, and the units behind it."""
FIELDS = ("table", "metric", *NUMBERS, "status")
"""Columns of every file of rows; the others are labels, among them settings such as rates."""
EVERY = "*"
"""The heading of a column that stands for each value of the label that a table is spread out by."""
MARKED = re.compile(r"^<!-- rows: (?P<file>[\w./-]+)#(?P<table>[\w./-]+) -->\n\n(?P<text>(?:\|.*\n)+)", re.MULTILINE)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
WORDS = {-1: "lower", 0: "no clear difference", 1: "higher"}

Row = Mapping[str, str]


class Number(float):
    """A number that may also be printed as the verdict it stands for, in millions, or as two digits of a percentage."""

    def __format__(self, spec: str) -> str:
        if spec == "verdict":
            return WORDS[int(self)]
        if spec == "millions":
            return format(self / 1e6, ".0f")
        if spec == "percent":
            return format(100 * self, ".2g" if self < 0.995 else ".0f")
        return super().__format__(spec)


class Estimate(SimpleNamespace):
    """The numbers that a row has, printed all together (`{gain:.4f}`) or one by one (`{gain.value:.4f}`)."""

    def __format__(self, spec: str) -> str:
        if not hasattr(self, "value"):
            return f"below {self.high:g}"  # all that was published of it
        spread = f" ({self.spread:{spec}})" if hasattr(self, "spread") else ""
        error = f" ± {self.error:{spec}}" if hasattr(self, "error") else ""
        interval = f" [{self.low:{spec}}, {self.high:{spec}}]" if hasattr(self, "low") else ""
        return f"{self.value:{spec}}{spread}{error}{interval}"


def estimate(row: Row) -> Estimate:
    """Return the numbers that a row has."""
    return Estimate(**{name: Number(row[name]) for name in NUMBERS if row.get(name)})


@cache
def read_rows(file: str) -> tuple[Row, ...]:
    """Return the rows of a file of docs/results/data."""
    with (DATA / file).open(encoding="utf-8", newline="") as text:
        return tuple(csv.DictReader(text))


@cache
def declared() -> dict[str, Any]:
    """Return what tables.yaml says: `tables` by FILE#TABLE, and `others`, tables that show no results, with reasons."""
    return yaml.safe_load((DATA / "tables.yaml").read_text(encoding="utf-8"))


def render(table: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Return the table of these rows in Markdown."""
    spread = table.get("across")
    lines: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        labels = {name: text for name, text in row.items() if name not in FIELDS and name != spread}
        line = lines.setdefault(tuple(labels.values()), labels)
        metric = f"{row[spread]}/{row['metric']}" if spread and row[spread] else row["metric"]
        assert metric not in line, f"two rows have the {metric} of {labels}"
        line[metric] = estimate(row)
    spreads = list(dict.fromkeys(row[spread] for row in rows if row[spread])) if spread else []
    columns = list(_columns(table["columns"], spreads))
    cells = [[heading for heading, _, _ in columns], ["---"] * len(columns)]
    cells += [[_cell(patterns, _seen_from(line, value)) for _, patterns, value in columns] for line in lines.values()]
    return "".join(f"| {' | '.join(each)} |\n" for each in cells)


def _columns(columns: Sequence[Mapping[str, Any]], spreads: Sequence[str]) -> Iterator[tuple[str, list[str], str]]:
    """Yield every column's heading, its patterns, and the value of the spread label that it belongs to."""
    for column in columns:
        for heading, given in column.items():
            patterns = given if isinstance(given, list) else [given or f"{{{heading}}}"]
            yield from ((each, patterns, each) for each in spreads) if heading == EVERY else [(heading, patterns, "")]


def _seen_from(line: Mapping[str, Any], value: str) -> Mapping[str, Any]:
    """Return a line's estimates by metric alone where they belong to this value of the spread label."""
    own = {name.removeprefix(f"{value}/"): each for name, each in line.items() if name.startswith(f"{value}/")}
    return {**line, **own} if value else line


def _cell(patterns: Sequence[str], line: Mapping[str, Any]) -> str:
    for pattern in patterns:
        try:
            return pattern.format_map(line)
        except (KeyError, AttributeError):  # a number that this line does not have
            continue
    return ""


def remade(page: str) -> str:
    """Return a page with every marked table made from its rows."""

    def replace(found: re.Match[str]) -> str:
        file, table = found["file"], found["table"]
        rows = [row for row in read_rows(file) if row["table"] == table]
        assert rows, f"{file} has no rows of the table {table}"
        return f"<!-- rows: {file}#{table} -->\n\n{render(declared()['tables'][f'{file}#{table}'], rows)}"

    return MARKED.sub(replace, page)


def unmarked(page: str) -> list[str]:
    """Return the first lines of the tables on a page that no rows make."""
    left = re.sub(r"^```.*?^```$", "", MARKED.sub("", page), flags=re.MULTILINE | re.DOTALL)
    return [found[0].splitlines()[0] for found in TABLE.finditer(left)]


def pages() -> list[Path]:
    """Return all pages of results, and all others with a table of results."""
    return sorted(path for path in DOCS.rglob("*.md") if path.is_relative_to(DATA.parent) or MARKED.search(_text(path)))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def main() -> None:
    """Write the tables in place and name what changed."""
    for path in pages():
        before = _text(path)
        if (after := remade(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
