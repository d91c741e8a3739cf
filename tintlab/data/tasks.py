"""Classification tasks: how an example is put to a model, where examples come from, and which of them are taken.

Examples are chosen by the hash of seed and text: the choice is the same on every machine, and nothing depends on the
order of a file. The first n of a longer choice are the choice of n, so that an experiment can grow. Texts that occur
twice count once, and a text of the test set is never trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from tintformer.errors import InputError, brief, listed
from tintformer.storage.untrusted_files import user_path
from tintlab.data.label_files import (
    LabelFiles,
    LabelTexts,
    described_rows,
    find_label_files,
    read_label_files,
    require_encoding,
    require_label_files,
    require_label_texts,
)
from tintlab.data.sources import (
    ROW_SUFFIXES,
    DataRow,
    Hub,
    described_keys,
    read_hub,
    read_rows,
    require_string,
    require_strings,
)
from tintlab.data.templates import Prompt

CLASSIFICATION = "classification"
"""The `kind` of a description of a task."""
PROMPT_KEYS = ("prompt", "words", "calibration", "separator")
TRAIN_NAMES = ("train",)
TEST_NAMES = ("test", "eval", "validation", "valid", "dev")
"""File names, without their ending, that are looked for in a directory, after the one in the description."""


@dataclass(frozen=True)
class Example:
    """A text and the number of its label."""

    text: str
    label: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """A classification task with its examples."""

    name: str
    title: str
    """What tables call it."""
    labels: tuple[str, ...]
    """The names that labels have in the data, if they are not numbers from 0 on."""
    prompt: Prompt
    train: tuple[Example, ...]
    """Where demonstrations and the examples for choosing a learning rate come from."""
    test: tuple[Example, ...]
    variant: str | None = None
    """The name of the prompt, if it is not the task's own."""

    def __post_init__(self) -> None:
        check_labels(self.labels, self.prompt.words)

    @cached_property
    def data_hash(self) -> str:
        """SHA-256 of all examples, in their order."""
        digest = hashlib.sha256()
        for name, examples in (("train", self.train), ("test", self.test)):
            digest.update(f"{name} {len(examples)}\n".encode())
            for example in examples:
                data = example.text.encode()
                digest.update(b"%d %d\n" % (example.label, len(data)) + data)
        return digest.hexdigest()

    @property
    def identity(self) -> dict[str, Any]:
        """Name, prompt and SHA-256 of the examples, for records."""
        return {"name": self.name, "variant": self.variant, "sha256": self.data_hash, "prompt": self.prompt.identity}


def check_labels(labels: tuple[str, ...], words: tuple[str, ...]) -> None:
    """Refuse labels that are not at least two different ones, each with a word."""
    if len(set(labels)) < max(2, len(labels)):
        raise InputError(f"the labels are {listed(labels) or 'none'}; at least two different ones are needed")
    if len(labels) != len(words):
        raise InputError(f"there are {len(labels)} labels but {len(words)} label words; give each label a word")


@dataclass(frozen=True, kw_only=True)
class TaskDescription:
    """Where the examples are and how they are put to a model: the keys of a task's YAML file."""

    kind: str
    """`classification`."""
    title: str
    """What tables call it."""
    labels: tuple[str, ...]
    """Names of the labels 0, 1, ...; the data may hold either."""
    prompt: str
    """Template with `{text}`."""
    words: tuple[str, ...]
    """A word for each label."""
    calibration: str | None = None
    """Prompt without a text; left out, what follows `{text}`."""
    separator: str = "\n\n"
    """Between the demonstrations of "multi"."""
    variants: dict[str, Prompt] = field(default_factory=dict[str, Prompt])
    """Other prompts by name: each has some of the keys prompt, words, calibration and separator."""
    path: str | None = None
    """A directory with a train and a test file, or one file, beside the description or absolute."""
    hub: Hub | None = None
    """A data set of the hub, if there is no path."""
    train: str = "train"
    """The split on the hub, or the file's name in a directory."""
    test: str = "test"
    """The same, for what is tested on."""
    text: str = "text"
    """The column that holds the text; a local file may have `text` instead."""
    label: str = "label"
    """The column that holds the label; a local file may have `label` instead."""
    limit: int | None = None
    """Rows to take of each split on the hub: too few leave no choice of examples, all of them may be millions."""
    files: LabelFiles = field(default_factory=dict[str, tuple[str, ...]])
    """Of a directory without a train file: for each label the file that holds its texts, one a line."""
    encoding: str = "utf-8"
    """Of these files."""
    texts: LabelTexts = field(default_factory=dict[str, tuple[str, ...]])
    """The examples themselves, for each label its texts, if there is neither a path nor a data set of the hub."""

    def own_prompt(self) -> Prompt:
        """The prompt that is used unless a variant is asked for."""
        return Prompt(template=self.prompt, words=self.words, calibration=self.calibration, separator=self.separator)


