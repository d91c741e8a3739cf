"""The description of a task: a small YAML file, every key checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tintformer.errors import InputError
from tintformer.experiments.described import a_count, a_string, checked, read_description, strings
from tintformer.experiments.hub import Hub, to_hub
from tintformer.experiments.tasks.task import Prompt, check_labels

KIND = "classification"
PROMPT_KEYS = ("prompt", "words", "calibration", "separator")


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

    def own_prompt(self) -> Prompt:
        """The prompt that is used unless a variant is asked for."""
        return Prompt(template=self.prompt, words=self.words, calibration=self.calibration, separator=self.separator)


def read_task_description(name: str) -> tuple[TaskDescription, str]:
    """What a YAML file says, every key checked, and what to call it in messages."""
    given, source = read_description(name)
    if given.get("kind") != KIND:
        raise InputError(f"{source} describes no task (its kind is {given.get('kind')!r}); the kind must be {KIND!r}")
    keys = checked(TaskDescription, given, source)
    for key in ("title", "path", "train", "test", "text", "label"):
        if key in keys and not (key == "path" and keys[key] is None):
            a_string(keys[key], f"{source}: {key}")
    keys["labels"] = strings(keys["labels"], f"{source}: labels")
    a_count(keys.get("limit"), f"{source}: limit")
    if keys.get("hub") is not None:
        keys["hub"] = to_hub(keys["hub"], source)
    if keys.get("path") is not None:
        keys["path"] = str(Path(source).parent / Path(keys["path"]).expanduser())
    own = {key: keys[key] for key in PROMPT_KEYS if key in keys}
    keys["words"] = _prompt(own, keys["labels"], source).words
    variants = keys.get("variants") or {}
    if not isinstance(variants, dict):
        raise InputError(f"{source}: variants is {variants!r}; it must hold names, each with its keys")
    keys["variants"] = {
        str(name): _variant(own, given, keys["labels"], f"{source}: variant {name}") for name, given in variants.items()
    }
    return TaskDescription(**keys), source


def _variant(own: dict[str, Any], given: Any, labels: tuple[str, ...], where: str) -> Prompt:
    """The task's prompt with some of its keys changed; a new prompt does not keep the old one's calibration."""
    if not isinstance(given, dict):
        raise InputError(f"{where} is {given!r}; it must hold some of the keys {', '.join(PROMPT_KEYS)}")
    unknown = [str(key) for key in given if key not in PROMPT_KEYS]
    if unknown:
        raise InputError(f"{where}: the key {unknown[0]!r} is unknown; known are {', '.join(PROMPT_KEYS)}")
    base = {key: value for key, value in own.items() if key != "calibration" or "prompt" not in given}
    return _prompt(base | given, labels, where)


def _prompt(given: dict[str, Any], labels: tuple[str, ...], where: str) -> Prompt:
    words = strings(given["words"], f"{where}: words")
    template = a_string(given["prompt"], f"{where}: prompt")
    separator = a_string(given.get("separator", Prompt.separator), f"{where}: separator")
    calibration = given.get("calibration")
    if calibration:  # it may be nothing: then the answer follows the BOS
        a_string(calibration, f"{where}: calibration")
    try:
        check_labels(labels, words)
        return Prompt(template=template, words=words, calibration=calibration, separator=separator)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
