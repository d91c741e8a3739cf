"""Errors and warnings of the package: one base class, one clear line each, with the cause and the remedy."""

from __future__ import annotations


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
        return cls(
            f"{where} contains NaN or infinity{when}: learning_rate={learning_rate:g} is too large for this text; "
            f"try {learning_rate / 4:g}"
        )


class NonFiniteError(TintError):
    """A model whose numbers are non-finite before anything is learnt; the message names where, and a likely cause."""


class LoadError(TintError):
    """A model that cannot be found or read."""


class UnsupportedModelError(TintError):
    """A model outside of what can be described; the message lists every reason at once."""

    def __init__(self, model: str, reasons: list[str]):
        self.reasons = reasons
        lines = "".join(f"\n  - {reason}" for reason in reasons)
        super().__init__(f"{model} cannot be simulated:{lines}")


def cause(error: Exception) -> str:
    """What a library says about a failure, on one line; a heading that ends in a colon takes the next line with it."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1]).rstrip(".")


class TintWarning(UserWarning):
    """Something legal that a user most likely did not intend."""
