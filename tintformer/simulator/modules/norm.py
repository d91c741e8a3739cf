"""LayerNorm and RMSNorm y = g * f(x) + b (paper: sections "Layer normalization" and "Root mean square normalization").

f is a group norm. Backward is exact by gated units, or a difference of f. Scale g and bias b are prefix tokens, in two
forms. Lean: one token each; an attention with one-hot queries brings them to every text token, a gated unit multiplies;
descent is the same attention the other way round. Paper: the diagonal matrix of g, and b, as a linear layer.
B batch, N pieces, T tokens, R rows in the prefix (scale, bias, or both).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tintformer.auxiliary.ops import Norm
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.layouts import Layout, Module
from tintformer.simulator.modules.differences import Difference, Groups, Mean
from tintformer.simulator.modules.linear import LinearBackward, LinearDescent, LinearForward, by_heads
from tintformer.simulator.modules.movement import Descending, Movement
from tintformer.simulator.primitives.attention import Attention, Bias, Port, Positional, Weigh
from tintformer.simulator.primitives.tokenwise import CPU, Combine, DimensionWise, FixedGate, Gated, Narrow, Recordable
from tintformer.simulator.regions import PREFIX, Cut, Region, Regions, groups_in_pieces

Pieces = Float[Tensor, "B N T Dslot"]
RowPrefix = Float[Tensor, "B N 1 1 R Dslot"]


def held(op: Norm) -> list[str]:
    """What a norm holds in its prefix, in the order of its tokens."""
    return [name for name in ("scale", "bias") if getattr(op, name) is not None]


# The modules.


class NormForward(Module):
    """g * f(x) + b."""

    def __init__(self, op: Norm, cut: Cut, layout: Layout, weigh: Weigh):
        super().__init__(layout)
        x = self.regions.read("input")
        # A group norm of weight 1 and bias 0: the auxiliary's own scale and bias must be data, because they may learn.
        self.normalise = Normalise(op, Groups(cut, op.num_groups, layout.geometry.dim_slot))
        z = self.regions.make("normalised input", over=x)
        self.regions.fill(self.normalise, z)
        self.affine: nn.Module | None = None
        if held(op):
            self.affine = RowForward(op, self.regions, weigh) if layout.lean else DiagonalForward(op, layout, weigh)
        self.regions.write("output", over=z)

    def forward(self, x: Pieces, prefix: Tensor) -> Pieces:
        z = self.normalise(x)
        return z if self.affine is None else self.affine(z, prefix)


class NormBackward(Module):
    """dx, by gated units or by a difference of f along g * dy."""

    def __init__(self, op: Norm, cut: Cut, layout: Layout, rule: LearningRule, weigh: Weigh, tiny: float):
        super().__init__(layout)
        groups, scheme = Groups(cut, op.num_groups, layout.geometry.dim_slot), rule.norm_gradient
        dz, x = self.regions.read("gradient", "output"), self.regions.read("input")
        self.affine: nn.Module | None = None
        if op.scale is not None:
            # dz = g * dy comes first, as in the definition of the exact gradient; a bias has no part in it.
            self.affine = RowBackward(op, self.regions, weigh) if layout.lean else DiagonalBackward(layout, weigh)
            dz = self.regions.make("gradient of normalised input", over=dz)
            self.regions.fill(self.affine, dz)
        if scheme == "exact":
            gradient = ExactGradient(op, groups, self.regions, gradient=dz, x=x)
        else:
            # A difference gives J dz where J^T dz is wanted; the Jacobian of a norm is symmetric, so they are the same
            # (section "First-order approximations").
            f = Normalise(op, groups)
            gradient = Difference(f, groups, self.regions, direction=dz, x=x, scheme=scheme, rule=rule, tiny=tiny)
        self.gradient = gradient
        self.regions.write("input gradient", over=gradient.used_up)

    def forward(self, dy: Pieces, x: Pieces, prefix: Tensor) -> Pieces:
        return self.gradient(x, dy if self.affine is None else self.affine(dy, prefix))


class NormDescent(Module):
    """b - eta sum_t dy_t and, if the rule asks for it, g - eta sum_t dy_t z_t."""

    def __init__(self, op: Norm, cut: Cut, layout: Layout, movement: Movement, weigh: Weigh, *, moves_scale: bool):
        super().__init__(layout)
        self.movement = movement
        groups = Groups(cut, op.num_groups, layout.geometry.dim_slot)
        dy, x = self.regions.read("gradient", "output"), self.regions.read("input")
        # The paper moves the bias alone, "switching off" the scale, whose gradient is a product (its "Layer
        # normalization descent module"); a gated unit multiplies, so here the rule decides.
        self.moved: dict[str, Region] = {"bias": dy} if op.bias is not None else {}
        """Where the gradient of each row of the prefix stands, token by token."""
        self.normalise = Normalise(op, groups) if moves_scale else None
        self.product = Gated() if moves_scale else None
        if self.product is not None:
            self.moved["scale"] = self.regions.make("scale gradient", over=x)
            self.regions.fill(self.product, self.moved["scale"])
        self.pool = Pool(cut, groups) if op.num_groups > 1 else None
        kind = RowDescent if layout.lean else DiagonalDescent
        self.affine = kind(op, layout, self.moved, movement, weigh)

    def forward(self, dy: Pieces, x: Pieces, prefix: Tensor | Descending) -> Tensor | Descending:
        gradients = {"bias": dy} if "bias" in self.moved else {}
        if self.normalise is not None and self.product is not None:
            gradients["scale"] = self.product(dy, self.normalise(x))
        if self.pool is not None:
            gradients = {name: self.pool(gradient) for name, gradient in gradients.items()}
        return self.affine({self.moved[name]: gradient for name, gradient in gradients.items()}, prefix)


# f and its gradient.


class Normalise(nn.Module):
    """f(x), without the constant coordinate."""

    def __init__(self, op: Norm, groups: Groups):
        super().__init__()
        self.norm = groups.norm(op.kind, op.epsilon)

    def forward(self, x: Pieces) -> Pieces:
        return self.norm(x)[0]


class ExactGradient(nn.Module):
    """dx = (dz - mean(dz) - z mean(dz z)) / sigma: three products and two means; RMSNorm has no mean(dz).

    The paper's definition "Exact Gradient for Layer Normalization" lacks the 1 / D of mean(dz z), and the paper takes
    a difference instead, because its units cannot multiply.
    """

    def __init__(self, op: Norm, groups: Groups, regions: Regions, *, gradient: Region, x: Region):
        super().__init__()
        self.norm = groups.norm(op.kind, op.epsilon)
        self.mean = Mean(groups)
        # The norm hands out c / sigma, its constant coordinate after normalising: one narrow map makes 1 / sigma of it.
        self.invert = Narrow(groups.membership().mT / self.norm.coordinate)
        self.product = Gated()
        self.centred = op.kind == "layer"
        # J = (I - 1 1^T / D - z z^T / D) / sigma. Without centring, the middle term is gone.
        terms = [1.0, -1.0, -1.0] if self.centred else [1.0, -1.0]
        self.subtract = Combine([terms])
        regions.fill(self.norm, regions.make("normalised input", over=x), None)
        regions.fill(self.invert, regions.make("one over sigma"))
        regions.fill(self.mean, regions.make("mean"))
        self.used_up = gradient

    def forward(self, x: Pieces, dz: Pieces) -> Pieces:
        z, handed = self.norm(x)
        along = self.product(z, self.mean(self.product(dz, z)))
        terms = (dz, along, self.mean(dz)) if self.centred else (dz, along)
        return self.product(self.subtract(*terms)[0], self.invert(handed))


class Pool(nn.Module):
    """Groups that share one scale send it the sum of their gradients, and all their copies of it move alike."""

    def __init__(self, cut: Cut, groups: Groups):
        super().__init__()
        # Norms of queries and keys have one scale for all heads, with a copy a head: copies must stay equal.
        one = torch.eye(groups.size, dtype=torch.float64, device=CPU)
        copies = torch.zeros(cut.count, groups.size, groups.dim_slot, dtype=torch.float64, device=CPU)
        for piece, num_groups in zip(copies, groups_in_pieces(cut, groups.size), strict=True):
            piece[:, : num_groups * groups.size] = one.repeat(1, num_groups)
        self.gather, self.copy = Narrow(copies), Narrow(copies.mT.clone())

    def forward(self, x: Pieces) -> Pieces:
        return self.copy(self.gather(x).sum(1, keepdim=True))


# Scale and bias, lean: a prefix token each.


class ReadRows(Recordable):
    """Bring the prefix tokens to every text token: head r asks for token r."""

    def __init__(self, num_rows: int, weigh: Weigh):
        super().__init__()
        names = torch.eye(num_rows, dtype=torch.float64)
        every_head = torch.ones(1, dtype=torch.float64)
        self.attention = Attention(
            # One-hot names on both sides: head r scores 1 at token r and 0 at the other, and linear attention copies.
            query=Port(positional=Bias(names)),
            key=Port(positional=Positional(names.clone(), every_head, used=num_rows)),
            value=Port(PREFIX),
            weigh=weigh,
        )

    def forward(self, prefix: RowPrefix) -> tuple[Float[Tensor, "B N 1 Dslot"], ...]:
        """The rows, the same for every text token."""
        return self.attention({}, {PREFIX: prefix}).squeeze(3).unbind(2)


class RowForward(nn.Module):
    """g * z + b."""

    def __init__(self, op: Norm, regions: Regions, weigh: Weigh):
        super().__init__()
        self.names = held(op)
        self.read = ReadRows(len(self.names), weigh)
        regions.fill(self.read, *map(regions.make, self.names))
        self.product = Gated()

    def forward(self, z: Pieces, prefix: RowPrefix) -> Pieces:
        for name, row in zip(self.names, self.read(prefix), strict=True):
            z = self.product(z, row) if name == "scale" else torch.add(z, row)
        return z


class RowBackward(nn.Module):
    """g * dy. The bias arrives too, by a head that nothing reads."""

    def __init__(self, op: Norm, regions: Regions, weigh: Weigh):
        super().__init__()
        self.read = ReadRows(len(held(op)), weigh)
        scale = regions.make("scale")
        regions.fill(self.read, *(scale if name == "scale" else None for name in held(op)))
        regions.free(scale)  # it is multiplied into the gradient before anything else needs a slot
        self.product = Gated()

    def forward(self, dy: Pieces, prefix: RowPrefix) -> Pieces:
        return self.product(dy, self.read(prefix)[0])


class RowDescent(Recordable):
    """Text tokens send their gradients to the prefix token of that name; the residual adds them."""

    def __init__(self, op: Norm, layout: Layout, moved: dict[str, Region], movement: Movement, weigh: Weigh):
        super().__init__()
        self.movement = movement
        self.regions = [moved[name] for name in held(op) if name in moved]
        self.rows = [held(op).index(name) for name in held(op) if name in moved]
        names = torch.eye(len(held(op)), dtype=torch.float64)
        keys = names[self.rows]
        # One head for every row that learns; a row that does not scores 0 with all of them, and stays.
        down = movement.factor * torch.eye(len(moved), dtype=torch.float64)
        self.attention = Attention(
            query=Port(positional=Positional(names, torch.ones(1, dtype=torch.float64), used=len(names))),
            key=Port(positional=Bias(keys)),
            value=Port(*self.regions, factors=[DimensionWise(down[None])]),
            weigh=weigh,
            sum_over="h",
        )

    def forward(self, gradients: dict[Region, Pieces], prefix: RowPrefix | Descending) -> RowPrefix | Descending:
        heads = {region: gradient[:, :, None, None] for region, gradient in gradients.items()}
        return self.movement(self.attention({}, heads), prefix)


# Scale and bias, as in the paper: a linear layer whose matrix is diagonal.


class DiagonalForward(nn.Module):
    """g * z + b."""

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

    def __init__(self, op: Norm, layout: Layout, moved: dict[str, Region], movement: Movement, weigh: Weigh):
        super().__init__()
        self.layout, self.moved, self.movement = layout, moved, movement
        self.bias = self.scale = None
        if "bias" in moved:
            self.bias = LinearDescent(layout, has_bias=True, movement=movement, weigh=weigh)
        if "scale" in moved:
            one = torch.ones(1, 1, dtype=torch.float64)
            # Query and key are both 1, so every prefix token gets the whole sum over the text, -eta sum_t dy_t z_t.
            self.scale = Attention(
                query=Port(positional=Bias(one)),
                key=Port(positional=Bias(one.clone())),
                value=layout.columns(moved["scale"], factor=movement.factor),
                weigh=weigh,
            )
            g = layout.geometry
            # Row i keeps entry i of that sum. The gate is the identity matrix, stacked and sharded like the weights.
            rows = torch.eye(g.dim_slot, dtype=torch.float64).view(g.stack, g.num_prefix, g.shards, g.head_dim)
            diagonal = rows.transpose(1, 2).reshape(1, 1, g.num_heads, 1, g.num_prefix, g.head_dim)
            self.gate = FixedGate(diagonal)

    def forward(self, gradients: dict[Region, Pieces], prefix: Tensor | Descending) -> Tensor | Descending:
        changes: list[Tensor] = []
        if self.scale is not None:
            region = self.moved["scale"]
            changes.append(self.gate(self.scale({}, {region: by_heads(gradients[region], self.layout)})))
        if self.bias is not None:
            dy = gradients[self.moved["bias"]]
            # The input is zero but for the constant 1, which the linear descent sets: only the bias's column moves.
            change = self.bias.change(alone(dy), torch.zeros_like(alone(dy)))
            changes.append(change.unflatten(0, dy.shape[:2]).squeeze(2))
        return self.movement(changes[0] if len(changes) == 1 else torch.add(*changes), prefix)


def alone(x: Pieces) -> Float[Tensor, "BN 1 T Dslot"]:
    """Pieces where a batch would stand: a diagonal matrix acts on each of them alone, by one module."""
    return x.flatten(0, 1).unsqueeze(1)


def each(prefix: Float[Tensor, "B N H 1 K d"], x: Pieces) -> Float[Tensor, "BN 1 H 1 K d"]:
    """The prefix of every piece of every sequence; not copied where one serves all."""
    if prefix.shape[:2] == (1, 1):
        return prefix
    return prefix.expand(x.shape[0], *prefix.shape[1:]).flatten(0, 1).unsqueeze(1)
