"""What every engine offers: run a batch, say what the model predicts after (and before) learning, and what moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tintformer.auxiliary.ops import Weight
from tintformer.execution.batch import Batch
from tintformer.rule.head import token_loss


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a model says of a batch: the loss of every evaluation token, and logits where they were asked for."""

    losses: Float[Tensor, " evaluated"]
    """Negative log-likelihoods in nats, in row-major order of `Batch.evaluation_positions`."""
    logits: Float[Tensor, "positions V"] | None
    """In row-major order of the positions asked for."""


@dataclass(frozen=True, kw_only=True)
class EngineResult:
    """Predictions after (and before) learning, and the update of each sequence."""

    after: Predictions
    before: Predictions | None
    updates: Callable[[int], dict[str, Tensor]]
    """The change of every movable parameter in one row, by Hugging Face name, shape and orientation."""


@runtime_checkable
class Engine(Protocol):
    """An executable form of the learning rule on one auxiliary."""

    def run(self, batch: Batch, *, logits_at: Bool[Tensor, "B T"] | None, before: bool) -> EngineResult:
        """Train every sequence on its own, then predict; `logits_at` contains the evaluated positions."""
        ...


def predict(
    batch: Batch,
    x: Float[Tensor, "B T D"],
    logits_at: Bool[Tensor, "B T"] | None,
    head: Callable[[Tensor], Tensor],
) -> Predictions:
    """Predictions from the stream at the head's input; `head` turns rows of it into logits."""
    home, batch = batch.input_ids.device, batch.on(x.device)
    at = batch.evaluation_positions if logits_at is None else logits_at.to(batch.evaluation_positions.device)
    logits = head(x[at])
    losses = token_loss(logits[batch.evaluation_positions[at]], batch.targets[batch.evaluation_positions])
    return Predictions(losses=losses.to(home), logits=None if logits_at is None else logits.to(home))


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
