"""Softmax attention: forward, and backward through the values alone or through queries and keys as well.

B batch, T tokens, H heads, K key/value heads, G = H / K queries that share a key/value head, d head width.
Everything here is `[B, T, heads * d]` outside and `[B, K, G, T, d]` (queries) or `[B, K, T, d]` (keys, values) inside.
Q is the number of queries where they may be fewer than the T tokens.
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


class AttentionHeads(NamedTuple):
    """Queries, keys and values of all heads, positions applied."""

    query: Float[Tensor, "B K G Q d"]
    key: Float[Tensor, "B K T d"]
    value: Float[Tensor, "B K T d"]


class Rotation(NamedTuple):
    """Cosines and sines of every token's rotary angles, to be broadcast over heads."""

    cos: Float[Tensor, "B T half"]
    sin: Float[Tensor, "B T half"]


@dataclass(frozen=True)
class AttentionContext:
    """Who sees whom, and where each token stands: what an attention needs besides its inputs."""

    mask: Float[Tensor, "#B 1 1 Q T"]
    """Added to the scores: 0 where visible, the smallest finite number elsewhere."""
    positions: Int[Tensor, "B T"]
    rotation: Rotation | None = None
    """For rotary positions only."""


def rotation(rotary: Rotary, positions: Int[Tensor, "B T"], dtype: torch.dtype) -> Rotation:
    # In the compute dtype: bfloat16 cannot tell position 256 from 257, and an angle that is off by one turns the
    # fastest pair of coordinates by a whole radian.
    angles = positions[..., None].to(dtype) * rotary.inverse_frequencies.to(positions.device, dtype)
    return Rotation(angles.cos() * rotary.scaling, angles.sin() * rotary.scaling)


