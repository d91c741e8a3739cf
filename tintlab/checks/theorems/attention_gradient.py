"""Hard attention and value-only gradients (paper, appendix "Self-attention layer").

B batch, T tokens, K key/value heads, G queries that share one, d head width, D model width. A head is eps-hard at a
query if one token has at least 1 - eps of its attention; here every query and head has its own eps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.auxiliary.ops import Attend
from tintformer.rule import attention
from tintformer.rule.attention import AttentionContext, AttentionHeads
from tintlab.checks.theorems.check import Check, check_tokens, unit_roundoff

ROUNDINGS = 64
"""Roundings that a gradient of an attention may cost, in units of the last place of its largest term."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Projections:
    """What stands before the heads: the input of the layer and the linears that make queries, keys and values of it."""

    x: Float[Tensor, "B T D"]
    query: Float[Tensor, "Hd D"]
    key: Float[Tensor, "Kd D"]
    value: Float[Tensor, "Kd D"]
    biases: tuple[Float[Tensor, " _"], ...] = ()
    query_gain: Float[Tensor, "B T"] | None = None
    """Most that a gradient of the heads' queries can grow on its way to the linear's output: by the scaling of a
    rotation and by a query norm; None: 1."""
    key_gain: Float[Tensor, "B T"] | None = None
    left_out: Float[Tensor, "B T D"]
    """The part of dx that comes through queries and keys: what a value-only gradient leaves out."""

    def weight_size(self) -> float:
        """The paper's B_w: the largest spectral norm of a matrix, or norm of a bias."""
        matrices = [float(torch.linalg.matrix_norm(each, 2)) for each in (self.query, self.key, self.value)]
        return max(matrices + [float(bias.norm()) for bias in self.biases])


@dataclass(frozen=True, eq=False, kw_only=True)
class Sizes:
    """The norms that every bound is made of."""

    hardness: Float[Tensor, "B K G T"]
    """eps of every query: the attention that does not go to its first choice."""
    dy: Float[Tensor, "B K G T"]
    query: Float[Tensor, "B K G T"]
    key: Float[Tensor, "B K 1 1"]
    """The largest over the tokens; so is `value`."""
    value: Float[Tensor, "B K 1 1"]
    visible: Float[Tensor, "B T T"]
    """1 where a query sees a key."""


def sizes(heads: AttentionHeads, dy: Float[Tensor, "B T Hd"], op: Attend, context: AttentionContext) -> Sizes:
    weights = attention.scores(heads, op, context).softmax(-1)
    gradients = dy.unflatten(-1, (op.num_key_value_heads, -1, op.head_dim)).permute(0, 2, 3, 1, 4)
    return Sizes(
        hardness=1 - weights.amax(-1),
        dy=gradients.norm(dim=-1),
        query=heads.query.norm(dim=-1),
        key=heads.key.norm(dim=-1).amax(-1)[..., None, None],
        value=heads.value.norm(dim=-1).amax(-1)[..., None, None],
        visible=(context.mask[:, 0, 0] == 0).to(dy.dtype).expand(len(dy), -1, -1),
    )


def query_bound(size: Sizes, scale: float) -> Float[Tensor, "B T"]:
    """A bound on |dq_t|, all heads together: 4 scale eps |dy_t| max|v| max|k| in each.

    dq_t = scale sum_j a_tj (c_j - c_0) (k_j - mean k) with c_j = dy_t . v_j and 0 the first choice of query t, whose
    own term vanishes. What is left has at most eps of the attention, and both brackets at most twice the largest.
    The paper's proof has the same 4; its model has no scale on the scores. Heads add up in squares, so their number
    does not enter.
    """
    each = 4 * scale * size.hardness * size.dy * size.value * size.key
    return each.square().sum((1, 2)).sqrt()


def key_bound(size: Sizes, scale: float) -> Float[Tensor, "B T"]:
    """A bound on |dk_t|: 2 scale max|v| times the sum of eps_j |q_j| |dy_j| over the queries j that see token t.

    dk_t = scale sum_j a_jt (dy_j . (v_t - mean_j v)) q_j. If t is query j's first choice, v_t is within 2 eps max|v| of
    the mean; if not, a_jt is at most eps and the bracket at most twice the largest: 2 eps max|v| a query either way.
    But the queries add up, all of them with one sign if they share their first choice, so with
    B_y = max|dy_j| the bound is 2 T scale eps max|q| max|v| B_y. The paper says that keys follow like queries, without
    the factor of T. That is so for the mean over the tokens t, since sum_t a_jt |v_t - mean_j v| <= 4 eps max|v|, and
    false for a token that many queries attend to.
    """
    each = 2 * scale * size.hardness * size.query * size.dy * size.value
    return torch.einsum("BKGj,Bjt->BKt", each, size.visible).square().sum(1).sqrt()


