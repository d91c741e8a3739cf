"""Errors and warnings of the package: one base class, one clear line each, with the cause and the remedy."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Iterable
from itertools import islice
from typing import Any

LONGEST = 80
"""Characters of a foreign value in a message: more hide the message, and may be built from a few bytes of YAML."""
LISTED = 12
"""Names of a list in a message."""
LONGEST_CAUSE = 300
"""Characters of what a library says about a failure."""


class TintError(ValueError):
    """Base of every error that bad input can cause; the command line prints it as one line and exits with 2."""


class InputError(TintError):
    """Tokens, masks or segments that cannot be trained on or scored."""


class RuleError(TintError):
    """A learning rule with unknown names or contradicting knobs."""


class DivergenceError(TintError):
    """Learning that made numbers non-finite; the message names where it happened."""

    @classmethod
    def at(cls, where: str, learning_rate: float, when: str = "") -> DivergenceError:
        """The error for a place, with a smaller rate to try.

        Args:
            where: What is non-finite.
            learning_rate: The rate that was too large.
            when: The step, for the message.
        """
        return cls(
            f"{where} contains NaN or infinity{when}: learning_rate={learning_rate:g} is too large for this text; "
            f"try {learning_rate / 4:g}"
        )


class NonFiniteError(TintError):
    """A model whose numbers are non-finite before anything is learnt; the message names where, and a likely cause."""


class LoadError(TintError):
    """A model that cannot be found or read."""


class UnsupportedModelError(TintError):
    """A model outside of what can be described; the message lists every reason at once.

    Args:
        model: What the model is called.
        reasons: All of them, one line each; also an attribute of the error.
    """

    def __init__(self, model: str, reasons: list[str]):
        self.reasons = reasons
        lines = "".join(f"\n  - {reason}" for reason in reasons)
        super().__init__(f"{model} cannot be simulated:{lines}")


def cause(error: Exception) -> str:
    """What a library says about a failure, on one line; a heading that ends in a colon takes the next line with it."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    said = " ".join(lines[: 2 if lines[0].endswith(":") else 1]).rstrip(".")
    return said if len(said) <= LONGEST_CAUSE else f"{said[: LONGEST_CAUSE - 3]}..."


class _Brief(reprlib.Repr):
    """A repr that looks at no more of a value than it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 3
        self.maxstring = self.maxother = LONGEST

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write more than 4,300 digits, and takes long over fewer.
        return repr(x) if x.bit_length() <= 200 else f"a whole number of {x.bit_length()} bits"

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x[:LONGEST])


_BRIEF = _Brief()


def brief(value: Any) -> str:
    """A value that somebody else chose, for a message: its repr on one line, cut, and never built in full."""
    # A repr escapes what a terminal would obey: control characters, and those that turn the direction of writing.
    text = " ".join(_BRIEF.repr(value).split("\n"))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def listed(names: Iterable[str]) -> str:
    """Names that somebody else chose, for a message, with commas between them: the first dozen, each cut."""
    shown = [name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..." for name in islice(names, LISTED + 1)]
    return ", ".join([*shown[:LISTED], *(["..."] if len(shown) > LISTED else [])])


def nearest(name: Any, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: `; did you mean nano-llama?`, or nothing if none is near."""
    from difflib import get_close_matches  # not before it is needed: every command imports this module

    # In lower case: what differs in case alone is nearest of all. A name that is very long would take long to compare.
    given, spellings = str(name)[:LONGEST], {known.lower(): known for known in names}
    found = [spellings[near] for near in get_close_matches(given.lower(), spellings, n=1)]
    return f"; did you mean {found[0]}?" if found and found[0] != given else ""


class TintWarning(UserWarning):
    """Something legal that a user most likely did not intend."""


def warn(message: str) -> None:
    """Warn at the line outside of the package that led here, however many calls lie between."""
    from inspect import currentframe  # not before it is needed

    frame, level, outermost = currentframe(), 1, 1
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
            outermost = level
        frame, level = frame.f_back, level + 1
    warnings.warn(message, TintWarning, stacklevel=outermost + 1)
