"""The gradient of the loss at the head's input (paper: section "Language model head").

dx_t = E^T softmax(E x_t + b) - e_{t+1}: a feed-forward layer over the vocabulary, and a linear attention in which
every token sees the next one alone, whose value is minus the head's row of its token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.primitives.attention import Attention, Bias, Port, Weigh
from tintformer.simulator.primitives.gate import Gate
from tintformer.simulator.primitives.linear_maps import DimensionWise
from tintformer.simulator.primitives.vocabulary import FeedForward, Table

Pieces = Float[Tensor, "B 1 T Dslot"]


@dataclass(frozen=True, eq=False)
class Lesson:
    """What comes with the input: the tokens, which of them predict a training target, and how much each counts."""

    ids: Int[Tensor, "B T"]
    scored: Bool[Tensor, "B T"]
    weight: Float[Tensor, "B 1 T 1"]
    """0 where nothing is scored; else 1, or one over the number of targets of the sequence."""
    next_token: Float[Tensor, "B 1 1 1 T T"]
    """1 where t is scored and j = t + 1."""


class LossGradient(nn.Module):
    """dx at every token, exactly zero where nothing is scored."""

    def __init__(
        self, rows: nn.Parameter, bias: nn.Parameter | None, *, rule: LearningRule, dim_slot: int, weigh: Weigh
    ):
        super().__init__()
        self.feed_forward = None
        if rule.loss != "mse":
            self.feed_forward = FeedForward(rows, bias, "softmax" if rule.loss == "cross_entropy" else "identity")
        self.targets = Table(rows, dim_slot=dim_slot)
        one = torch.ones(1, 1, dtype=torch.float64)
        self.next_token = Attention(
            query=Port(positional=Bias(one)),
            key=Port(positional=Bias(one.clone())),
            value=Port(reads="target", factors=[DimensionWise(-one[None].clone())]),
            weigh=weigh,
        )
        self.gate = Gate()

    def forward(self, x: Pieces, lesson: Lesson) -> Pieces:
        predicted = x
        if self.feed_forward is not None:
            predicted = torch.zeros_like(x)
            predicted[:, 0][lesson.scored] = self.feed_forward(x[:, 0][lesson.scored])
        target = self.targets(lesson.ids)[:, :, None, None]
        minus_target = self.next_token({}, {"target": target}, lesson.next_token)
        return self.gate(torch.add(predicted, minus_target[:, :, 0, 0]), lesson.weight)
