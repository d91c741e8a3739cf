"""The fast engine's pass with masks in place of selections: shapes are the same whatever the tokens, for a trace.

B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Join, Linear, Op, Weight
from tintformer.engines.reference import TensorExecutor
from tintformer.execution.batch import TracedBatch
from tintformer.rule import head, linear
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.trainable import trained_weights


class TracedExecutor(TensorExecutor):
    """The reference's formulas, with updates of matrices in factors as the fast engine has them."""

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, batch: TracedBatch):
        super().__init__(auxiliary, rule, batch)
        self.factors: dict[Weight, list[tuple[Tensor, Tensor]]] = {}
        """Inputs and output gradients, those times minus the rate, of every step."""

    def forward(self, op: Op | Join, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        y, saved = super().forward(op, inputs)
        if isinstance(op, Linear):
            for x, dy in self.factors.get(op.weight, ()):
                y = y + (inputs[0] @ x.mT) @ dy
        return y, saved

    def backward(self, op: Op | Join, saved: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found = super().backward(op, saved, gradient)
        if isinstance(op, Linear):
            (dx,) = found
            assert dx is not None
            for x, dy in self.factors.get(op.weight, ()):
                dx = dx + (gradient @ dy.mT) @ x
            return (dx,)
        return found

    def descend(self, op: Op | Join, saved: Any, gradient: Tensor) -> None:
        if not isinstance(op, Linear):
            super().descend(op, saved, gradient)
            return
        scaled = gradient * -self.rule.rate
        for weight in trained_weights(self.rule, op):
            if weight is op.weight:
                self.factors.setdefault(weight, []).append((saved[0], scaled))
            else:
                self.updates[weight] = self.updates.get(weight, 0) + linear.bias_gradient(scaled)

    def loss_gradient(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        weight, bias = self.value(self.auxiliary.head.weight), self.value(self.auxiliary.head.bias)
        # Everywhere, then multiplied by 0 or 1: exactly zero where nothing is learnt from.
        dx = head.gradient_at(x, weight, bias, self.batch.targets, loss=self.rule.loss)
        trains = self.batch.train_positions
        dx = dx * trains[..., None].to(dx.dtype)
        if self.rule.reduction == "mean":
            dx = dx / trains.sum(-1).clamp(min=1)[:, None, None]
        return dx

    def updates_of(self, op: Op | Join, row: int | None = None) -> dict[Weight, Tensor]:
        found = super().updates_of(op, row)
        if isinstance(op, Linear) and op.weight in self.factors:
            changes = [dy.mT @ x for x, dy in self.factors[op.weight]]
            change = self.add(changes)
            found[op.weight] = change if row is None else change[row]
        return found
