"""Activations and gated products (paper: sections "Activation layer" and "Gated linear units")."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from tintformer.auxiliary.ops import Activation as ActivationOp
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.geometry import Cut
from tintformer.simulator.modules.differences import Difference
from tintformer.simulator.modules.means import Groups
from tintformer.simulator.primitives.gate import Activation, Gated

Pieces = Float[Tensor, "B N T Dslot"]


class ActivationForward(nn.Module):
    """s(x)."""

    def __init__(self, op: ActivationOp):
        super().__init__()
        self.activation = Activation(op.function)

    def forward(self, x: Pieces) -> Pieces:
        return self.activation(x)


class ActivationBackward(nn.Module):
    """s'(x) dy by one gated unit, or a difference of s along dy."""

    def __init__(self, op: ActivationOp, cut: Cut, dim_slot: int, rule: LearningRule, tiny: float):
        super().__init__()
        self.gated = self.difference = None
        if rule.activation_gradient == "exact":
            self.gated = Gated(op.function, "derivative")
        else:
            self.difference = Difference(
                Activation(op.function),
                Groups(cut, 1, dim_slot),
                scheme=rule.activation_gradient,
                rule=rule,
                tiny=tiny,
            )

    def forward(self, dy: Pieces, x: Pieces) -> Pieces:
        if self.gated is not None:
            return self.gated(dy, x)
        assert self.difference is not None
        return self.difference(x, dy)


class ProductForward(nn.Module):
    """left * right."""

    def __init__(self) -> None:
        super().__init__()
        self.gated = Gated()

    def forward(self, left: Pieces, right: Pieces) -> Pieces:
        return self.gated(left, right)


class ProductBackward(nn.Module):
    """(dy * right, dy * left)."""

    def __init__(self) -> None:
        super().__init__()
        self.gated = Gated()

    def forward(self, dy: Pieces, left: Pieces, right: Pieces) -> tuple[Pieces, Pieces]:
        return self.gated(dy, right), self.gated(dy, left)
