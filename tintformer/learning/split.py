"""Split: which tokens of a text are trained on, for the command line and for Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tintformer.errors import InputError
from tintformer.typed_fields import Range, check_fields

TRAIN_FRACTION = 0.5


@dataclass(frozen=True, kw_only=True)
class Split:
    """How much of a text is trained on: a number of tokens, or a fraction of them; the rest is evaluated."""

    train_fraction: float | None = None
    train_tokens: Annotated[int | None, Range(at_least=2)] = None

    def __post_init__(self) -> None:
        if self.train_fraction is not None and self.train_tokens is not None:
            raise InputError("train_fraction and train_tokens say the same thing; give one of them")
        check_fields(self, InputError)
        if self.train_fraction is not None and not 0 < self.train_fraction < 1:
            raise InputError(f"train_fraction={self.train_fraction:g} must lie between 0 and 1")

    def of(self, num_tokens: int) -> int:
        """The number of training tokens; a target to train on and a token to evaluate must be left."""
        fraction = TRAIN_FRACTION if self.train_fraction is None else self.train_fraction
        train = round(fraction * num_tokens) if self.train_tokens is None else self.train_tokens
        if not 2 <= train < num_tokens:
            raise InputError(
                f"the training part would be {train} of {num_tokens} tokens; it needs at least 2, "
                "and 1 must be left to evaluate"
            )
        return train
