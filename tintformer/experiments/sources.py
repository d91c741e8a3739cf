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

from tintformer.errors import InputError, cause
from tintformer.storage.cache_paths import rows_file

YAML_SUFFIXES = (".yaml", ".yml")
ROW_SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")
"""Files that hold rows; a TSV file quotes nothing, as in GLUE."""
EXTRA = "pip install 'tintformer[eval]'"
SHIPPED = files("tintformer.experiments") / "descriptions"
"""The descriptions that come with the package."""


def shipped() -> tuple[str, ...]:
    """The names of the descriptions that come with the package."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in SHIPPED.iterdir() if file.name.endswith(".yaml")))


def read_description(name: str) -> tuple[dict[str, Any], str]:
    """The mapping that a shipped name or the path of a YAML file stands for, and what to call it in messages."""
    if Path(name).suffix in YAML_SUFFIXES:
        path = Path(name).expanduser()
        try:
            return _mapping(path.read_bytes(), str(path)), str(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}; give the path of a YAML file") from error
    if name not in shipped():
        raise InputError(f"{name!r} is unknown; give the path of a YAML file or one of {', '.join(shipped())}")
    return _mapping((SHIPPED / f"{name}.yaml").read_bytes(), f"{name}.yaml"), f"{name}.yaml"


def _mapping(data: bytes, source: str) -> dict[str, Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML itself lets the last of two equal keys win without a word."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value]
            for number, (key, _) in enumerate(node.value):
                if key.value in keys[:number]:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark
                    )
            return super().construct_mapping(node, deep)

    try:
        content = yaml.load(data.decode("utf-8-sig"), Loader)  # a SafeLoader: no objects but plain ones
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{source} line {line}: byte {data[error.start]:#04x} is no UTF-8; save it so") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{source} line {mark.line + 1}" if mark is not None else source
        raise InputError(f"{place}: this is no YAML ({getattr(error, 'problem', None) or cause(error)})") from error
    if not isinstance(content, dict):
        raise InputError(f"{source} holds no keys; see the descriptions that come with the package")
    return content


def checked_keys(kind: type, given: Any, where: str) -> dict[str, Any]:
    """The keywords of a dataclass, taken from a mapping: no unknown one, none missing."""
    if not isinstance(given, Mapping):
        raise InputError(f"{where} is {given!r}; it must hold keys and values")
    known = {field.name: field for field in fields(kind)}
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        raise InputError(f"{where}: the key {unknown[0]!r} is unknown; known are {', '.join(known)}")
    required = [name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING]
    missing = [name for name in required if name not in given]
    if missing:
        raise InputError(f"{where}: the key {missing[0]!r} is missing; add it")
    return dict(given)


def require_string(value: Any, where: str) -> str:
    """A string that is not empty; YAML reads no, yes, 1 and null as something else unless they are quoted."""
    if not isinstance(value, str):
        raise InputError(f"{where} is {value!r}, which is no text; put it in quotes")
    if not value:
        raise InputError(f"{where} is empty; give a text")
    return value


def require_strings(value: Any, where: str) -> tuple[str, ...]:
    """A list of strings, none of them empty."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{where} is {value!r}; it must be a list")
    return tuple(require_string(item, f"{where}[{number}]") for number, item in enumerate(value))


def require_count(value: Any, where: str) -> int | None:
    """A whole number of at least 1, or nothing."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InputError(f"{where} is {value!r}; it must be a whole number of at least 1")
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


def _jsonl(path: Path) -> Iterator[DataRow]:
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
        yield DataRow(where, values)


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
    if not path.is_file():
        raise InputError(f"cannot read {path}: No such file or directory; give the path of a file")
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
        raise InputError(f"{source} describes no {what} (its kind is {found!r}); the kind must be {kind_name!r}")
    keys = checked_keys(kind, given, source)
    require_count(keys.get("limit"), f"{source}: limit")
    if keys.get("hub") is not None:
        keys["hub"] = to_hub(keys["hub"], source)
    if keys.get("path") is not None:
        path = require_string(keys["path"], f"{source}: path")
        keys["path"] = str(Path(source).parent / Path(path).expanduser())
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
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    except ImportError as error:
        raise InputError(
            f"the data set {hub.id} needs the package datasets; install it ({EXTRA}) or give local files with --data"
        ) from error
    try:
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
    if not found:
        raise InputError(f"the data set {hub.id} has no rows in the split {split}; choose another one")
    return found
