"""What enters from outside besides token ids: token by token, as coordinates of the text.

Who sees whom is told by whole numbers, so that two tokens can compare them by an inner product without error: token t
sees token j of the same segment, -(s_t - s_j)^2 = 0; a padding token has a segment of its own and sees itself alone;
shared tokens are seen by every token that is no padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.execution.batch import SHARED, Batch

COORDINATES = (
    "text",
    "loss weight",
    "segment",
    "segment squared",
    "padding",
    "shared",
    "own",
    "own segment",
    "own segment squared",
    "distance",
    "position",
)
"""In this order, from the first coordinate of the first flag slot on. `own` is 1 where a token is not shared."""

SEGMENT_QUERY = {"segment squared": (0, -1.0), "segment": (1, 2.0), "text": (2, -1.0), "padding": (3, -1.0)}
SEGMENT_KEY = {"own": (0, 1.0), "own segment": (1, 1.0), "own segment squared": (2, 1.0), "shared": (3, 1.0)}
"""Features of both sides by coordinate: their product is -(s_t - s_j)^2, or -padding_t where j is shared."""


def coordinate(name: str) -> int:
    return COORDINATES.index(name)


@dataclass(frozen=True, eq=False, kw_only=True)
class Flags:
    """The text's coordinates, `[B, T]` each."""

    loss_weight: Tensor
    """0 where no training target is predicted; else 1, or one over the number of targets of the sequence."""
    segment: Tensor
    """Numbers from 0; -1 for shared tokens, and for padding token t the number -(t + 2)."""
    padding: Tensor
    shared: Tensor
    distance: Tensor
    """Number of the token among those it can see, by which windows count."""
    position: Tensor
    """Position ids."""

    @classmethod
    def of(cls, batch: Batch, *, mean: bool) -> Flags:
        """From a checked batch."""
        attended, shared = batch.attention_mask, batch.attention_mask & (batch.segment_ids == SHARED)
        alone = -2 - torch.arange(attended.shape[1], device=attended.device)
        # Ranks, because squares of a user's own numbers might not be exact.
        segment = torch.where(attended, torch.where(shared, SHARED, batch.segment_ranks), alone)
        return cls(
            loss_weight=loss_weight(batch.train_positions, mean=mean),
            segment=segment,
            padding=~attended,
            shared=shared,
            distance=batch.distances,
            position=batch.positions,
        )

    def table(self, dtype: torch.dtype) -> Float[Tensor, "B T coordinates"]:
        """All coordinates, in their order."""
        segment, shared = self.segment.to(dtype), self.shared.to(dtype)
        own = 1 - shared
        columns = {
            "text": torch.ones_like(segment),
            "loss weight": self.loss_weight.to(dtype),
            "segment": segment,
            "segment squared": segment * segment,
            "padding": self.padding.to(dtype),
            "shared": shared,
            "own": own,
            "own segment": own * segment,
            "own segment squared": own * segment * segment,
            "distance": self.distance.to(dtype),
            "position": self.position.to(dtype),
        }
        return torch.stack([columns[name] for name in COORDINATES], dim=-1)


def loss_weight(train_positions: Tensor, *, mean: bool) -> Tensor:
    """How much each position counts in the loss of its sequence."""
    weight = train_positions.to(torch.float64)
    return weight / train_positions.sum(-1, keepdim=True).clamp(min=1) if mean else weight
