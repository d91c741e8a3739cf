"""Numbers of a group, handed to all its coordinates: means, lengths and their inverses, by linear maps and products.

N pieces, T tokens, G groups of a piece. A joint group spans all pieces of a value (the gradient at a wide layer).
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tintformer.simulator.geometry import Cut
from tintformer.simulator.primitives.gate import Gated
from tintformer.simulator.primitives.group_norm import GroupNorm
from tintformer.simulator.primitives.linear_maps import Narrow

Pieces = Float[Tensor, "B N T Dslot"]


class Groups:
    """How a value is grouped: equal groups that never straddle pieces, or one group over all of them."""

    def __init__(self, cut: Cut, num_groups: int, dim_slot: int):
        self.joint = cut.count > 1 and num_groups == 1
        self.size = cut.width // num_groups
        self.in_piece = 1 if num_groups == 1 else cut.step // self.size
        self.extent = min(cut.step, cut.width) if num_groups == 1 else self.size
        """Coordinates of a group that stand in one piece."""
        self.dim_slot = dim_slot

    def membership(self) -> Float[Tensor, "G Dslot"]:
        """1 where a coordinate belongs to a group."""
        member = torch.zeros(self.in_piece, self.dim_slot, dtype=torch.float64)
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
        member = groups.membership().mT
        self.read = Narrow(groups.membership() / groups.size)
        self.rest = Narrow(torch.eye(groups.in_piece, dtype=torch.float64) * self.norm.coordinate / groups.size)
        self.spread = Narrow(member.clone())
        self.invert = Narrow(member / self.norm.coordinate)
        self.product = Gated()

    def forward(self, x: Pieces) -> tuple[Pieces, Pieces, Pieces]:
        unit, handed = self.norm(x)
        squares = self.read(self.product(x, unit))
        if self.joint:
            squares = squares.sum(1, keepdim=True)
        length, inverse = self.spread(squares + self.rest(handed)), self.invert(handed)
        return unit, length.expand_as(x), inverse.expand_as(x)
