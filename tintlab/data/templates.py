"""How an example is put to a model: a template, the label words, and what calibration predicts them from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import permutations
from typing import Any

from tintformer.errors import InputError, brief

PLACEHOLDER = "{text}"


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
        if self.template.count(PLACEHOLDER) != 1:
            count = self.template.count(PLACEHOLDER)
            raise InputError(f"the prompt {brief(self.template)} has {PLACEHOLDER} {count} times; write it once")
        if self.calibration is not None and PLACEHOLDER in self.calibration:
            raise InputError(
                f"the calibration prompt {brief(self.calibration)} has {PLACEHOLDER}; write it without a text"
            )
        if not self.separator:
            raise InputError("the separator is empty, so that examples would run together; a blank line is usual")
        for word in self.words:
            if not word.strip():
                raise InputError(f"the label word {brief(word)} is empty; give each label a word")
            if word != word.strip():
                raise InputError(
                    f"the label word {brief(word)} has spaces around it; leave them out, one is put before it"
                )
        for one, other in permutations(self.words, 2):
            if other.startswith(one):
                raise InputError(
                    f"the label word {brief(one)} is the beginning of {brief(other)}; choose words that differ"
                )

    @property
    def calibration_prompt(self) -> str:
        """What calibration predicts the label words from."""
        return self.template.partition(PLACEHOLDER)[2] if self.calibration is None else self.calibration

    def filled(self, text: str) -> str:
        """The prompt of a text."""
        return self.template.replace(PLACEHOLDER, text)

    def continued(self, prompt: str, label: int) -> tuple[str, int, int]:
        """A prompt and its label word, and where in this text the word begins and ends."""
        word = self.words[label]
        whole = prompt + word if prompt[-1:].isspace() else f"{prompt} {word}"
        return whole, len(whole) - len(word), len(whole)

    @property
    def identity(self) -> dict[str, Any]:
        """All of it, for records."""
        return asdict(self) | {"calibration": self.calibration_prompt}
