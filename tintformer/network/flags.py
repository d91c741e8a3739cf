"""What enters from outside besides token ids (or examples): token by token, as coordinates of the text.

Who sees whom is told by whole numbers, so that two tokens can compare them by an inner product without error: token t
sees token j of the same segment, -(s_t - s_j)^2 = 0; a padding token has a segment of its own and sees itself alone;
shared tokens are seen by every token that is no padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.execution.batch import Batch
from tintformer.execution.inputs import SHARED
from tintformer.rule.learning_rule import LearningRule

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
"""In this order, from the first coordinate of the first flag slot on. `own` is 1 where a token is not shared.

The loss weights of all steps but the first follow behind them.
"""

SEGMENT_QUERY = {"segment squared": (0, -1.0), "segment": (1, 2.0), "text": (2, -1.0), "padding": (3, -1.0)}
SEGMENT_KEY = {"own": (0, 1.0), "own segment": (1, 1.0), "own segment squared": (2, 1.0), "shared": (3, 1.0)}
"""Features of both sides by coordinate: their product is -(s_t - s_j)^2, or -padding_t where j is shared."""


def coordinate(name: str) -> int:
    return COORDINATES.index(name)


def loss_coordinate(step: int) -> int:
    """Where the loss weight of a step stands, from 1."""
    return coordinate("loss weight") if step == 1 else len(COORDINATES) + step - 2


def num_coordinates(rule: LearningRule) -> int:
    """Coordinates of all flags."""
    return len(COORDINATES) + rule.steps - 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Flags:
    """The text's coordinates, `[B, T]` each."""

    loss_weights: tuple[Tensor, ...]
    """By step: 0 where no target of the step is predicted; else 1, or one over their number in the sequence."""
    segment: Tensor
    """Numbers from 0; -1 for shared tokens, and for padding token t the number -(t + 2)."""
    padding: Tensor
    shared: Tensor
    distance: Tensor
    """Number of the token among those it can see, by which windows count."""
    position: Tensor
    """Position ids."""
    targets: Tensor | None = None
    """`[B, T, k]`: the targets of examples; None where the text itself holds them."""

    @classmethod
    def of(cls, batch: Batch, rule: LearningRule) -> Flags:
        """From a checked batch."""
        mean, every_step = rule.reduction == "mean", range(1, rule.steps + 1)
        attended, shared = batch.attention_mask, batch.attention_mask & (batch.segment_ids == SHARED)
        alone = -2 - torch.arange(attended.shape[1], device=attended.device)
        # Ranks, because squares of a user's own numbers might not be exact.
        segment = torch.where(attended, torch.where(shared, SHARED, batch.segment_ranks), alone)
        return cls(
            loss_weights=tuple(loss_weight(batch.train_positions_at(step), mean=mean) for step in every_step),
            segment=segment,
            padding=~attended,
            shared=shared,
            distance=batch.distances,
            position=batch.positions,
            targets=batch.targets if batch.targets.is_floating_point() else None,
        )

    def table(self, dtype: torch.dtype) -> Float[Tensor, "B T coordinates"]:
        """All coordinates, in their order."""
        segment, shared = self.segment.to(dtype), self.shared.to(dtype)
        own = 1 - shared
        columns = {
            "text": torch.ones_like(segment),
            "loss weight": self.loss_weights[0].to(dtype),
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
        later = [weight.to(dtype) for weight in self.loss_weights[1:]]
        return torch.stack([*(columns[name] for name in COORDINATES), *later], dim=-1)


def loss_weight(train_positions: Tensor, *, mean: bool) -> Tensor:
    """How much each position counts in the loss of its sequence in one step."""
    weight = train_positions.to(torch.float64)
    return weight / train_positions.sum(-1, keepdim=True).clamp(min=1) if mean else weight
