"""How a gradient passes a norm or an activation by a difference of two of its own forward passes.

Paper: definitions "epsilon-approximate Layer Normalization Gradient" and "Approximate Activation backpropagation".
The linear layer in front places x + h g beside x (or x - h g), the function runs on both, the one behind subtracts.
With a relative step the direction is brought to unit length first, and the step follows the length of x.
Below it what norms and differences share: means, lengths and their inverses of a group, handed to all its coordinates.
B batch, N pieces, T tokens, G groups of a piece. A joint group spans all pieces of a value (a wide layer's gradient).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tintformer.rule.learning_rule import Gradient, LearningRule
from tintformer.simulator.primitives.tokenwise import CPU, Combine, Gated, GroupNorm, Narrow
from tintformer.simulator.regions import Cut, Region, Regions

Pieces = Float[Tensor, "B N T Dslot"]


class Difference(nn.Module):
    """The Jacobian of a function at x, applied to a direction; both regions are used up."""

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        groups: Groups,
        regions: Regions,
        *,
        direction: Region,
        x: Region,
        scheme: Gradient,
        rule: LearningRule,
        tiny: float,
    ):
        super().__init__()
        self.function = function
        # Too large a step brings in the function's curvature, too small a one cancels digits: a step for each scheme.
        step = rule.difference_step(scheme)
        # The paper's one-sided form is f(x + h g) - f(x), with an error of order h; the central one has order h^2.
        behind, width = (0.0, 1.0) if scheme == "first_order" else (-step, 2.0)
        self.before = Combine([[1.0, step], [1.0, behind]])
        # Subtract, then divide: equal numbers give exactly zero.
        self.after = Combine([[1.0, -1.0]], 1 / (width * step))
        self.relative = rule.epsilon_mode == "relative"
        self.of_input, self.of_direction = (Length(groups, tiny) if self.relative else None for _ in range(2))
        if self.of_input is not None and self.of_direction is not None:
            regions.fill(self.of_direction, None, regions.make("length of gradient"), None)
            size, inverse_size = regions.make("length of input"), regions.make("one over length of input")
            regions.fill(self.of_input, None, size, inverse_size)
        self.used_up = regions.make("input ahead", over=direction)
        """Where the result may stand."""
        regions.fill(self.before, self.used_up, regions.make("input behind", over=x))
        self.product = Gated()

    def forward(self, x: Tensor, direction: Tensor) -> Tensor:
        if not self.relative:
            return self._subtract(x, direction)
        assert self.of_input is not None and self.of_direction is not None
        unit, length, _ = self.of_direction(direction)
        _, size, inverse_size = self.of_input(x)
        # f(x + h |x| u) - f(x - h |x| u), over 2 h |x|, is the derivative along the unit vector u; then times |g|.
        change = self._subtract(x, self.product(unit, size))
        return self.product(self.product(change, inverse_size), length)

    def _subtract(self, x: Tensor, direction: Tensor) -> Tensor:
        ahead, behind = self.before(x, direction)
        return self.after(self.function(ahead), self.function(behind))[0]


class Groups:
    """How a value is grouped: equal groups that never straddle pieces, or one group over all of them."""

    def __init__(self, cut: Cut, num_groups: int, dim_slot: int):
        # Wide values are cut (section "Parameter sharing"), so one group over a whole value is summed piece by piece.
        self.joint = cut.count > 1 and num_groups == 1
        self.size = cut.width // num_groups
        self.in_piece = 1 if num_groups == 1 else cut.step // self.size
        self.extent = min(cut.step, cut.width) if num_groups == 1 else self.size
        """Coordinates of a group that stand in one piece."""
        self.dim_slot = dim_slot

    def membership(self) -> Float[Tensor, "G Dslot"]:
        """1 where a coordinate belongs to a group."""
        member = torch.zeros(self.in_piece, self.dim_slot, dtype=torch.float64, device=CPU)
        for group in range(self.in_piece):
            member[group, group * self.extent : (group + 1) * self.extent] = 1
        return member

    def norm(self, kind: Literal["layer", "rms"], epsilon: float) -> GroupNorm:
        return GroupNorm(
            kind=kind, num_groups=self.in_piece, size=self.size, extent=self.extent, epsilon=epsilon, joint=self.joint
        )


class Mean(nn.Module):
    """The mean of every group, at each of its coordinates."""

    def __init__(self, groups: Groups):
        super().__init__()
        self.joint = groups.joint
        self.read = Narrow(groups.membership() / groups.size)
        self.spread = Narrow(groups.membership().mT.clone())

    def forward(self, x: Pieces) -> Pieces:
        mean = self.read(x)
        if self.joint:
            mean = mean.sum(1, keepdim=True)  # the pieces meet in the residual stream
        return self.spread(mean)


class Length(nn.Module):
    """Unit vectors, lengths (root mean squares) and inverse lengths of all groups, by one norm without its scale.

    The norm's epsilon is the smallest normal number, so that a zero vector has the unit vector zero.
    """

    def __init__(self, groups: Groups, tiny: float):
        super().__init__()
        self.joint = groups.joint
        self.norm = groups.norm("rms", tiny)
        # With s the length, mean(x * x / s) + c (c / s) / size = s^2 / s = s: no root is needed but that of the norm.
        member = groups.membership().mT
        self.read = Narrow(groups.membership() / groups.size)
        one = torch.eye(groups.in_piece, dtype=torch.float64, device=CPU)
        self.rest = Narrow(one * self.norm.coordinate / groups.size)
        self.spread = Narrow(member.clone())
        self.invert = Narrow(member / self.norm.coordinate)
        self.product = Gated()

    def forward(self, x: Pieces) -> tuple[Pieces, Pieces, Pieces]:
        unit, handed = self.norm(x)
        squares = self.read(self.product(x, unit))
        if self.joint:
            # Adding what stands in several embeddings is what a residual stream does; no map is needed.
            squares = squares.sum(1, keepdim=True)
        length, inverse = self.spread(squares + self.rest(handed)), self.invert(handed)
        return unit, length.expand_as(x), inverse.expand_as(x)