def read_task_description(name: str) -> tuple[TaskDescription, str]:
    """What a YAML file says, every key checked, and what to call it in messages."""
    keys, source = described_keys(TaskDescription, name, CLASSIFICATION, "task")
    for key in ("title", "train", "test", "text", "label"):
        if key in keys:
            require_string(keys[key], f"{source}: {key}")
    keys["labels"] = require_strings(keys["labels"], f"{source}: labels")
    if "files" in keys:
        keys["files"] = require_label_files(keys["files"], keys["labels"], f"{source}: files")
    if "texts" in keys:
        keys["texts"] = require_label_texts(keys["texts"], keys["labels"], f"{source}: texts")
    require_encoding(keys.get("encoding", "utf-8"), f"{source}: encoding")
    own = {key: keys[key] for key in PROMPT_KEYS if key in keys}
    keys["words"] = _prompt(own, keys["labels"], source).words
    variants = keys.get("variants") or {}
    if not isinstance(variants, dict):
        raise InputError(f"{source}: variants is {brief(variants)}; it must hold names, each with its keys")
    named = {name if isinstance(name, str) else brief(name): given for name, given in variants.items()}
    keys["variants"] = {
        name: _variant(own, given, keys["labels"], f"{source}: variant {listed([name])}")
        for name, given in named.items()
    }
    return TaskDescription(**keys), source


def _variant(own: dict[str, Any], given: Any, labels: tuple[str, ...], where: str) -> Prompt:
    """The task's prompt with some of its keys changed; a new prompt does not keep the old one's calibration."""
    if not isinstance(given, dict):
        raise InputError(f"{where} is {brief(given)}; it must hold some of the keys {', '.join(PROMPT_KEYS)}")
    unknown = [key for key in given if key not in PROMPT_KEYS]
    if unknown:
        raise InputError(f"{where}: the key {brief(unknown[0])} is unknown; known are {', '.join(PROMPT_KEYS)}")
    base = {key: value for key, value in own.items() if key != "calibration" or "prompt" not in given}
    return _prompt(base | given, labels, where)


def _prompt(given: dict[str, Any], labels: tuple[str, ...], where: str) -> Prompt:
    words = require_strings(given["words"], f"{where}: words")
    template = require_string(given["prompt"], f"{where}: prompt")
    separator = require_string(given.get("separator", Prompt.separator), f"{where}: separator")
    calibration = given.get("calibration")
    if calibration:  # it may be nothing: then the answer follows the BOS
        require_string(calibration, f"{where}: calibration")
    try:
        check_labels(labels, words)
        return Prompt(template=template, words=words, calibration=calibration, separator=separator)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def load_task(name: str, data: str | Path | None = None, *, variant: str | None = None, split_seed: int = 0) -> Task:
    """A task by the name of a shipped description or the path of a YAML file.

    `data` takes the place of the location that the description names: a directory with train and test files (JSONL,
    CSV, TSV or Parquet), one such file, or a directory with a file for each label; of the latter two half of each
    label's examples, chosen by `split_seed`, is the test set. `variant` chooses another prompt of the description.
    """
    described, source = read_task_description(name)
    if variant is not None and variant not in described.variants:
        raise InputError(f"{source} has no variant {brief(variant)}; it has {listed(described.variants) or 'none'}")
    prompt = described.own_prompt() if variant is None else described.variants[variant]
    if data is not None:
        described = replace(described, path=str(user_path(data)))
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
        if described.hub is None and described.texts:
            return _split(_labelled(described_rows(described.texts, source), described), seed)
        if described.hub is None:
            raise InputError(f"{source} names neither a path nor a data set of the hub; give the files with --data")
        splits = (read_hub(described.hub, split, described.limit) for split in (described.train, described.test))
        train, test = (_labelled(rows, described) for rows in splits)
        return train, test
    path = Path(described.path)
    if path.is_dir():
        names = (described.train, *TRAIN_NAMES)
        if not _files(path, names) and (by_label := find_label_files(path, described.files)):
            return _split(_labelled(read_label_files(by_label, described.encoding), described), seed)
        files = (_find(path, names, described.files), _find(path, (described.test, *TEST_NAMES)))
        train, test = (_labelled(read_rows(file), described) for file in files)
        return train, test
    if not path.exists():
        raise InputError(f"{path} is not there; give a directory with train and test files, or one data file")
    return _split(_labelled(read_rows(path), described), seed)


def _find(directory: Path, names: Iterable[str], by_label: LabelFiles | None = None) -> Path:
    """The data file of the first of these names that the directory has."""
    found = _files(directory, names)
    if len(found) > 1:
        raise InputError(f"{directory} holds both {found[0].name} and {found[1].name}; remove one of them")
    if found:
        return found[0]
    wanted, others = " or ".join(dict.fromkeys(names)), " and ".join(names[0] for names in (by_label or {}).values())
    raise InputError(
        f"{directory} holds no {wanted} with one of the endings {', '.join(ROW_SUFFIXES)}; put one there"
        f"{f', or {others} as distributed' if others else ''}"
    )


