"""Texts by label: in the description itself, or as authors distribute them, a text a line and a file for each label."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tintformer.errors import InputError, brief, listed
from tintformer.storage.untrusted_files import read_bytes
from tintlab.data.sources import DataRow, read_utf8, require_string, require_strings

ENCODINGS = ("utf-8", "latin-1")
"""Of the files; older collections are in the second."""
LabelFiles = dict[str, tuple[str, ...]]
"""For each label the names that its file has in one distribution or another."""
LabelTexts = dict[str, tuple[str, ...]]
"""For each label its texts."""


def require_label_files(given: Any, labels: tuple[str, ...], where: str) -> LabelFiles:
    """The key `files` of a description: for every label the name of a file, or several that it may have."""
    _require_labels(given, labels, where, "the name of a file")
    names = {label: given[label] for label in labels}
    return {
        label: (require_string(name, f"{where}: {label}"),)
        if isinstance(name, str)
        else require_strings(name, f"{where}: {label}")
        for label, name in names.items()
    }


def require_label_texts(given: Any, labels: tuple[str, ...], where: str) -> LabelTexts:
    """The key `texts` of a description: for every label its texts."""
    _require_labels(given, labels, where, "texts")
    return {label: require_strings(given[label], f"{where}: {label}") for label in labels}


def _require_labels(given: Any, labels: tuple[str, ...], where: str, what: str) -> None:
    if not isinstance(given, Mapping):
        raise InputError(f"{where} is {brief(given)}; it must hold {what} for each label")
    if set(given) != set(labels):
        raise InputError(f"{where} is about {listed(map(brief, given)) or 'no label'}; the labels are {listed(labels)}")


def described_rows(texts: LabelTexts, where: str) -> list[DataRow]:
    """A row for every text that a description holds."""
    return [
        DataRow(f"{where}: texts: {label}[{number}]", {"text": text, "label": label})
        for label, each in texts.items()
        for number, text in enumerate(each)
    ]


def require_encoding(given: Any, where: str) -> str:
    """The key `encoding` of a description."""
    if given not in ENCODINGS:
        raise InputError(f"{where} is {brief(given)}; it can be {' or '.join(ENCODINGS)}")
    return given


def find_label_files(directory: Path, files: LabelFiles) -> dict[str, Path]:
    """The file of every label that a directory has; those of some labels alone are an error, none of them is none."""
    there = {
        label: [directory / name for name in names if (directory / name).is_file()] for label, names in files.items()
    }
    missing = [label for label, paths in there.items() if not paths]
    if len(missing) == len(files):
        return {}
    if missing:
        found = next(paths[0].name for paths in there.values() if paths)
        wanted = " or ".join(files[missing[0]])
        raise InputError(f"{directory} holds {found} but no file of the label {missing[0]!r}; put {wanted} there")
    return {label: paths[0] for label, paths in there.items()}


def read_label_files(files: Mapping[str, Path], encoding: str) -> list[DataRow]:
    """A row for every line that is not empty, with the columns `text` and `label`."""
    rows = [row for label, path in files.items() for row in _lines(path, label, encoding)]
    for label, path in files.items():
        if not any(row.values["label"] == label for row in rows):
            raise InputError(f"{path} is empty; give a file with at least one line")
    return rows


def _lines(path: Path, label: str, encoding: str) -> list[DataRow]:
    # Every byte is a character of latin-1, so that nothing can go wrong there.
    text = read_bytes(path).decode("latin-1") if encoding == "latin-1" else read_utf8(path)
    return [
        DataRow(f"{path} line {number}", {"text": line.strip(), "label": label})
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]
