"""Where data come from: YAML descriptions, the rows of data files, and data sets of the Hugging Face hub.

A description becomes a dataclass, every key checked. A row knows the place that it came from, for messages. The hub, or
its local cache, needs the package `datasets`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from tintformer.console import hand_over
from tintformer.errors import InputError, brief, cause, listed, nearest
from tintformer.storage.cache_paths import rows_file
from tintformer.storage.hub_models import hub_is_found, require_hub
from tintformer.storage.untrusted_files import (
    MAX_TEXT,
    MAX_YAML,
    check_characters,
    check_regular,
    parse_foreign_json,
    parse_foreign_yaml,
    read_bytes,
    user_path,
)

YAML_SUFFIXES = (".yaml", ".yml")
ROW_SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")
"""Files that hold rows; a TSV file quotes nothing, as in GLUE."""
EXTRA = "pip install 'tintformer[eval]'"
SHIPPED = files("tintlab.data") / "descriptions"
"""The descriptions that come with the package."""


def shipped() -> tuple[str, ...]:
    """The names of the descriptions that come with the package."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in SHIPPED.iterdir() if file.name.endswith(".yaml")))


def read_description(name: str) -> tuple[dict[str, Any], str]:
    """The mapping that a shipped name or the path of a YAML file stands for, and what to call it in messages."""
    if Path(name).suffix in YAML_SUFFIXES:
        path = user_path(name)
        return _mapping(read_bytes(path, MAX_YAML, "a YAML file"), str(path)), str(path)
    if name not in shipped():
        raise InputError(
            f"{brief(name)} is unknown; give the path of a YAML file or one of {', '.join(shipped())}"
            f"{nearest(name, shipped())}"
        )
    return _mapping((SHIPPED / f"{name}.yaml").read_bytes(), f"{name}.yaml"), f"{name}.yaml"


def _mapping(data: bytes, source: str) -> dict[str, Any]:
    content = parse_foreign_yaml(data, source)
    if not isinstance(content, dict):
        raise InputError(f"{source} holds no keys; see the descriptions that come with the package")
    return content


def checked_keys(kind: type, given: Any, where: str) -> dict[str, Any]:
    """The keywords of a dataclass, taken from a mapping: no unknown one, none missing."""
    if not isinstance(given, Mapping):
        raise InputError(f"{where} is {brief(given)}; it must hold keys and values")
    known = {field.name: field for field in fields(kind)}
    unknown = [key for key in given if key not in known]
    if unknown:
        raise InputError(f"{where}: the key {brief(unknown[0])} is unknown; known are {', '.join(known)}")
    required = [name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING]
    missing = [name for name in required if name not in given]
    if missing:
        raise InputError(f"{where}: the key {missing[0]!r} is missing; add it")
    return dict(given)


def require_string(value: Any, where: str) -> str:
    """A string that is not empty; YAML reads no, yes, 1 and null as something else unless they are quoted."""
    if not isinstance(value, str):
        raise InputError(f"{where} is {brief(value)}, which is no text; put it in quotes")
    if not value:
        raise InputError(f"{where} is empty; give a text")
    return value


def require_strings(value: Any, where: str) -> tuple[str, ...]:
    """A list of strings, none of them empty."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{where} is {brief(value)}; it must be a list")
    return tuple(require_string(item, f"{where}[{number}]") for number, item in enumerate(value))


def require_count(value: Any, where: str) -> int | None:
    """A whole number of at least 1, or nothing."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InputError(f"{where} is {brief(value)}; it must be a whole number of at least 1")
    return value


@dataclass(frozen=True)
class DataRow:
    """A row of a table."""

    where: str
    """File and line, or data set and number, for messages."""
    values: Mapping[str, Any]

    def column(self, *names: str) -> Any:
        """The value under the first of these names that the table has; none of them is an error."""
        for name in names:
            if name in self.values:
                return self.values[name]
        wanted = " or ".join(map(brief, dict.fromkeys(names)))
        found = listed(map(brief, self.values)) or "none"
        raise InputError(f"{self.where}: there is no column {wanted}, only {found}; name the columns in the task file")

    def text(self, *names: str) -> str:
        """The text under the first of these names that the table has."""
        value = self.column(*names)
        if not isinstance(value, str):
            raise InputError(f"{self.where}: the text is {brief(value)}; it must be a string, so name another column")
        if not value.strip():
            raise InputError(f"{self.where}: the text is empty; remove the row")
        return check_characters(value, f"{self.where}: the text", "remove the row or repair it")


def read_rows(path: Path) -> list[DataRow]:
    """All rows of a data file, by its suffix; at least one."""
    readers = {".jsonl": _jsonl, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} is no data file; give one of {', '.join(ROW_SUFFIXES)}")
    rows = list(reader(path))
    if not rows:
        raise InputError(f"{path} is empty; give a file with at least one row")
    return rows


def read_utf8(path: Path) -> str:
    """A text file as it is, without the mark that some editors put first; line breaks are not changed."""
    data = read_bytes(path)
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


