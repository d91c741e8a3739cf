"""A classification task: its prompt, its examples, and the identity of both."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import permutations
from typing import Any

from tintformer.errors import InputError

TEXT = "{text}"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """How an example is put to a model: the words around its text, and a word for each label."""

    template: str
    """Text with `{text}` in it once; the label word follows, after a space unless the template ends in white space."""
    words: tuple[str, ...]
    """A word for each label, in their order; a word may be several tokens."""
    calibration: str | None = None
    """What calibration predicts the label words from; None takes what follows `{text}` in the template."""
    separator: str = "\n\n"
    """What stands between the demonstrations of "multi"."""

    def __post_init__(self) -> None:
        if self.template.count(TEXT) != 1:
            count = self.template.count(TEXT)
            raise InputError(f"the prompt {self.template!r} has {TEXT} {count} times; write it once")
        if self.calibration is not None and TEXT in self.calibration:
            raise InputError(f"the calibration prompt {self.calibration!r} has {TEXT}; write it without a text")
        if not self.separator:
            raise InputError("the separator is empty, so that examples would run together; a blank line is usual")
        for word in self.words:
            if not word.strip():
                raise InputError(f"the label word {word!r} is empty; give each label a word")
            if word != word.strip():
                raise InputError(f"the label word {word!r} has spaces around it; leave them out, one is put before it")
        for one, other in permutations(self.words, 2):
            if other.startswith(one):
                raise InputError(f"the label word {one!r} is the beginning of {other!r}; choose words that differ")

    @property
    def calibration_prompt(self) -> str:
        """What calibration predicts the label words from."""
        return self.template.partition(TEXT)[2] if self.calibration is None else self.calibration

    def filled(self, text: str) -> str:
        """The prompt of a text."""
        return self.template.replace(TEXT, text)

    def continued(self, prompt: str, label: int) -> tuple[str, int, int]:
        """A prompt and its label word, and where in this text the word begins and ends."""
        word = self.words[label]
        whole = prompt + word if prompt[-1:].isspace() else f"{prompt} {word}"
        return whole, len(whole) - len(word), len(whole)

    @property
    def identity(self) -> dict[str, Any]:
        """All of it, for records."""
        return asdict(self) | {"calibration": self.calibration_prompt}


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
        raise InputError(f"the labels are {', '.join(labels) or 'none'}; at least two different ones are needed")
    if len(labels) != len(words):
        raise InputError(f"there are {len(labels)} labels but {len(words)} label words; give each label a word")
