"""Activations and gated products (paper: sections "Activation layer" and "Gated linear units")."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from tintformer.auxiliary.ops import Activation as ActivationOp
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.layouts import Layout, Module
from tintformer.simulator.modules.differences import Difference, Groups
from tintformer.simulator.primitives.tokenwise import Activation, Gated
from tintformer.simulator.regions import Cut

Pieces = Float[Tensor, "B N T Dslot"]


class ActivationForward(Module):
    """s(x)."""

    def __init__(self, op: ActivationOp, layout: Layout):
        super().__init__(layout)
        self.regions.write("output", over=self.regions.read("input"))
        self.activation = Activation(op.function)

    def forward(self, x: Pieces) -> Pieces:
        return self.activation(x)


class ActivationBackward(Module):
    """s'(x) dy by one gated unit, or (as the paper has it, for want of products) a difference of s along dy."""

    def __init__(self, op: ActivationOp, cut: Cut, layout: Layout, rule: LearningRule, tiny: float):
        super().__init__(layout)
        dy, x = self.regions.read("gradient"), self.regions.read("input")
        self.gated = self.difference = None
        if rule.activation_gradient == "exact":
            # Definition "Auxiliary activation backpropagation". The paper avoids it: it takes a product, and units with
            # the derivative as their activation, which a plain transformer does not have.
            self.gated = Gated(op.function, "derivative")
            self.regions.write("input gradient", over=dy)
        else:
            # The Jacobian of an element-wise function is diagonal, hence symmetric: a difference along dy gives J^T dy.
            # The length, for relative steps, is that of the whole value: one group.
            self.difference = Difference(
                Activation(op.function),
                Groups(cut, 1, layout.geometry.dim_slot),
                self.regions,
                direction=dy,
                x=x,
                scheme=rule.activation_gradient,
                rule=rule,
                tiny=tiny,
            )
            self.regions.write("input gradient", over=self.difference.used_up)

    def forward(self, dy: Pieces, x: Pieces) -> Pieces:
        if self.gated is not None:
            return self.gated(dy, x)
        assert self.difference is not None
        return self.difference(x, dy)


class ProductForward(Module):
    """left * right."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        left, _ = self.regions.read("left"), self.regions.read("right")
        self.regions.write("output", over=left)
        self.gated = Gated()

    def forward(self, left: Pieces, right: Pieces) -> Pieces:
        return self.gated(left, right)


class ProductBackward(Module):
    """(dy * right, dy * left)."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        dy, left, _ = self.regions.read("gradient"), self.regions.read("left"), self.regions.read("right")
        self.regions.write("left gradient", over=dy)
        self.regions.write("right gradient", over=left)
        self.gated = Gated()

    def forward(self, dy: Pieces, left: Pieces, right: Pieces) -> tuple[Pieces, Pieces]:
        # A GLU is an activation, a product and linears here, so the two terms of the paper's definition "Auxiliary GLU
        # backpropagation" are these two and what the activation makes of the second.
        return self.gated(dy, right), self.gated(dy, left)
