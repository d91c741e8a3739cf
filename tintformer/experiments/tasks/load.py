"""Loading a task: its description, then its examples from the hub, a directory or a single file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tintformer.errors import InputError
from tintformer.experiments.hub import read_hub
from tintformer.experiments.rows import SUFFIXES, Row, read_rows
from tintformer.experiments.tasks.description import TaskDescription, read_task_description
from tintformer.experiments.tasks.task import Example, Task

TRAIN_NAMES = ("train",)
TEST_NAMES = ("test", "eval", "validation", "valid", "dev")
"""File names, without their ending, that are looked for in a directory, after the one in the description."""


def load_task(name: str, data: str | Path | None = None, *, variant: str | None = None, split_seed: int = 0) -> Task:
    """A task by the name of a shipped description or the path of a YAML file.

    `data` takes the place of the location that the description names: a directory with train and test files (JSONL,
    CSV, TSV or Parquet), or one such file, of which half of each label's examples, chosen by `split_seed`, is the test
    set. `variant` chooses another prompt of the description.
    """
    described, source = read_task_description(name)
    if variant is not None and variant not in described.variants:
        raise InputError(f"{source} has no variant {variant!r}; it has {', '.join(described.variants) or 'none'}")
    prompt = described.own_prompt() if variant is None else described.variants[variant]
    if data is not None:
        described = replace(described, path=str(Path(data).expanduser()))
    train, test = _examples(described, source, split_seed)
    return Task(
        name=Path(name).stem,
        title=described.title,
        labels=described.labels,
        prompt=prompt,
        train=train,
        test=test,
        variant=variant,
    )


def _examples(described: TaskDescription, source: str, seed: int) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """The examples to train on and those to test on."""
    if described.path is None:
        if described.hub is None:
            raise InputError(f"{source} names neither a path nor a data set of the hub; give the files with --data")
        splits = (read_hub(described.hub, split, described.limit) for split in (described.train, described.test))
        train, test = (_labelled(rows, described) for rows in splits)
        return train, test
    path = Path(described.path)
    if path.is_dir():
        files = (_find(path, (described.train, *TRAIN_NAMES)), _find(path, (described.test, *TEST_NAMES)))
        train, test = (_labelled(read_rows(file), described) for file in files)
        return train, test
    if not path.exists():
        raise InputError(f"{path} is not there; give a directory with train and test files, or one data file")
    return _split(_labelled(read_rows(path), described), seed)


def _find(directory: Path, names: Iterable[str]) -> Path:
    """The data file of the first of these names that the directory has."""
    names = tuple(dict.fromkeys(names))
    for name in names:
        files = [directory / name, *(directory / f"{name}{suffix}" for suffix in SUFFIXES)]
        found = [file for file in files if file.is_file()]
        if len(found) > 1:
            raise InputError(f"{directory} holds both {found[0].name} and {found[1].name}; remove one of them")
        if found:
            return found[0]
    wanted = " or ".join(names)
    raise InputError(f"{directory} holds no {wanted} with one of the endings {', '.join(SUFFIXES)}; put one there")


def _labelled(rows: Iterable[Row], described: TaskDescription) -> tuple[Example, ...]:
    return tuple(
        Example(row.text(described.text, "text"), _label(row, row.column(described.label, "label"), described.labels))
        for row in rows
    )


def _label(row: Row, value: Any, labels: tuple[str, ...]) -> int:
    """The number of a label that is given as a name or as a number from 0 on."""
    if isinstance(value, str) and value in labels:
        return labels.index(value)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(labels):
        return value
    known = ", ".join(f"{number} ({name})" for number, name in enumerate(labels))
    raise InputError(f"{row.where}: the label {value!r} is unknown; the task file has {known}")


def _split(examples: tuple[Example, ...], seed: int) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Half of each label's examples to train on and half to test on, by the hash of their texts."""

    def place(example: Example) -> str:
        return hashlib.sha256(f"split {seed} {example.label}\n{example.text}".encode()).hexdigest()

    parts: tuple[list[Example], list[Example]] = ([], [])
    for label in sorted({example.label for example in examples}):
        ordered = sorted({example for example in examples if example.label == label}, key=place)
        for number, example in enumerate(ordered):
            parts[(number + 1) % 2].append(example)  # of an odd number the test set has one more
    if not parts[0]:
        raise InputError("a single file needs two examples of a label at least; give a longer one")
    return tuple(parts[0]), tuple(parts[1])
