"""What all methods of the benchmark share: the model they run on, and what a method is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tintbench.cases import Settings, make_model, random_tokens
from tintbench.flops import MultiplyAdds
from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import TintError
from tintformer.learning.tint import Tint
from tintformer.rule.learning_rule import LearningRule
from tintformer.storage.loading import load


@dataclass(frozen=True, eq=False, kw_only=True)
class Setup:
    """What all methods share on one model."""

    auxiliary: Auxiliary
    rule: LearningRule
    engine: str
    seed: int

    @classmethod
    def of(cls, settings: Settings, model: str) -> Setup:
        """Make the model."""
        auxiliary = load(make_model(model, getattr(torch, settings.dtype), seed=settings.seed).to(settings.device))
        rule = LearningRule(learning_rate=settings.learning_rate)
        return cls(auxiliary=auxiliary, rule=rule, engine=settings.engine, seed=settings.seed)

    @property
    def model(self) -> Any:
        return self.auxiliary.model

    @cached_property
    def count(self) -> MultiplyAdds:
        return MultiplyAdds(self.auxiliary, self.rule)

    def tokens(self, rows: int, length: int) -> Tensor:
        ids = random_tokens((rows, length), self.auxiliary.vocabulary_size, seed=self.seed)
        return ids.to(self.auxiliary.device)

    def tint(self, **knobs: Any) -> Tint:
        """The engine under test; `knobs` are those of `Tint`."""
        return Tint(self.auxiliary, self.rule, engine=self.engine, **knobs)

    def tint_float32(self) -> Tint:
        """The engine in float32 on the same weights, as they stand in the lower precision."""
        return Tint(load(deepcopy(self.model).float()), self.rule, engine=self.engine)


@dataclass(frozen=True, eq=False, kw_only=True)
class TimedMethod:
    """One way of doing a case, ready to run."""

    run: Callable[[], Tensor | None]
    """Do it; returns the losses of the evaluated tokens, row by row, or None where nothing is predicted."""
    multiply_adds: int
    """What the necessary products of the whole case need; see `flops`."""
    scale: float = 1.0
    """The whole case over what `run` does of it."""
    note: str = ""


class Skip(TintError):
    """A method that cannot take part; the message says why."""


def plain_forward(setup: Setup, batches: Sequence[Tensor]) -> TimedMethod:
    """A plain forward pass of the Hugging Face model: nothing is learnt."""

    @torch.inference_mode()
    def run() -> None:
        for rows in batches:
            setup.model(rows, use_cache=False)

    length = batches[0].shape[1]
    return TimedMethod(run=run, multiply_adds=sum(map(len, batches)) * setup.count.forward(length, length))
