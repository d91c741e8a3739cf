"""The auxiliary's weights as prefix tokens, and back.

A linear's prefix is `[1, N, H, M, K, d]`, laid out by heads: piece (m, n) of the matrix, padded to D~ x D~, has row
s K + j in slot s of token j, and the bias in column D of the first input piece. A norm's prefix is one token for the
scale and one for the bias, `[1, N, 1, 1, R, D~]`; in the paper's layout it is that of a linear with a diagonal matrix.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from tintformer.auxiliary.ops import Linear, Norm, Weight
from tintformer.simulator.geometry import Geometry
from tintformer.simulator.regions import Cut, groups_in_pieces
from tintformer.simulator.wiring import WiredOp

Prefix = Float[Tensor, "1 N H M K d"]


def write(wired: WiredOp, geometry: Geometry, dtype: torch.dtype) -> Tensor | None:
    """The prefix of an op with weights; None for the others."""
    match wired.op:
        case Linear():
            bias = None if wired.op.bias is None else wired.op.bias.read().to(dtype)
            return _matrix(wired.op.weight.read().to(dtype), bias, wired.into, wired.out, geometry)
        case Norm():
            rows = [_tiled(value.to(dtype), wired, geometry) for value in _norm_values(wired.op)]
            if not rows:
                return None
            if geometry.layout == "lean":
                return torch.stack(rows, dim=1)[None, :, None, None]
            return _diagonal(wired.op, rows, geometry)
        case _:
            return None


def read(wired: WiredOp, prefix: Prefix, geometry: Geometry) -> dict[Weight, Tensor]:
    """The weights that a prefix (or a difference of two, or one row of a batch of them) holds."""
    match wired.op:
        case Linear():
            matrix, bias = _pieces(prefix, geometry), wired.op.bias
            into, out = wired.into, wired.out
            weight = matrix[:, :, : out.step, : into.step].permute(0, 2, 1, 3).reshape(out.count * out.step, -1)
            result = {wired.op.weight: weight[: out.width, : into.width]}
            if bias is not None:
                result[bias] = matrix[:, 0, : out.step, geometry.dim_aux].reshape(-1)[: out.width]
            return result
        case Norm():
            if geometry.layout == "lean":
                rows = dict(zip(_norm_weights(wired.op), prefix[0, 0, 0, 0], strict=True))
            else:
                matrix = _pieces(prefix, geometry)[0, 0]
                named = {wired.op.scale: matrix.diagonal(), wired.op.bias: matrix[:, geometry.dim_aux]}
                rows = {weight: named[weight] for weight in _norm_weights(wired.op)}
            return {weight: row[: weight.source.shape[0]] for weight, row in rows.items()}
        case _:
            return {}


def _matrix(weight: Tensor, bias: Tensor | None, into: Cut, out: Cut, geometry: Geometry) -> Prefix:
    rows, columns = out.count * out.step - weight.shape[0], into.count * into.step - weight.shape[1]
    cut = functional.pad(weight, (0, columns, 0, rows)).view(out.count, out.step, into.count, into.step)
    side = geometry.dim_slot
    pieces = functional.pad(cut.transpose(1, 2), (0, side - into.step, 0, side - out.step))
    if bias is not None:
        pieces[:, 0, : out.step, geometry.dim_aux] = functional.pad(bias, (0, rows)).view(out.count, out.step)
    return _stack(pieces, geometry)


def _stack(pieces: Float[Tensor, "M N Dslot Dslot"], g: Geometry) -> Prefix:
    """Rows into slots of tokens, coordinates into parts. In memory token follows token, as embeddings do."""
    cut = pieces.view(*pieces.shape[:2], g.stack, g.num_prefix, g.shards, g.head_dim)
    tokens = cut.permute(1, 0, 3, 2, 4, 5).contiguous().flatten(3, 4)
    return tokens.permute(0, 3, 1, 2, 4).unsqueeze(0)


def _pieces(prefix: Prefix, g: Geometry) -> Float[Tensor, "M N Dslot Dslot"]:
    _, num_in, _, num_out, _, _ = prefix.shape
    cut = prefix.view(num_in, g.stack, g.shards, num_out, g.num_prefix, g.head_dim)
    return cut.permute(3, 0, 1, 4, 2, 5).reshape(num_out, num_in, g.dim_slot, g.dim_slot)


def tokens(prefix: Prefix, g: Geometry) -> Float[Tensor, "N M K D_prefix"]:
    """The prefix tokens as embeddings: S slots, one stacked row each."""
    _, num_in, _, num_out, _, _ = prefix.shape
    cut = prefix.view(num_in, g.stack, g.shards, num_out, g.num_prefix, g.head_dim)
    return cut.permute(0, 3, 4, 1, 2, 5).reshape(num_in, num_out, g.num_prefix, g.stack * g.dim_slot)


def _norm_weights(op: Norm) -> list[Weight]:
    return [weight for weight in (op.scale, op.bias) if weight is not None]


def _norm_values(op: Norm) -> list[Tensor]:
    """Scale and bias as they act; Gemma's scale is 1 + weight."""
    return [
        weight.read() + 1 if weight is op.scale and op.unit_offset else weight.read() for weight in _norm_weights(op)
    ]


def _tiled(value: Float[Tensor, " size"], wired: WiredOp, geometry: Geometry) -> Float[Tensor, "N Dslot"]:
    """A copy of the value for every group of every piece."""
    rows = value.new_zeros(wired.into.count, geometry.dim_slot)
    for row, num_groups in zip(rows, groups_in_pieces(wired.into, len(value)), strict=True):
        row[: num_groups * len(value)] = value.repeat(num_groups)
    return rows


def _diagonal(op: Norm, rows: list[Tensor], geometry: Geometry) -> Prefix:
    values = dict(zip([weight is op.scale for weight in _norm_weights(op)], rows, strict=True))
    ones = torch.zeros_like(rows[0])
    ones[:, : geometry.dim_aux] = 1
    pieces = torch.diag_embed(values.get(True, ones))
    if False in values:
        pieces[:, :, geometry.dim_aux] = values[False]
    # Every piece has a matrix of its own and meets no other: pieces stand in the input axis, one output each.
    return torch.cat([_stack(piece[None, None], geometry) for piece in pieces], dim=1)