def _jsonl(path: Path) -> Iterator[DataRow]:
    text = read_utf8(path)
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        values = _json_of(line, where, is_last=number == len(lines))
        if not isinstance(values, dict):
            raise InputError(f"{where}: this is no object but {brief(values)}; write one object a line")
        yield DataRow(where, values)


def _json_of(line: str, where: str, *, is_last: bool) -> Any:
    try:
        return parse_foreign_json(line, where, error=InputError)
    except InputError as error:
        fault = error.__cause__
        if isinstance(fault, UnicodeEncodeError):  # half a character; the column that is read is looked at later
            return json.loads(line)
        if not isinstance(fault, json.JSONDecodeError):
            raise
        if is_last:  # and no line break after it
            raise InputError(f"{where}: the file is truncated in the middle of a row; copy it again") from error
        why = f"{fault.msg.removesuffix(' at')} at column {fault.colno}"
        raise InputError(f"{where}: this is no JSON ({why}); write one object a line") from error


def _csv(path: Path) -> Iterator[DataRow]:
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
            yield DataRow(where, dict(zip(header, fields, strict=True)))
    except csv.Error as error:
        why = "the file is truncated in the middle of a row; copy it again" if "end of data" in str(error) else None
        raise InputError(f"{path} line {reader.line_num}: {why or f'{cause(error)}; repair the row'}") from error


def _parquet(path: Path) -> Iterator[DataRow]:
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(f"{path} needs pyarrow to be read; install it: {EXTRA}") from error
    check_regular(path, MAX_TEXT, InputError)
    try:
        table: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except Exception as error:  # pyarrow raises whatever its readers raise
        raise InputError(f"{path} is truncated or no Parquet file ({cause(error)}); copy it again") from error
    for number, values in enumerate(table, 1):
        yield DataRow(f"{path} row {number}", values)


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Where a data set is on the hub."""

    id: str
    """Owner and name, as in `stanfordnlp/sst2`."""
    config: str | None = None
    """The configuration, for data sets that have several."""
    revision: str | None = None
    """A commit or tag; without one the data may change between two runs (records show it: they hold their hash)."""


def described_keys(kind: type, name: str, kind_name: str, what: str) -> tuple[dict[str, Any], str]:
    """The keys of a description, and what to call it in messages; what texts and tasks have in common is checked."""
    given, source = read_description(name)
    if given.get("kind") != kind_name:
        found = given.get("kind")
        raise InputError(f"{source} describes no {what} (its kind is {brief(found)}); the kind must be {kind_name!r}")
    keys = checked_keys(kind, given, source)
    require_count(keys.get("limit"), f"{source}: limit")
    if keys.get("hub") is not None:
        keys["hub"] = to_hub(keys["hub"], source)
    if keys.get("path") is not None:
        path = require_string(keys["path"], f"{source}: path")
        keys["path"] = str(Path(source).parent / user_path(path))
    return keys, source


def to_hub(value: Any, source: str) -> Hub:
    """The key `hub` of a description: an id, or an id with its configuration and revision."""
    where = f"{source}: hub"
    keys = {"id": value} if isinstance(value, str) else checked_keys(Hub, value, where)
    return Hub(**{key: require_string(item, f"{where}.{key}") for key, item in keys.items() if item is not None})


def read_hub(hub: Hub, split: str, limit: int | None = None) -> list[DataRow]:
    """The first `limit` rows of a split (all of them without a limit), from what `tint fetch` has kept or the hub."""
    kept = kept_rows(hub, split, limit)
    return read_rows(kept) if kept.is_file() else download_rows(hub, split, limit)


def kept_rows(hub: Hub, split: str, limit: int | None) -> Path:
    """Where `tint fetch` keeps these rows: `datasets` itself keeps none of a split that is read up to a limit."""
    return rows_file(hub.id, hub.config, hub.revision, split, limit)


def download_rows(hub: Hub, split: str, limit: int | None = None) -> list[DataRow]:
    """The rows from the hub, or from the cache of `datasets`."""
    require_hub(hub.id)
    try:
        from datasets import config, load_dataset  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    except ImportError as error:
        raise InputError(
            f"the data set {hub.id} needs the package datasets; install it ({EXTRA}) or give local files with --data"
        ) from error
    hand_over(f"downloading {hub.id} ({split}) from the hub")
    given = config.HF_HUB_OFFLINE
    try:
        # Where there is no network `datasets` would look for it half a minute long before it looks into its cache.
        config.HF_HUB_OFFLINE = given or not hub_is_found()
        # With a limit nothing but the first rows is fetched.
        rows: Any = load_dataset(hub.id, hub.config, split=split, revision=hub.revision, streaming=limit is not None)
        found = [
            DataRow(f"{hub.id} {split} row {number}", values) for number, values in enumerate(islice(rows, limit), 1)
        ]
    except Exception as error:  # whatever the network, the hub and its readers raise
        raise InputError(
            f"cannot load the data set {hub.id} ({split}): {cause(error)}; "
            "check the name and the network, or give local files with --data"
        ) from error
    finally:
        config.HF_HUB_OFFLINE = given
    if not found:
        raise InputError(f"the data set {hub.id} has no rows in the split {split}; choose another one")
    return found