def hard_attention(
    heads: AttentionHeads,
    dy: Float[Tensor, "B T Hd"],
    op: Attend,
    context: AttentionContext,
    *,
    projections: Projections | None = None,
    name: str = "",
) -> list[Check]:
    """Theorem "hard attention": the gradients of queries and of keys against their bounds, token by token.

    With `projections`, also its consequence: the gradient of the layer's input that value-only propagation leaves out,
    |W_Q^T dq_t + W_K^T dk_t| <= |W_Q| bound(dq_t) + |W_K| bound(dk_t).
    """
    size = sizes(heads, dy, op, context)
    found = attention.head_gradients(heads, dy, op, context, scheme="exact", step=0.0, mode="fixed")
    assert found.query is not None and found.key is not None
    bounds = query_bound(size, op.scale), key_bound(size, op.scale)
    measured = attention.merge_query(found.query).norm(dim=-1), attention.merge_key(found.key).norm(dim=-1)
    worst = float(size.hardness.max())
    hardness = f"eps = {worst:.2g} at the softest query, {float(size.hardness.median()):.2g} in the median"
    proof = 4 * op.scale * worst * float(dy.norm(dim=-1).max() * size.value.max())
    printed = proof * float(size.key.max()), proof * float(size.query.max())
    notes = hardness, f"{hardness}; {_note_on_keys(measured[1], printed[1])}"
    rounding = _rounding(size, op.scale)
    checks = [
        check_tokens(
            f"hard attention, {('queries', 'keys')[which]}",
            name,
            measured=measured[which],
            bound=bounds[which],
            rounding=rounding,
            size=attention.merge_key(found.value).norm(dim=-1),
            printed=printed[which],
            note=notes[which],
        )
        for which in (0, 1)
    ]
    if projections is not None:
        largest = 8 * op.scale * worst * float(dy.norm(dim=-1).max())
        checks.append(_value_only(projections, bounds, rounding, largest, name))
    return checks


def _value_only(
    layer: Projections, bounds: tuple[Tensor, Tensor], rounding: Tensor, largest: float, name: str
) -> Check:
    """The consequence for the layer's input."""
    stretch = [
        torch.linalg.matrix_norm(weight, 2) * (torch.ones_like(bounds[0]) if gain is None else gain)
        for weight, gain in ((layer.query, layer.query_gain), (layer.key, layer.key_gain))
    ]
    longest = float(layer.x.norm(dim=-1).max())
    plain = layer.query_gain is None and layer.key_gain is None
    return check_tokens(
        "value-only gradient",
        name,
        measured=layer.left_out.norm(dim=-1),
        bound=stretch[0] * bounds[0] + stretch[1] * bounds[1],
        rounding=(stretch[0] + stretch[1]) * rounding,
        size=layer.left_out.norm(dim=-1),
        printed=largest * layer.weight_size() ** 3 * (1 + longest) ** 2 if plain else None,
        note="the printed bound lacks a factor of T/2 for the keys"
        if plain
        else "the paper has neither query/key norms nor scaled rotations",
    )


def _note_on_keys(measured: Tensor, printed: float) -> str:
    broken = int((measured > printed).sum())
    outcome = f"fails at {broken} tokens" if broken else "holds here all the same"
    return f"the printed bound lacks a factor of T/2 and {outcome}"


def _rounding(size: Sizes, scale: float) -> Float[Tensor, "B T"]:
    """What the arithmetic may lose: a few units in the last place of the largest term of a sum over the tokens."""
    tokens = size.visible.shape[-1]
    largest = scale * size.dy * size.value * torch.maximum(size.key, size.query.amax(-1, keepdim=True))
    lost = ROUNDINGS * unit_roundoff(largest.dtype) * tokens * largest.amax((1, 2, 3))
    return lost[:, None].expand(-1, tokens)