def _files(directory: Path, names: Iterable[str]) -> list[Path]:
    """The data files of the first of these names that the directory has any of."""
    for name in dict.fromkeys(names):
        files = [directory / name, *(directory / f"{name}{suffix}" for suffix in ROW_SUFFIXES)]
        if found := [file for file in files if file.is_file()]:
            return found
    return []


def _labelled(rows: Iterable[DataRow], described: TaskDescription) -> tuple[Example, ...]:
    return tuple(
        Example(row.text(described.text, "text"), _label(row, row.column(described.label, "label"), described.labels))
        for row in rows
    )


def _label(row: DataRow, value: Any, labels: tuple[str, ...]) -> int:
    """The number of a label that is given as a name or as a number from 0 on."""
    if isinstance(value, str) and value in labels:
        return labels.index(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(labels):
        return value
    known = listed(f"{number} ({name})" for number, name in enumerate(labels))
    raise InputError(f"{row.where}: the label {brief(value)} is unknown; the task file has {known}")


def _split(examples: tuple[Example, ...], seed: int) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Half of each label's examples to train on and half to test on, by the hash of their texts."""

    def rank(example: Example) -> str:
        return hashlib.sha256(f"split {seed} {example.label}\n{example.text}".encode()).hexdigest()

    parts: tuple[list[Example], list[Example]] = ([], [])
    for label in sorted({example.label for example in examples}):
        ordered = sorted({example for example in examples if example.label == label}, key=rank)
        for number, example in enumerate(ordered):
            parts[(number + 1) % 2].append(example)  # of an odd number the test set has one more
    if not parts[0]:
        raise InputError("a single file needs two examples of a label at least; give a longer one")
    return tuple(parts[0]), tuple(parts[1])


def demonstrations(task: Task, k: int, seed: int, balanced: bool = True) -> tuple[Example, ...]:
    """The k training examples of a seed, in the order in which they are shown; `balanced` takes labels in turn.

    Few demonstrations make the result depend on the seed; many do not fit into the context of "multi".
    """
    return _take(task, _trainable(task), k, f"demonstrations {seed}", balanced, "k")


def test_examples(task: Task, n: int | None = None, balanced: bool = True) -> tuple[Example, ...]:
    """The first n test examples, the same for every seed; None takes all, or as many as can be balanced.

    With n = 200 one standard error of an accuracy is about 3 points; fewer say little.
    """
    examples = _distinct(task.test)
    if n is None:
        smallest = min(sum(example.label == label for example in examples) for label in range(len(task.labels)))
        n = smallest * len(task.labels) if balanced else len(examples)
    return _take(task, examples, n, "test", balanced, "n")


def tuning_examples(
    task: Task, n: int, seed: int, without: Sequence[Example] = (), balanced: bool = True
) -> tuple[Example, ...]:
    """Examples of the train pool to choose a learning rate on; `without` are the demonstrations of this seed.

    They are neither trained on nor tested. With few of them the choice of the rate is a guess.
    """
    used = {example.text for example in without}
    examples = [example for example in _trainable(task) if example.text not in used]
    return _take(task, examples, n, f"tuning {seed}", balanced, "n")


test_examples.__test__ = False  # pyright: ignore[reportFunctionMemberAccess] (pytest would take it for a test)


def _trainable(task: Task) -> list[Example]:
    tested = {example.text for example in task.test}
    return [example for example in _distinct(task.train) if example.text not in tested]


def _distinct(examples: Iterable[Example]) -> list[Example]:
    """One example a text: the one whose label is lowest, so that the order of the file does not matter."""
    found: dict[str, Example] = {}
    for example in examples:
        if example.text not in found or example.label < found[example.text].label:
            found[example.text] = example
    return list(found.values())


def _take(
    task: Task, examples: Sequence[Example], n: int, purpose: str, balanced: bool, name: str
) -> tuple[Example, ...]:
    """The first n by hash; balanced, one of each label in turn, the labels of every round in an order of its own."""
    if n < 0:
        raise InputError(f"{name}={n}; it cannot be less than 0")
    ordered = sorted(examples, key=lambda example: _rank(purpose, example.text))
    if not balanced:
        if n > len(ordered):
            raise InputError(f"{name}={n}, but {task.name} has {len(ordered)} examples for this; take fewer")
        return tuple(ordered[:n])
    labels = range(len(task.labels))
    # Balanced as the authors do it: an accuracy then compares with one over the number of labels.
    queues = {label: [example for example in ordered if example.label == label] for label in labels}
    chosen: list[Example] = []
    for turn in count():
        for label in sorted(labels, key=lambda label: _rank(purpose, f"{turn} {label}")):
            if len(chosen) == n:
                return tuple(chosen)
            if turn == len(queues[label]):
                raise InputError(
                    f"{name}={n} over {len(labels)} labels, but {task.name} has {turn} examples of "
                    f"{task.labels[label]!r} for this; take at most {turn * len(labels)}, or do not balance"
                )
            chosen.append(queues[label][turn])
    raise AssertionError("the rounds never end by themselves")


def _rank(purpose: str, text: str) -> str:
    return hashlib.sha256(f"{purpose}\n{text}".encode()).hexdigest()
