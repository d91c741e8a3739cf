"""Primitives that act within a token: linear maps, gates, norms, positions, tables. Only `attention` mixes tokens.

B batch, N pieces, T tokens, D~ (Dslot) width of a slot. Heads are laid out `[B, N, H, M, T, d]`: batch, input piece,
head, output piece, token, coordinate; N or M is 1 for text tokens, both count for prefix tokens. Tokens are always the
last axis but one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from tintformer.auxiliary.activations import FUNCTIONS
from tintformer.auxiliary.ops import Alibi, Rotary
from tintformer.rule.attention import rotate, rotation
from tintformer.rule.head import softmax


class Recordable(nn.Module):
    """A part of the simulator that becomes a layer of the compiled network: on symbols it is written down, not run."""

    def __call__(self, *inputs: Any) -> Any:
        for each in inputs:
            if hasattr(each, "record"):
                return each.record(self, inputs)
        return super().__call__(*inputs)


class Primitive(Recordable):
    """A part of the simulator that computes; whatever is not inside one only moves or adds data."""


def constant(value: Tensor) -> nn.Parameter:
    """A constructed weight, which no pass ever changes."""
    return nn.Parameter(value, requires_grad=False)


# Linear maps. An H-split map of D_sim to itself costs D_sim^2 / H + D_sim H parameters instead of D_sim^2 (paper:
# section "H-split operation"): a split-wise factor within heads, and a dimension-wise one across them.


class DimensionWise(Primitive):
    """Mixes heads coordinate by coordinate: one `[H_out, H_in]` matrix a coordinate, or one for all of them."""

    def __init__(self, weight: Float[Tensor, "shared_or_d H_out H_in"]):
        super().__init__()
        self.weight = constant(weight)

    def forward(self, heads: Float[Tensor, "B N H_in M T d"], first: int = 0) -> Float[Tensor, "B N H_out M T d"]:
        """`first`: number of the first head given, where the others are zero."""
        weight = self.weight[:, :, first : first + heads.shape[2]]
        # The paper's operation has a matrix a coordinate. Where all are the same, the lean layout stores one.
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


CPU = torch.device("cpu")
"""Where narrow maps are made, also for a model of shapes alone: how many of their entries are zero is then known."""


class Narrow(Primitive):
    """An ordinary linear map with few rows or few columns: sums over coordinates, and spreads of one number.

    One matrix for all pieces, or one for each.
    """

    def __init__(self, weight: Float[Tensor, "*pieces out_ in_"]):
        super().__init__()
        self.weight = constant(weight)
        self.num_non_zero: list[int] = weight.count_nonzero((-2, -1)).view(-1).tolist()
        """Of each matrix; counted here, where it has data, which a model of shapes alone later has not."""

    def forward(self, x: Float[Tensor, "*shape in_"]) -> Float[Tensor, "*result out_"]:
        return x @ self.weight.mT


class Combine(Primitive):
    """Adds multiples of whole regions: the linear layer in front of a difference, and the one behind it.

    The sum is scaled at the end: a difference of equal numbers is then exactly zero, and one of close numbers keeps
    its digits.
    """

    def __init__(self, rows: Sequence[Sequence[float]], scale: float = 1.0):
        super().__init__()
        self.rows, self.factor = [list(row) for row in rows], scale
        """The weights once more as plain numbers, which a model without data has too."""
        self.weight = constant(torch.tensor(self.rows, dtype=torch.float64))
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


# Element-wise units. The paper multiplies by differences of GeLUs (section "Simulating Multiplication"), with an error
# of order x^3 y^3; a gated unit, which its section "Gated linear units" gives the simulator, is exact.


class Activation(Primitive):
    """s(x). Zero stays zero for every supported activation, so padding does too."""

    def __init__(self, function: str):
        super().__init__()
        self.function = FUNCTIONS[function]

    def forward(self, x: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape D"]:
        return self.function.value(x)


class Gated(Primitive):
    """A gated linear unit: left * s(right), with s the identity, or the derivative of an activation."""

    def __init__(self, function: str | None = None, part: Literal["identity", "derivative"] = "identity"):
        super().__init__()
        assert (function is None) == (part == "identity"), "a derivative is that of a function"
        self.function = None if function is None else FUNCTIONS[function].derivative

    def forward(self, left: Float[Tensor, "... D"], right: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return left * (right if self.function is None else self.function(right))


class FixedGate(Primitive):
    """Lets coordinates pass, or not: multiplies by a constant 0 or 1."""

    def __init__(self, opening: Tensor):
        super().__init__()
        self.opening = constant(opening)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.opening


class Gate(Primitive):
    """Lets tokens pass, or not: multiplies by a number that comes with the input, exactly 0 where nothing may pass."""

    def forward(self, x: Float[Tensor, "... D"], opening: Float[Tensor, "... D2"]) -> Float[Tensor, "... D"]:
        return x * opening


# Norms (paper: definitions "D-Group normalization" and "D-Group RMSnorm").


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
            # The constant is not centred with the group: it stands for the norm's epsilon, not for data.
            groups = groups - groups.mean(-1, keepdim=True)
        squares = groups.square().sum(-1, keepdim=True)
        if self.joint:
            squares = squares.sum(1, keepdim=True)
        inverse = torch.rsqrt((squares + self.constant.square()) / self.size)
        normalised = functional.pad((groups * inverse).flatten(-2), (0, x.shape[-1] - used))
        return normalised, (self.constant * inverse).squeeze(-1)


# Position schemes (paper: section "Attention variants").


class Rotate(Primitive):
    """Turns the heads of every token by angles that follow its position; `inverse` carries gradients back."""

    def __init__(self, rotary: Rotary, *, inverse: bool = False):
        super().__init__()
        self.frequencies = constant(rotary.inverse_frequencies.detach().clone())
        self.rotary, self.inverse = rotary, inverse

    def forward(
        self, heads: Float[Tensor, "B N H M T d"], positions: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B N H M T d"]:
        # The constructed frequencies, not the auxiliary's: they follow the simulator's device and dtype.
        by = rotation(replace(self.rotary, inverse_frequencies=self.frequencies), positions, heads.dtype)
        return rotate(heads, by, interleaved=self.rotary.interleaved, inverse=self.inverse)


class Distance(Primitive):
    """Adds ALiBi's bias to the mask: a slope a head times the position of the token that answers."""

    def __init__(self, alibi: Alibi, num_key_value_heads: int):
        super().__init__()
        self.slopes = constant(alibi.slopes.detach().clone().view(num_key_value_heads, -1))

    def forward(
        self, mask: Float[Tensor, "B 1 1 1 Q P"], positions: Int[Tensor, "B P"]
    ) -> Float[Tensor, "B N H 1 Q P"]:
        # The paper adds m_h (j - t); softmax does not see what all keys of a query share, so m_h j is enough.
        slopes = self.slopes[None, :, :, None, None, None]
        return mask + slopes * positions[:, None, None, None, None, :].to(mask.dtype)


