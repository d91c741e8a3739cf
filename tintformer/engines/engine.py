"""What every engine offers: run a batch, say what the model predicts after (and before) learning, and what moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Weight
from tintformer.batch import Batch
from tintformer.rule.learning_rule import LearningRule


@dataclass(frozen=True, kw_only=True)
class EngineResult:
    """Logits at the positions asked for, in row-major order, and the update of each sequence."""

    logits: Float[Tensor, "positions V"]
    logits_before: Float[Tensor, "positions V"] | None
    updates: Callable[[int], dict[str, Tensor]]
    """The change of every movable parameter in one row, by Hugging Face name, shape and orientation."""


@runtime_checkable
class Engine(Protocol):
    """An executable form of the learning rule on one auxiliary."""

    def run(self, batch: Batch, at: Bool[Tensor, "B T"], *, before: bool) -> EngineResult:
        """Train every sequence on its own, then predict at the positions `at`."""
        ...


class EngineFactory(Protocol):
    """How `Tint` makes an engine."""

    def __call__(self, auxiliary: Auxiliary, rule: LearningRule) -> Engine: ...


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Half precisions are computed in float32."""
    return torch.promote_types(dtype, torch.float32)


def to_parameters(deltas: Mapping[Weight, Tensor]) -> dict[str, Tensor]:
    """Changes of weights, put together as changes of Hugging Face parameters; fused ones have zeros where frozen."""
    parameters: dict[str, Tensor] = {}
    for weight, delta in deltas.items():
        if weight.name not in parameters:
            parameters[weight.name] = torch.zeros_like(weight.source, dtype=delta.dtype)
        weight.write(delta, into=parameters[weight.name])
    return parameters
