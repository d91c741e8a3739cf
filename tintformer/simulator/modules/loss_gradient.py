"""The gradient of the loss at the head's input (paper: section "Language model head").

dx_t = E^T softmax(E x_t + b) - e_{t+1}: a feed-forward layer over the vocabulary, and a linear attention in which
every token sees the next one alone, whose value is minus the head's row of its token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from tintformer.rule.learning_rule import Loss
from tintformer.simulator.layouts import Layout, Module
from tintformer.simulator.primitives.attention import Attention, Bias, Port, Weigh
from tintformer.simulator.primitives.tokenwise import DimensionWise, FeedForward, Gate, Table

Pieces = Float[Tensor, "B 1 T Dslot"]


@dataclass(frozen=True, eq=False)
class LossInputs:
    """What comes with the input: the tokens, which of them predict a training target, and how much each counts."""

    targets: Shaped[Tensor, "B T *vector"]
    """What stands at each token as a target: its number, or the vector of an example."""
    scored: Bool[Tensor, "B T"]
    weight: Float[Tensor, "B 1 T 1"]
    """0 where nothing is scored; else 1, or one over the number of targets of the sequence."""
    next_token: Float[Tensor, "B 1 1 1 T T"]
    """1 where t is scored and j = t + 1; of an example, whose target stands at its own position, j = t."""


class LossGradient(Module):
    """dx at every token, exactly zero where nothing is scored."""

    def __init__(self, rows: nn.Parameter, bias: nn.Parameter | None, layout: Layout, *, loss: Loss, weigh: Weigh):
        super().__init__(layout)
        x, self.target = self.regions.read("input"), self.regions.make("target")
        prediction = self.regions.make("prediction", over=x)
        # Mean squares need no vocabulary: x - e_{t+1} (the section's first remark).
        self.feed_forward = None
        if loss != "mse":
            self.feed_forward = FeedForward(rows, bias, "softmax" if loss == "cross_entropy" else "identity")
        self.targets = Table(rows, dim_slot=layout.geometry.dim_slot)
        self.regions.fill(self.targets, self.target)
        one = torch.ones(1, 1, dtype=torch.float64)
        # Token t needs the row of token t + 1, so this attention looks ahead: the simulator is not causal here.
        self.next_token = Attention(
            query=Port(positional=Bias(one)),
            key=Port(positional=Bias(one.clone())),
            value=Port(self.target, factors=[DimensionWise(-one[None].clone())]),
            weigh=weigh,
        )
        self.gate = Gate()
        self.regions.write("gradient", over=prediction)

    def forward(self, x: Pieces, given: LossInputs) -> Pieces:
        predicted = x
        if self.feed_forward is not None:
            predicted = torch.zeros_like(x)
            # Rows that are not scored are left out: a layer as wide as the vocabulary is dear.
            predicted[:, 0][given.scored] = self.feed_forward(x[:, 0][given.scored])
        target = self.targets(given.targets)[:, :, None, None]
        minus_target = self.next_token({}, {self.target: target}, given.next_token)
        return self.gate(torch.add(predicted, minus_target[:, :, 0, 0]), given.weight)