# Where tokens enter and leave.


class Table(Primitive):
    """Rows by number: the embedding of tokens, of positions, and the head's row of a target.

    A number stands for a one-hot vector; any other vector gives the sum of rows that it stands for.
    """

    def __init__(self, rows: nn.Parameter, *, dim_slot: int, scale: float = 1.0):
        super().__init__()
        self.rows, self.dim_slot, self.scale = rows, dim_slot, scale

    def forward(self, numbers: Shaped[Tensor, "B T *vector"]) -> Float[Tensor, "B 1 T Dslot"]:
        if numbers.is_floating_point():
            rows = numbers.to(self.rows.dtype) @ self.rows
        else:
            rows = functional.embedding(numbers, self.rows)
        rows = rows if self.scale == 1.0 else rows * self.scale
        return functional.pad(rows, (0, self.dim_slot - rows.shape[-1])).unsqueeze(1)


class FeedForward(Primitive):
    """The layer over the vocabulary: logits E x + b, and E^T s(E x + b) for a loss gradient.

    Paper: section "Language model head"; s is the softmax for cross-entropy and the identity for the quad loss.
    """

    def __init__(
        self, rows: nn.Parameter, bias: nn.Parameter | None, activation: Literal["none", "softmax", "identity"]
    ):
        super().__init__()
        self.rows, self.bias, self.activation = rows, bias, activation

    def forward(self, x: Float[Tensor, "rows Dslot"]) -> Float[Tensor, "rows out_"]:
        """Logits, or (with an activation) what the second matrix makes of them, as wide as x."""
        width = self.rows.shape[1]
        if self.activation == "none":
            return functional.linear(x[:, :width], self.rows, self.bias)
        if self.activation == "identity":
            hidden = functional.linear(x[:, :width], self.rows)
        else:
            # The second matrix is the first one transposed, so that the vocabulary is stored once.
            hidden = softmax(functional.linear(x[:, :width], self.rows, self.bias))
        return functional.pad(hidden @ self.rows, (0, x.shape[-1] - width))
