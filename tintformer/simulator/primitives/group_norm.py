"""D-group normalisation (paper: definitions "D-Group normalization" and "D-Group RMSnorm")."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from tintformer.simulator.primitives.primitive import Primitive, constant


class GroupNorm(Primitive):
    """Normalises every group of `size` coordinates on its own; coordinates beyond the groups come out as zero.

    The norm's epsilon is a constant coordinate c inside the group: sum x^2 + c^2 = size * (mean x^2 + epsilon). Its
    own normalised value c / sigma is handed out beside the group, and with it the factor 1 / sigma that a gradient
    needs. LayerNorm is the same after the group's mean is taken away.
    """

    def __init__(
        self,
        *,
        kind: Literal["layer", "rms"],
        num_groups: int,
        size: int,
        epsilon: float,
        extent: int | None = None,
        joint: bool = False,
    ):
        super().__init__()
        self.kind, self.num_groups, self.size, self.joint = kind, num_groups, size, joint
        self.extent = size if extent is None else extent
        """Coordinates of a group in one piece; fewer than `size` where one group spans several pieces (`joint`)."""
        assert not (joint and kind == "layer"), "only lengths are taken of values wider than a slot"
        self.coordinate = math.sqrt(size * epsilon)
        """The constant c, for whoever divides by it."""
        self.constant = constant(torch.tensor(self.coordinate, dtype=torch.float64))

    def forward(
        self, x: Float[Tensor, "B N T Dslot"]
    ) -> tuple[Float[Tensor, "B N T Dslot"], Float[Tensor, "B n T groups"]]:
        """The normalised groups, and the normalised constant coordinate of each."""
        used = self.num_groups * self.extent
        groups = x[..., :used].unflatten(-1, (self.num_groups, self.extent))
        if self.kind == "layer":
            groups = groups - groups.mean(-1, keepdim=True)
        squares = groups.square().sum(-1, keepdim=True)
        if self.joint:
            squares = squares.sum(1, keepdim=True)
        inverse = torch.rsqrt((squares + self.constant.square()) / self.size)
        normalised = functional.pad((groups * inverse).flatten(-2), (0, x.shape[-1] - used))
        return normalised, (self.constant * inverse).squeeze(-1)
