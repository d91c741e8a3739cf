"""Rows of data files: JSONL, CSV, TSV and Parquet, each row with the place it came from."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tintformer.errors import InputError, cause

SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")
"""Files that hold rows; a TSV file quotes nothing, as in GLUE."""
EXTRA = "pip install 'tintformer[eval]'"


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    where: str
    """File and line, or data set and number, for messages."""
    values: Mapping[str, Any]

    def column(self, *names: str) -> Any:
        """The value under the first of these names that the table has; none of them is an error."""
        for name in names:
            if name in self.values:
                return self.values[name]
        wanted, found = " or ".join(map(repr, dict.fromkeys(names))), ", ".join(map(repr, self.values)) or "none"
        raise InputError(f"{self.where}: there is no column {wanted}, only {found}; name the columns in the task file")

    def text(self, *names: str) -> str:
        """The text under the first of these names that the table has."""
        value = self.column(*names)
        if not isinstance(value, str):
            raise InputError(f"{self.where}: the text is {value!r}; it must be a string, so name another column")
        if not value.strip():
            raise InputError(f"{self.where}: the text is empty; remove the row")
        try:
            value.encode()
        except UnicodeEncodeError as error:  # JSON can write half of a surrogate pair
            raise InputError(f"{self.where}: the text holds half a character; remove the row or repair it") from error
        return value


def read_rows(path: Path) -> list[Row]:
    """All rows of a data file, by its suffix; at least one."""
    readers = {".jsonl": _jsonl, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} is no data file; give one of {', '.join(SUFFIXES)}")
    rows = list(reader(path))
    if not rows:
        raise InputError(f"{path} is empty; give a file with at least one row")
    return rows


def read_utf8(path: Path) -> str:
    """A text file as it is, without the mark that some editors put first; line breaks are not changed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; give the path of a file") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path} line {line}: byte {data[error.start]:#04x} is no UTF-8; save the file in that encoding"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(f"{path} line {line}: there is a zero byte, so this is a binary file; give text in UTF-8")
    return text


def _jsonl(path: Path) -> Iterator[Row]:
    text = read_utf8(path)
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):  # the last line, and no line break after it
                raise InputError(f"{where}: the file is truncated in the middle of a row; copy it again") from error
            why = f"{error.msg.removesuffix(' at')} at column {error.colno}"
            raise InputError(f"{where}: this is no JSON ({why}); write one object a line") from error
        if not isinstance(values, dict):
            raise InputError(f"{where}: this is no object but {line.strip()[:30]}; write one object a line")
        yield Row(where, values)


def _csv(path: Path) -> Iterator[Row]:
    tabs = path.suffix.lower() == ".tsv"
    lines = io.StringIO(read_utf8(path), newline="")
    quoting = csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL
    reader = csv.reader(lines, strict=True, delimiter="\t" if tabs else ",", quoting=quoting)
    header: list[str] | None = None
    try:
        for fields in reader:
            where = f"{path} line {reader.line_num}"
            if not fields:
                continue
            if header is None:
                header = fields
                if len(set(header)) < len(header):
                    raise InputError(f"{where}: two columns have one name ({', '.join(header)}); rename one")
                continue
            if len(fields) != len(header):
                raise InputError(
                    f"{where}: the row has {len(fields)} fields but the header {len(header)}; "
                    "the file is truncated, or a text with a separator is not quoted"
                )
            yield Row(where, dict(zip(header, fields, strict=True)))
    except csv.Error as error:
        why = "the file is truncated in the middle of a row; copy it again" if "end of data" in str(error) else None
        raise InputError(f"{path} line {reader.line_num}: {why or f'{cause(error)}; repair the row'}") from error


def _parquet(path: Path) -> Iterator[Row]:
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(f"{path} needs pyarrow to be read; install it: {EXTRA}") from error
    if not path.is_file():
        raise InputError(f"cannot read {path}: No such file or directory; give the path of a file")
    try:
        table: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except Exception as error:  # pyarrow raises whatever its readers raise
        raise InputError(f"{path} is truncated or no Parquet file ({cause(error)}); copy it again") from error
    for number, values in enumerate(table, 1):
        yield Row(f"{path} row {number}", values)