def split(inputs: Sequence[Float[Tensor, "B T _"]], op: Attend, context: AttentionContext) -> AttentionHeads:
    """Cut queries, keys and values into heads and rotate the first two to their positions."""
    query, key, value = inputs
    # Grouped queries: K key/value heads, each read by G neighbouring queries; G is an axis, so nothing is copied.
    groups = (op.num_key_value_heads, op.num_heads // op.num_key_value_heads)
    query_BKGTd = query.unflatten(-1, (*groups, op.head_dim)).permute(0, 2, 3, 1, 4)
    key_BKTd, value_BKTd = (x.unflatten(-1, (groups[0], op.head_dim)).transpose(1, 2) for x in (key, value))
    return AttentionHeads(_rotate(query_BKGTd, op, context), _rotate(key_BKTd, op, context), value_BKTd)


def merge(heads: AttentionHeads, op: Attend, context: AttentionContext) -> tuple[Tensor, Tensor, Tensor]:
    """The transpose of `split`: gradients of the heads back to gradients of its three inputs."""
    query, key = (_rotate(x, op, context, inverse=True) for x in heads[:2])
    return merge_query(query), merge_key(key), merge_key(heads.value)


def _rotate(x: Tensor, op: Attend, context: AttentionContext, *, inverse: bool = False) -> Tensor:
    if not isinstance(op.position, Rotary):
        return x
    assert context.rotation is not None, "rotary positions need their angles"
    return rotate(x, context.rotation, interleaved=op.position.interleaved, inverse=inverse)


def merge_query(query_BKGTd: Float[Tensor, "B K G T d"]) -> Float[Tensor, "B T Hd"]:
    return query_BKGTd.permute(0, 3, 1, 2, 4).flatten(2)


def merge_key(key_BKTd: Float[Tensor, "B K T d"]) -> Float[Tensor, "B T Kd"]:
    return key_BKTd.transpose(1, 2).flatten(2)


def rotate(
    x: Float[Tensor, "B *heads T d"], by: Rotation, *, interleaved: bool, inverse: bool = False
) -> Float[Tensor, "B *heads T d"]:
    """Rotary positions; `inverse` is the transpose, which carries gradients back."""
    half = by.cos.shape[-1]
    shape = (x.shape[0], *(1 for _ in x.shape[1:-2]), x.shape[-2], half)
    cos, sin = by.cos.view(shape), by.sin.view(shape)
    # With yarn's scaling this is a multiple of a rotation: the transpose scales again, where an inverse would divide.
    if inverse:  # a rotation's transpose turns back by the same angle
        sin = -sin
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    else:
        first, second = turned.chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


def scores(heads: AttentionHeads, op: Attend, context: AttentionContext) -> Float[Tensor, "B K G Q T"]:
    """What the softmax is taken of: scaled products, the ALiBi bias and the mask."""
    result_BKGQT = torch.einsum("BKGtd,BKjd->BKGtj", heads.query, heads.key) * op.scale
    if isinstance(op.position, Alibi):
        # Only differences within a row matter to a softmax, so the key's position alone gives the distance.
        # (The paper's definition of ALiBi adds m (j - t); the term m t is the same for every j.)
        slopes_KG11 = op.position.slopes.to(result_BKGQT).view(op.num_key_value_heads, -1, 1, 1)
        result_BKGQT = result_BKGQT + slopes_KG11 * context.positions[:, None, None, None].to(result_BKGQT.dtype)
    return result_BKGQT + context.mask


def forward(heads: AttentionHeads, op: Attend, context: AttentionContext) -> Float[Tensor, "B T Hd"]:
    weights_BKGTT = scores(heads, op, context).softmax(-1)
    return merge_query(torch.einsum("BKGtj,BKjd->BKGtd", weights_BKGTT, heads.value))


def backward(
    heads: AttentionHeads,
    dy: Float[Tensor, "B T Hd"],
    op: Attend,
    context: AttentionContext,
    *,
    scheme: AttentionGradient = "value",
    step: float = 0.0,
    mode: EpsilonMode = "fixed",
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Gradients of the three inputs; None for queries and keys where only the values are followed."""
    gradients = head_gradients(heads, dy, op, context, scheme=scheme, step=step, mode=mode)
    if gradients.query is None or gradients.key is None:
        return None, None, merge_key(gradients.value)
    return merge(AttentionHeads(gradients.query, gradients.key, gradients.value), op, context)


class HeadGradients(NamedTuple):
    """Gradients of the heads; None for queries and keys where only the values are followed."""

    query: Float[Tensor, "B K G Q d"] | None
    key: Float[Tensor, "B K T d"] | None
    value: Float[Tensor, "B K T d"]


def head_gradients(
    heads: AttentionHeads,
    dy: Float[Tensor, "B Q Hd"],
    op: Attend,
    context: AttentionContext,
    *,
    scheme: AttentionGradient,
    step: float,
    mode: EpsilonMode,
) -> HeadGradients:
    """What some of the queries (Q of the T tokens) send to all heads; parts of the queries simply add up."""
    scores_BKGQT = scores(heads, op, context)
    weights_BKGQT = scores_BKGQT.softmax(-1)
    dy_BKGQd = dy.unflatten(-1, (op.num_key_value_heads, -1, op.head_dim)).permute(0, 2, 3, 1, 4)
    # dv_j = sum_t a_tj dy_t: the transposed attention pattern (the paper's main text prints dy_j under the sum).
    # The sum runs over g as well: all queries that share a key/value head send to it, so no sum is left for `merge`.
    dvalue_BKTd = torch.einsum("BKGqj,BKGqd->BKjd", weights_BKGQT, dy_BKGQd)
    # The paper's simulated gradient stops here: scores are constants, and queries and keys get nothing.
    # Section "Fuzzy backpropagation via stop gradients"; its theorem on hard attention bounds what is lost, which
    # is little where each query looks at one token.
    if scheme == "value":
        return HeadGradients(None, None, dvalue_BKTd)

    dweights_BKGQT = torch.einsum("BKGqd,BKjd->BKGqj", dy_BKGQd, heads.value)
    if scheme == "exact":
        # The paper's definition sums a_tj c_tj (k_j - mean k), with c_tj = dy_t . v_j. The mean, weighted by a, may as
        # well be taken of c: a_tj (c_tj - mean c) is one matrix that serves queries and keys alike.
        mean_BKGQ1 = (weights_BKGQT * dweights_BKGQT).sum(-1, keepdim=True)
        dscores_BKGQT = weights_BKGQT * (dweights_BKGQT - mean_BKGQ1)
    else:
        # c is linear in dy: divided by its size, the perturbation does not depend on the scale of the loss. Scores
        # give no scale, unlike x in `directional`: a softmax has one of its own, it feels differences of about 1.
        step_BQ1 = step / rms(dy) if mode == "relative" else torch.full_like(dy[..., :1], step)
        dscores_BKGQT = perturbed_softmax(scores_BKGQT, dweights_BKGQT, step_BQ1[:, None, None])
    dquery_BKGQd = torch.einsum("BKGqj,BKjd->BKGqd", dscores_BKGQT, heads.key) * op.scale
    dkey_BKTd = torch.einsum("BKGqj,BKGqd->BKjd", dscores_BKGQT, heads.query) * op.scale
    return HeadGradients(dquery_BKGQd, dkey_BKTd, dvalue_BKTd)


def perturbed_softmax(
    scores: Float[Tensor, "*rows T"], direction: Float[Tensor, "*rows T"], step: Float[Tensor, "*ones 1"]
) -> Float[Tensor, "*rows T"]:
    """The softmax Jacobian applied to `direction`, as the difference of two softmaxes.

    With direction_tj = dy_t . v_j the perturbed scores are [q_t, step dy_t] . [k_j, v_j]: an attention computes them.
    """
    # Hidden scores are so low that both softmaxes are exactly 0 there: no mask is needed after the difference.
    change = step * direction
    return ((scores + change).softmax(-1) - (scores - change).softmax(-1)) / (2 * step)
