"""Where texts come from: files, directories or a data set of the hub, and what a document of them is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tintformer.errors import InputError
from tintformer.experiments import rows
from tintformer.experiments.blocks import lines_of
from tintformer.experiments.described import a_count, a_string, checked, read_description
from tintformer.experiments.hub import Hub, read_hub, to_hub

KIND = "text"
Documents = Literal["lines", "files"]
TEXT_SUFFIXES = (".txt", ".text", ".md", ".raw", ".tokens")
"""What is read of a directory; a file that is given by its own path may have any name."""


@dataclass(frozen=True, kw_only=True)
class TextDescription:
    """Where a language-modelling set is and what a document of it is: the keys of its YAML file."""

    kind: str
    """`text`."""
    title: str
    """What tables call it."""
    path: str | None = None
    """A file or a directory, beside the description or absolute."""
    hub: Hub | None = None
    """A data set of the hub, if there is no path; each of its rows is a document."""
    split: str = "validation"
    """The split of the data set on the hub."""
    column: str = "text"
    """The column that holds the text, on the hub and in JSONL, CSV and Parquet files."""
    documents: Documents = "files"
    """What a document of a text file is: each of its `lines`, or the whole file (`files`)."""
    limit: int | None = None
    """How many documents to take, from the first on: too few give uncertain numbers, too many a long download."""


def read_text_description(name: str) -> tuple[TextDescription, str]:
    given, source = read_description(name)
    if given.get("kind") != KIND:
        raise InputError(f"{source} describes no text (its kind is {given.get('kind')!r}); the kind must be {KIND!r}")
    keys = checked(TextDescription, given, source)
    for key in ("title", "path", "split", "column", "documents"):
        if keys.get(key) is not None:
            a_string(keys[key], f"{source}: {key}")
    if keys.get("documents", "files") not in get_args(Documents):
        raise InputError(f"{source}: documents is {keys['documents']!r}; it must be 'lines' or 'files'")
    a_count(keys.get("limit"), f"{source}: limit")
    if keys.get("hub") is not None:
        keys["hub"] = to_hub(keys["hub"], source)
    if keys.get("path") is not None:
        keys["path"] = str(Path(source).parent / Path(keys["path"]).expanduser())
    return TextDescription(**keys), source


def read_documents(described: TextDescription, source: str) -> Iterator[str]:
    if described.path is None:
        if described.hub is None:
            raise InputError(f"{source} names neither a path nor a data set of the hub; give the files with --data")
        for row in read_hub(described.hub, described.split, described.limit):
            yield _any_text(row, described.column)
        return
    for file in _files(Path(described.path)):
        if file.suffix.lower() in rows.SUFFIXES:
            for row in rows.read_rows(file):
                yield _any_text(row, described.column)
        elif described.documents == "lines":
            yield from lines_of(rows.read_utf8(file))
        else:
            yield rows.read_utf8(file)


def _any_text(row: rows.Row, column: str) -> str:
    """A row's text; a blank one is nothing wrong here (WikiText has many)."""
    value = row.column(column, "text")
    return value if isinstance(value, str) and not value.strip() else row.text(column, "text")


def _files(path: Path) -> list[Path]:
    """The file itself, or the texts of a directory in the order of their names."""
    if not path.exists():
        raise InputError(f"{path} is not there; give the path of a file or a directory")
    if not path.is_dir():
        return [path]
    suffixes = (*TEXT_SUFFIXES, *rows.SUFFIXES)
    found = [file for file in path.rglob("*") if file.suffix.lower() in suffixes and file.is_file()]
    if not found:
        raise InputError(f"{path} holds no texts; put files there that end in {', '.join(suffixes)}")
    return sorted(found, key=lambda file: file.relative_to(path).as_posix())
