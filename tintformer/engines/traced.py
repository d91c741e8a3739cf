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
from tintformer.rule.optimiser import Moments, StepSize, step_rate, trained_weights


class TracedExecutor(TensorExecutor):
    """The reference's formulas, with updates of matrices in factors as the fast engine has them."""

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, batch: TracedBatch):
        super().__init__(auxiliary, rule, batch)
        self.factors: dict[Weight, list[tuple[Tensor, Tensor]]] = {}
        """Inputs and output gradients, those times minus the rate, of every step."""
        self.gradients: dict[Weight, list[tuple[Tensor, Tensor]]] = {}
        """The same as they came."""
        self.shares: dict[Weight, list[tuple[Any, Any]]] = {}
        """How much each of them counts in the update and in the velocity."""

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
        for weight in trained_weights(self.rule, op):
            if weight is op.weight:
                self._descend_matrix(weight, self._step_size(op.name), saved[0], gradient)
            else:
                moments = self.moments.setdefault(weight, Moments())
                summed, by = linear.bias_gradient(gradient), self._step_size(op.name)
                self.updates[weight] = moments.move(self.updates.get(weight), summed, self.rule, by)

    def _descend_matrix(self, weight: Weight, by: StepSize, x: Tensor, dy: Tensor) -> None:
        gradients = [*self.gradients.get(weight, []), (x, dy)]
        # Momentum and decay change how much the gradients of earlier steps count.
        shares = [by.of_factors(rate, velocity, 0.0) for rate, velocity in self.shares.get(weight, [])]
        self.gradients[weight], self.shares[weight] = gradients, [*shares, by.of_factors(0.0, 0.0, 1.0)]
        self.factors[weight] = [
            (x, dy * -rate) for (x, dy), (rate, _) in zip(gradients, self.shares[weight], strict=True)
        ]

    def _step_size(self, op: str) -> StepSize:
        # A sequence without targets has none in any step: its gradients are zero, and nothing of it ever moves.
        rule = self.rule
        rate = step_rate(rule, op, self.stage.step or 1)
        return StepSize(rate=rate, momentum=rule.momentum, nesterov=rule.nesterov, decay=rule.decay)

    def loss_gradient(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        weight, bias = self.value(self.auxiliary.head.weight), self.value(self.auxiliary.head.bias)
        # Everywhere, then multiplied by 0 or 1: exactly zero where nothing is learnt from.
        loss = head.loss_of(self.rule, self.auxiliary)
        dx = head.gradient_at(x, weight, bias, self.batch.targets, loss=loss)
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
