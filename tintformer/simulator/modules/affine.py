"""g * z + b behind a norm, with g and b in prefix tokens: forward, backward and descent, in two forms.

Lean: one prefix token each. An attention with one-hot queries brings them to every text token, a gated unit multiplies;
descent is the same attention the other way round.
Paper: the diagonal matrix of g, and b, as a linear layer (section "Layer normalization").
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tintformer.auxiliary.ops import Norm
from tintformer.simulator.layouts import Layout
from tintformer.simulator.modules.linear import LinearBackward, LinearDescent, LinearForward, by_heads
from tintformer.simulator.primitives.attention import Attention, Bias, Port, Positional, Weigh
from tintformer.simulator.primitives.gate import FixedGate, Gated
from tintformer.simulator.primitives.linear_maps import DimensionWise

Pieces = Float[Tensor, "B N T Dslot"]
RowPrefix = Float[Tensor, "B N 1 1 R Dslot"]


def held(op: Norm) -> list[str]:
    """What a norm holds in its prefix, in the order of its tokens."""
    return [name for name in ("scale", "bias") if getattr(op, name) is not None]


def affine_forward(op: Norm, layout: Layout, weigh: Weigh) -> nn.Module | None:
    """(z, prefix) -> g * z + b; None where the norm has neither."""
    if not held(op):
        return None
    return RowForward(op, weigh) if layout.lean else DiagonalForward(op, layout, weigh)


def affine_backward(op: Norm, layout: Layout, weigh: Weigh) -> nn.Module | None:
    """(dy, prefix) -> g * dy; None where the norm has no scale."""
    if op.scale is None:
        return None
    return RowBackward(op, weigh) if layout.lean else DiagonalBackward(layout, weigh)


def affine_descent(op: Norm, layout: Layout, learning_rate: float, weigh: Weigh, *, moves_scale: bool) -> nn.Module:
    """(gradients by name and token, prefix) -> the prefix after the residual."""
    kind = RowDescent if layout.lean else DiagonalDescent
    return kind(op, layout, learning_rate, weigh, moves_scale=moves_scale)


class ReadRows(nn.Module):
    """Bring the prefix tokens to every text token: head r asks for token r."""

    def __init__(self, num_rows: int, weigh: Weigh):
        super().__init__()
        names = torch.eye(num_rows, dtype=torch.float64)
        every_head = torch.ones(1, dtype=torch.float64)
        self.attention = Attention(
            query=Port(positional=Bias(names)),
            key=Port(positional=Positional(names.clone(), every_head, used=num_rows)),
            value=Port(reads="rows"),
            weigh=weigh,
        )

    def forward(self, prefix: RowPrefix) -> tuple[Float[Tensor, "B N 1 Dslot"], ...]:
        """The rows, the same for every text token."""
        return self.attention({}, {"rows": prefix}).squeeze(3).unbind(2)


class RowForward(nn.Module):
    """g * z + b."""

    def __init__(self, op: Norm, weigh: Weigh):
        super().__init__()
        self.names = held(op)
        self.read = ReadRows(len(self.names), weigh)
        self.product = Gated()

    def forward(self, z: Pieces, prefix: RowPrefix) -> Pieces:
        for name, row in zip(self.names, self.read(prefix), strict=True):
            z = self.product(z, row) if name == "scale" else torch.add(z, row)
        return z


class RowBackward(nn.Module):
    """g * dy."""

    def __init__(self, op: Norm, weigh: Weigh):
        super().__init__()
        self.read = ReadRows(len(held(op)), weigh)
        self.product = Gated()

    def forward(self, dy: Pieces, prefix: RowPrefix) -> Pieces:
        return self.product(dy, self.read(prefix)[0])


class RowDescent(nn.Module):
    """Text tokens send their gradients to the prefix token of that name; the residual adds them."""

    def __init__(self, op: Norm, layout: Layout, learning_rate: float, weigh: Weigh, *, moves_scale: bool):
        super().__init__()
        self.moved = [name for name in held(op) if name == "bias" or moves_scale]
        names = torch.eye(len(held(op)), dtype=torch.float64)
        keys = torch.stack([names[held(op).index(name)] for name in self.moved])
        down = -learning_rate * torch.eye(len(self.moved), dtype=torch.float64)
        self.attention = Attention(
            query=Port(positional=Positional(names, torch.ones(1, dtype=torch.float64), used=len(names))),
            key=Port(positional=Bias(keys)),
            value=Port(reads="gradients", factors=[DimensionWise(down[None])]),
            weigh=weigh,
            sum_over="h",
        )

    def forward(self, gradients: dict[str, Pieces], prefix: RowPrefix) -> RowPrefix:
        heads = torch.stack([gradients[name] for name in self.moved], dim=2).unsqueeze(3)
        return torch.add(prefix, self.attention({}, {"gradients": heads}))


class DiagonalForward(nn.Module):
    """g * z + b by a linear layer whose matrix is diagonal."""

    def __init__(self, op: Norm, layout: Layout, weigh: Weigh):
        super().__init__()
        self.linear = LinearForward(layout, has_bias=op.bias is not None, weigh=weigh)

    def forward(self, z: Pieces, prefix: Tensor) -> Pieces:
        return self.linear(alone(z), each(prefix, z)).view_as(z)


class DiagonalBackward(nn.Module):
    """g * dy by the same layer's transpose."""

    def __init__(self, layout: Layout, weigh: Weigh):
        super().__init__()
        self.linear = LinearBackward(layout, weigh=weigh)

    def forward(self, dy: Pieces, prefix: Tensor) -> Pieces:
        return self.linear(alone(dy), each(prefix, dy)).view_as(dy)


