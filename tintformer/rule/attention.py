"""Softmax attention: forward, and backward through the values alone or through queries and keys as well.

B batch, T tokens, H heads, K key/value heads, G = H / K queries that share a key/value head, d head width.
Everything here is `[B, T, heads * d]` outside and `[B, K, G, T, d]` (queries) or `[B, K, T, d]` (keys, values) inside.
Paper: section "Self-attention layer"; the perturbed softmax extends it to queries and keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tintformer.auxiliary.ops import Alibi, Attend, Rotary
from tintformer.rule.difference import rms
from tintformer.rule.learning_rule import AttentionGradient, EpsilonMode


class Heads(NamedTuple):
    """Queries, keys and values of all heads, positions applied."""

    query: Float[Tensor, "B K G T d"]
    key: Float[Tensor, "B K T d"]
    value: Float[Tensor, "B K T d"]


@dataclass(frozen=True)
class Where:
    """Who sees whom, and where each token stands: what an attention needs besides its inputs."""

    mask: Float[Tensor, "B 1 1 T T"]
    """Added to the scores: 0 where visible, the smallest finite number elsewhere."""
    positions: Int[Tensor, "B T"]


def split(inputs: Sequence[Float[Tensor, "B T _"]], op: Attend, where: Where) -> Heads:
    """Cut queries, keys and values into heads and rotate the first two to their positions."""
    query, key, value = inputs
    groups = (op.num_key_value_heads, op.num_heads // op.num_key_value_heads)
    query_BKGTd = query.unflatten(-1, (*groups, op.head_dim)).permute(0, 2, 3, 1, 4)
    key_BKTd, value_BKTd = (x.unflatten(-1, (groups[0], op.head_dim)).transpose(1, 2) for x in (key, value))
    if isinstance(op.position, Rotary):
        query_BKGTd = rotate(query_BKGTd, op.position, where.positions[:, None, None])
        key_BKTd = rotate(key_BKTd, op.position, where.positions[:, None])
    return Heads(query_BKGTd, key_BKTd, value_BKTd)


def merge(heads: Heads, op: Attend, where: Where) -> tuple[Tensor, Tensor, Tensor]:
    """The transpose of `split`: gradients of the heads back to gradients of its three inputs."""
    query_BKGTd, key_BKTd, value_BKTd = heads
    if isinstance(op.position, Rotary):
        query_BKGTd = rotate(query_BKGTd, op.position, where.positions[:, None, None], inverse=True)
        key_BKTd = rotate(key_BKTd, op.position, where.positions[:, None], inverse=True)
    return merge_query(query_BKGTd), _merge_key(key_BKTd), _merge_key(value_BKTd)


def merge_query(query_BKGTd: Float[Tensor, "B K G T d"]) -> Float[Tensor, "B T Hd"]:
    return query_BKGTd.permute(0, 3, 1, 2, 4).flatten(2)


def _merge_key(key_BKTd: Tensor) -> Tensor:
    return key_BKTd.transpose(1, 2).flatten(2)


def rotate(
    x: Float[Tensor, "*heads T d"],
    rotary: Rotary,
    positions: Int[Tensor, "*ones T"],
    *,
    inverse: bool = False,
) -> Float[Tensor, "*heads T d"]:
    """Rotary positions; `inverse` is the transpose, which carries gradients back."""
    half = rotary.inverse_frequencies.shape[0]
    angles = positions[..., None].to(x.dtype) * rotary.inverse_frequencies.to(x.dtype)
    cos, sin = angles.cos() * rotary.scaling, angles.sin() * rotary.scaling
    if inverse:
        sin = -sin
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if rotary.interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    else:
        first, second = turned.chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((turned, rest), dim=-1)


def scores(heads: Heads, op: Attend, where: Where) -> Float[Tensor, "B K G T T"]:
    """What the softmax is taken of: scaled products, the ALiBi bias and the mask."""
    result_BKGTT = torch.einsum("BKGtd,BKjd->BKGtj", heads.query, heads.key) * op.scale
    if isinstance(op.position, Alibi):
        # Only differences within a row matter to a softmax, so the key's position alone gives the distance.
        slopes_KG11 = op.position.slopes.to(result_BKGTT.dtype).view(op.num_key_value_heads, -1, 1, 1)
        result_BKGTT = result_BKGTT + slopes_KG11 * where.positions[:, None, None, None].to(result_BKGTT.dtype)
    return result_BKGTT + where.mask


def forward(heads: Heads, op: Attend, where: Where) -> Float[Tensor, "B T Hd"]:
    weights_BKGTT = scores(heads, op, where).softmax(-1)
    return merge_query(torch.einsum("BKGtj,BKjd->BKGtd", weights_BKGTT, heads.value))


def backward(
    heads: Heads,
    dy: Float[Tensor, "B T Hd"],
    op: Attend,
    where: Where,
    *,
    scheme: AttentionGradient = "value",
    step: float = 0.0,
    mode: EpsilonMode = "fixed",
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Gradients of the three inputs; None for queries and keys where only the values are followed."""
    scores_BKGTT = scores(heads, op, where)
    weights_BKGTT = scores_BKGTT.softmax(-1)
    dy_BKGTd = dy.unflatten(-1, (op.num_key_value_heads, -1, op.head_dim)).permute(0, 2, 3, 1, 4)
    dvalue_BKTd = torch.einsum("BKGtj,BKGtd->BKjd", weights_BKGTT, dy_BKGTd)
    if scheme == "value":
        return None, None, _merge_key(dvalue_BKTd)

    dweights_BKGTT = torch.einsum("BKGtd,BKjd->BKGtj", dy_BKGTd, heads.value)
    if scheme == "exact":
        mean_BKGT1 = (weights_BKGTT * dweights_BKGTT).sum(-1, keepdim=True)
        dscores_BKGTT = weights_BKGTT * (dweights_BKGTT - mean_BKGT1)
    else:
        step_BT1 = step / rms(dy) if mode == "relative" else torch.full_like(dy[..., :1], step)
        dscores_BKGTT = perturbed_softmax(scores_BKGTT, dweights_BKGTT, step_BT1[:, None, None])
    dquery_BKGTd = torch.einsum("BKGtj,BKjd->BKGtd", dscores_BKGTT, heads.key) * op.scale
    dkey_BKTd = torch.einsum("BKGtj,BKGtd->BKjd", dscores_BKGTT, heads.query) * op.scale
    return merge(Heads(dquery_BKGTd, dkey_BKTd, dvalue_BKTd), op, where)


def perturbed_softmax(
    scores: Float[Tensor, "*rows T"], direction: Float[Tensor, "*rows T"], step: Float[Tensor, "*ones 1"]
) -> Float[Tensor, "*rows T"]:
    """The softmax Jacobian applied to `direction`, as the difference of two softmaxes.

    With direction_tj = dy_t . v_j the perturbed scores are [q_t, step dy_t] . [k_j, v_j]: an attention computes them.
    """
    change = step * direction
    return ((scores + change).softmax(-1) - (scores - change).softmax(-1)) / (2 * step)
