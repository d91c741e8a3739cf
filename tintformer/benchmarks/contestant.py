"""What a contestant is: something that runs, and how much work it stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import TintError
from tintformer.learning.tint import Tint
from tintformer.rule.learning_rule import LearningRule


@dataclass(frozen=True, eq=False, kw_only=True)
class Ground:
    """What all contestants of a model share."""

    auxiliary: Auxiliary
    rule: LearningRule
    engine: str
    seed: int

    @property
    def model(self) -> Any:
        return self.auxiliary.model

    def tint(self, auxiliary: Auxiliary | None = None, **knobs: Any) -> Tint:
        """The engine under test; `knobs` are those of `Tint`."""
        return Tint(auxiliary or self.auxiliary, self.rule, engine=self.engine, **knobs)


@dataclass(frozen=True, eq=False, kw_only=True)
class Contestant:
    """One way of doing a case."""

    run: Callable[[], Tensor | None]
    """Do it; returns the losses of the evaluated tokens, row by row, or None where nothing is predicted."""
    multiply_adds: int
    """What the necessary products of the whole case need; see `work`."""
    scale: float = 1.0
    """The whole case over what `run` does of it."""
    note: str = ""


class Skip(TintError):
    """A contestant that cannot take part; the message says why."""