class DiagonalDescent(nn.Module):
    """The bias by a linear descent whose input is the homogeneous 1 alone, so that the matrix stays.

    The scale, which the paper leaves alone, is sent to every row and gated to the row's own diagonal entry.
    """

    def __init__(self, op: Norm, layout: Layout, learning_rate: float, weigh: Weigh, *, moves_scale: bool):
        super().__init__()
        self.layout = layout
        self.bias = self.scale = None
        if op.bias is not None:
            self.bias = LinearDescent(layout, has_bias=True, learning_rate=learning_rate, weigh=weigh)
        if moves_scale:
            one = torch.ones(1, 1, dtype=torch.float64)
            self.scale = Attention(
                query=Port(positional=Bias(one)),
                key=Port(positional=Bias(one.clone())),
                value=layout.columns("gradients", 1, factor=-learning_rate),
                weigh=weigh,
            )
            g = layout.geometry
            rows = torch.eye(g.dim_slot, dtype=torch.float64).view(g.stack, g.num_prefix, g.shards, g.head_dim)
            diagonal = rows.transpose(1, 2).reshape(1, 1, g.num_heads, 1, g.num_prefix, g.head_dim)
            self.gate = FixedGate(diagonal)

    def forward(self, gradients: dict[str, Pieces], prefix: Tensor) -> Tensor:
        if self.scale is not None:
            sums = self.scale({}, {"gradients": by_heads(gradients["scale"], self.layout)})
            prefix = torch.add(prefix, self.gate(sums))
        if self.bias is None:
            return prefix
        dy = gradients["bias"]
        nothing = torch.zeros_like(alone(dy))
        moved = self.bias(alone(dy), nothing, each(prefix, dy))
        return moved.unflatten(0, dy.shape[:2]).squeeze(2)


def alone(x: Pieces) -> Float[Tensor, "BN 1 T Dslot"]:
    """Pieces where a batch would stand: a diagonal matrix acts on each of them alone, by one module."""
    return x.flatten(0, 1).unsqueeze(1)


def each(prefix: Float[Tensor, "B N H 1 K d"], x: Pieces) -> Float[Tensor, "BN 1 H 1 K d"]:
    """The prefix of every piece of every sequence; not copied where one serves all."""
    if prefix.shape[:2] == (1, 1):
        return prefix
    return prefix.expand(x.shape[0], *prefix.shape[1:]).flatten(0, 1).unsqueeze(1)
