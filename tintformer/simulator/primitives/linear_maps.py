"""Linear maps of the simulator: across heads, within heads, and through a few coordinates.

Heads are laid out `[B, N, H, M, T, d]`: batch, input piece, head, output piece, token, coordinate; N or M is 1 for
text tokens, both count for prefix tokens. Paper: section "H-split operation".
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.simulator.primitives.primitive import Primitive, constant


class DimensionWise(Primitive):
    """Mixes heads coordinate by coordinate: one `[H_out, H_in]` matrix a coordinate, or one for all of them."""

    def __init__(self, weight: Float[Tensor, "shared_or_d H_out H_in"]):
        super().__init__()
        self.weight = constant(weight)

    def forward(self, heads: Float[Tensor, "B N H_in M T d"], first: int = 0) -> Float[Tensor, "B N H_out M T d"]:
        """`first`: number of the first head given, where the others are zero."""
        weight = self.weight[:, :, first : first + heads.shape[2]]
        if len(weight) == 1:
            return torch.einsum("gh,bnhmtd->bngmtd", weight[0], heads)
        return torch.einsum("dgh,bnhmtd->bngmtd", weight, heads)


class SplitWise(Primitive):
    """Maps every head by a matrix of its own."""

    def __init__(self, weight: Float[Tensor, "H d_out d_in"]):
        super().__init__()
        self.weight = constant(weight)

    def forward(self, heads: Float[Tensor, "B N h M T d_in"], first: int = 0) -> Float[Tensor, "B N h M T d_out"]:
        return torch.einsum("hed,bnhmtd->bnhmte", self.weight[first : first + heads.shape[2]], heads)


class Narrow(Primitive):
    """An ordinary linear map with few rows or few columns: sums over coordinates, and spreads of one number.

    One matrix for all pieces, or one for each.
    """

    def __init__(self, weight: Float[Tensor, "*pieces out_ in_"]):
        super().__init__()
        self.weight = constant(weight)

    def forward(self, x: Float[Tensor, "*shape in_"]) -> Float[Tensor, "*result out_"]:
        return x @ self.weight.mT


class Combine(Primitive):
    """Adds multiples of whole regions: the linear layer in front of a difference, and the one behind it.

    The sum is scaled at the end: a difference of equal numbers is then exactly zero, and one of close numbers keeps
    its digits.
    """

    def __init__(self, weight: Float[Tensor, "out_ in_"], scale: float = 1.0):
        super().__init__()
        self.weight = constant(weight)
        self.scale = None if scale == 1.0 else constant(torch.tensor(scale, dtype=torch.float64))

    def forward(self, *regions: Float[Tensor, "*shape Dslot"]) -> tuple[Float[Tensor, "*shape Dslot"], ...]:
        rows: list[Tensor] = []
        for row in self.weight:
            term = regions[0] * row[0]
            for factor, region in zip(row[1:], regions[1:], strict=True):
                term = term + region * factor
            rows.append(term if self.scale is None else term * self.scale)
        return tuple(rows)


class Constant(Primitive):
    """A bias: adds a constant vector to every token. The homogeneous coordinate gets its 1 here."""

    def __init__(self, value: Float[Tensor, " Dslot"]):
        super().__init__()
        self.value = constant(value)

    def forward(self, x: Float[Tensor, "*shape Dslot"]) -> Float[Tensor, "*shape Dslot"]:
        return x + self.value
