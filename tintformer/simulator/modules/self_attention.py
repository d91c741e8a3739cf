"""Self-attention of the auxiliary (paper: section "Self-attention layer"), after and before its linear layers.

Heads are `[B, K, G, 1, T, d]`: K key/value heads stand where a linear module has its input pieces, the G queries that
share one stand in the head axis; keys and values have 1 there and are copied by the product itself.
Backward through the values: the same scores, transposed. Through queries and keys: two softmaxes whose scores are
perturbed by +-h dy_t . v_j, which is the attention of [q, +-h dy] to [k, v]; their difference is the softmax Jacobian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tintformer.auxiliary.ops import Alibi, Attend, Rotary
from tintformer.errors import InputError
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.geometry import Cut
from tintformer.simulator.layouts import Layout
from tintformer.simulator.modules.means import Groups, Length
from tintformer.simulator.primitives import attention
from tintformer.simulator.primitives.attention import Attention, Joined, Port, Positional, Weigh
from tintformer.simulator.primitives.gate import Gated
from tintformer.simulator.primitives.linear_maps import Combine, DimensionWise, SplitWise
from tintformer.simulator.primitives.position import Distance, Rotate

Pieces = Float[Tensor, "B N T Dslot"]
Heads = Float[Tensor, "B K G 1 T d"]
Transposition = Literal["scores", "stored"]

_DOUBLE_STEP = 1e-5
"""In float64 the error of a central difference, step^2, and its round-off, 1e-16 / step, are both below 1e-10 here."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What comes with the input: who sees whom (0 or the smallest number), and where every token stands.

    Queries may be those of the last Q tokens alone.
    """

    mask: Float[Tensor, "B 1 1 1 Q T"]
    positions: Int[Tensor, "B T"]


class ToHeads(nn.Module):
    """From pieces to the auxiliary's heads, which never straddle pieces.

    Lean: the coordinates of a head are read as they stand. Paper: by a dimension-wise and a split-wise map.
    """

    def __init__(self, op: Attend, num_heads: int, cut: Cut, layout: Layout):
        super().__init__()
        self.op, self.num_heads, self.layout = op, num_heads, layout
        self.in_piece = cut.step // op.head_dim
        self.gather = self.shift = None
        if not layout.lean:
            gather, shift = _routes(layout, self.in_piece, op.head_dim)
            self.gather, self.shift = DimensionWise(gather), SplitWise(shift)

    def forward(self, x: Pieces) -> Heads:
        if self.gather is None or self.shift is None:
            heads = x[..., : self.in_piece * self.op.head_dim].unflatten(-1, (self.in_piece, self.op.head_dim))
            heads = heads.transpose(2, 3)
        else:
            g = self.layout.geometry
            parts = x.unflatten(-1, (g.shards, g.head_dim)).permute(0, 1, 3, 2, 4).unsqueeze(3)
            heads = self.shift(self.gather(parts)).squeeze(3)
        shared = self.op.num_key_value_heads
        return heads.flatten(1, 2)[:, : self.num_heads].unflatten(1, (shared, -1)).unsqueeze(3)


class FromHeads(nn.Module):
    """The way back: the transpose of `ToHeads`."""

    def __init__(self, op: Attend, num_heads: int, cut: Cut, layout: Layout):
        super().__init__()
        self.op, self.num_heads, self.cut, self.layout = op, num_heads, cut, layout
        self.in_piece = cut.step // op.head_dim
        self.shift = self.scatter = None
        if not layout.lean:
            gather, shift = _routes(layout, self.in_piece, op.head_dim)
            self.shift, self.scatter = SplitWise(shift.mT.clone()), DimensionWise(gather.mT.clone())

    def forward(self, heads: Heads) -> Pieces:
        flat = heads.squeeze(3).flatten(1, 2)
        missing = self.cut.count * self.in_piece - self.num_heads
        pieces = functional.pad(flat, (0, 0, 0, 0, 0, missing)).unflatten(1, (self.cut.count, self.in_piece))
        if self.shift is None or self.scatter is None:
            merged = pieces.transpose(2, 3).flatten(3)
            return functional.pad(merged, (0, self.layout.geometry.dim_slot - merged.shape[-1]))
        return self.scatter(self.shift(pieces.unsqueeze(3))).squeeze(3).transpose(2, 3).flatten(3)


def _routes(layout: Layout, in_piece: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Head h of the auxiliary holds coordinates h d .. of the signal: bring them to head h, then to its start."""
    g = layout.geometry
    gather = torch.zeros(g.head_dim, in_piece, g.shards, dtype=torch.float64)
    shift = torch.zeros(in_piece, head_dim, g.head_dim, dtype=torch.float64)
    if head_dim > g.head_dim:
        raise InputError(
            f"layout='paper' needs heads of the auxiliary ({head_dim} wide) to fit those of the simulator "
            f"({g.head_dim} wide): use a smaller stack, or layout='lean'"
        )
    i = torch.arange(in_piece * head_dim)
    gather[i % g.head_dim, i // head_dim, i // g.head_dim] = 1
    shift[i // head_dim, i % head_dim, i % g.head_dim] = 1
    return gather, shift


class Inputs(nn.Module):
    """Queries, keys and values by heads, turned to their positions, and the mask with ALiBi's bias."""

    def __init__(self, op: Attend, cuts: tuple[Cut, Cut], layout: Layout):
        super().__init__()
        self.to_query = ToHeads(op, op.num_heads, cuts[0], layout)
        self.to_key = ToHeads(op, op.num_key_value_heads, cuts[1], layout)
        self.rotate = Rotate(op.position) if isinstance(op.position, Rotary) else None
        self.distance = Distance(op.position, op.num_key_value_heads) if isinstance(op.position, Alibi) else None

    def turned(self, query: Pieces, key: Pieces, scene: Scene) -> tuple[Heads, Heads]:
        heads = self.to_query(query), self.to_key(key)
        if self.rotate is None:
            return heads
        asking = scene.positions[:, -heads[0].shape[-2] :]
        return self.rotate(heads[0], asking), self.rotate(heads[1], scene.positions)

    def mask(self, scene: Scene) -> Tensor:
        return scene.mask if self.distance is None else self.distance(scene.mask, scene.positions)


def _scaled(region: str, factor: float, op: Attend) -> Port:
    shared = op.num_heads // op.num_key_value_heads
    return Port(reads=region, factors=[DimensionWise(factor * torch.eye(shared, dtype=torch.float64)[None])])


class AttentionForward(nn.Module):
    """sum_j softmax(q_t . k)_j v_j."""

    def __init__(self, op: Attend, cuts: tuple[Cut, Cut], layout: Layout):
        super().__init__()
        self.inputs = Inputs(op, cuts, layout)
        self.attention = Attention(
            query=_scaled("query", op.scale, op),
            key=Port(reads="key"),
            value=Port(reads="value"),
            weigh=attention.softmax,
        )
        self.from_heads = FromHeads(op, op.num_heads, cuts[0], layout)

    def forward(self, query: Pieces, key: Pieces, value: Pieces, scene: Scene) -> Pieces:
        heads = self.inputs.turned(query, key, scene)
        tokens = {"query": heads[0], "key": heads[1], "value": self.inputs.to_key(value)}
        return self.from_heads(self.attention(tokens, tokens, self.inputs.mask(scene)))


class AttentionBackward(nn.Module):
    """Gradients of queries, keys and values; of values alone if the rule takes the scores as constants."""

    def __init__(
        self,
        op: Attend,
        cuts: tuple[Cut, Cut],
        layout: Layout,
        rule: LearningRule,
        weigh: Weigh,
        tiny: float,
        transposition: Transposition,
    ):
        super().__init__()
        self.inputs = Inputs(op, cuts, layout)
        self.from_value = FromHeads(op, op.num_key_value_heads, cuts[1], layout)
        value_gradient = StoreThenRead if transposition == "stored" else TransposedScores
        self.value_gradient = value_gradient(op, layout, weigh)
        self.scores = None if rule.attention_gradient == "value" else ScoreGradient(op, cuts, layout, rule, tiny)

    def forward(
        self, dy: Pieces, query: Pieces, key: Pieces, value: Pieces, scene: Scene
    ) -> tuple[Pieces | None, Pieces | None, Pieces]:
        heads = self.inputs.turned(query, key, scene)
        tokens = {"query": heads[0], "key": heads[1], "gradient": self.inputs.to_query(dy)}
        mask = self.inputs.mask(scene)
        dvalue = self.from_value(self.value_gradient(tokens, mask))
        if self.scores is None:
            return None, None, dvalue
        tokens["value"] = self.inputs.to_key(value)
        return *self.scores(tokens, dy, mask, self.inputs, scene), dvalue


class TransposedScores(nn.Module):
    """dv_j = sum_t a_tj dy_t: the attention of the forward pass with its scores transposed."""

    def __init__(self, op: Attend, layout: Layout, weigh: Weigh):
        super().__init__()
        self.attention = Attention(
            query=_scaled("query", op.scale, op),
            key=Port(reads="key"),
            value=Port(reads="gradient"),
            weigh=attention.softmax,
            sum_over="h",
            transposed=True,
        )

    def forward(self, tokens: dict[str, Tensor], mask: Tensor) -> Heads:
        return self.attention(tokens, tokens, mask)


class StoreThenRead(nn.Module):
    """The same without transposing (the paper's way): store a_t. in token t, then read coordinate j of every store.

    The first attention has one-hot positions as values, so that its output is the row of attention weights; in the
    second, token j asks with its own one-hot position, which picks a_tj from the store of every token t.
    """

    def __init__(self, op: Attend, layout: Layout, weigh: Weigh):
        super().__init__()
        self.capacity = layout.geometry.dim_sim // op.num_heads
        one_hot = torch.eye(self.capacity, dtype=torch.float64)
        every_head = torch.ones(1, dtype=torch.float64)
        self.positions = Positional(one_hot, every_head, used=self.capacity)
        self.store = Attention(
            query=_scaled("query", op.scale, op),
            key=Port(reads="key"),
            value=Port(reads="position"),
            weigh=attention.softmax,
        )
        self.read = Attention(
            query=Port(reads="position"),
            key=Port(reads="stored"),
            value=Port(reads="gradient"),
            weigh=weigh,
            sum_over="h",
        )

    def forward(self, tokens: dict[str, Tensor], mask: Tensor) -> Heads:
        num_tokens = tokens["gradient"].shape[-2]
        if num_tokens > self.capacity:
            raise InputError(
                f"{num_tokens} tokens train but a head stores {self.capacity} scores: "
                "shorten the training part, or use transposition='scores'"
            )
        tokens = {**tokens, "position": self.positions()[..., :num_tokens, :]}
        tokens["stored"] = self.store(tokens, tokens, mask)
        return self.read(tokens, tokens)


class ScoreGradient(nn.Module):
    """Gradients of queries and keys by the perturbed softmax."""

    def __init__(self, op: Attend, cuts: tuple[Cut, Cut], layout: Layout, rule: LearningRule, tiny: float):
        super().__init__()
        step = score_step(rule, tiny)
        groups = Groups(cuts[0], 1, layout.geometry.dim_slot)
        self.length = Length(groups, tiny) if rule.epsilon_mode == "relative" else None
        self.query_gradient = nn.ModuleList(_perturbed(op, sign * step, value="key") for sign in (1.0, -1.0))
        self.key_gradient = nn.ModuleList(
            _perturbed(op, sign * step, value="long_query", transposed=True) for sign in (1.0, -1.0)
        )
        self.subtract = Combine(torch.tensor([[1.0, -1.0]], dtype=torch.float64), op.scale / (2 * step))
        self.product = Gated()
        self.turn_back = Rotate(op.position, inverse=True) if isinstance(op.position, Rotary) else None
        self.from_query = FromHeads(op, op.num_heads, cuts[0], layout)
        self.from_key = FromHeads(op, op.num_key_value_heads, cuts[1], layout)

    def forward(
        self, tokens: dict[str, Tensor], dy: Pieces, mask: Tensor, inputs: Inputs, scene: Scene
    ) -> tuple[Pieces, Pieces]:
        tokens = {**tokens, "direction": tokens["gradient"], "long_query": tokens["query"]}
        length: Tensor | None = None
        if self.length is not None:
            unit, spread, _ = self.length(dy)
            length = inputs.to_query(spread)
            tokens["direction"] = inputs.to_query(unit)
            tokens["long_query"] = self.product(tokens["query"], length)
        dquery = self.subtract(*(half(tokens, tokens, mask) for half in self.query_gradient))[0]
        dkey = self.subtract(*(half(tokens, tokens, mask) for half in self.key_gradient))[0]
        if length is not None:
            dquery = self.product(dquery, length)
        if self.turn_back is not None:
            dquery, dkey = (self.turn_back(heads, scene.positions) for heads in (dquery, dkey))
        return self.from_query(dquery), self.from_key(dkey)


def score_step(rule: LearningRule, tiny: float) -> float:
    """Step of the perturbed softmax. For the exact gradient it only has to be good, so it follows the number format."""
    chosen = rule.epsilon is not None or rule.attention_gradient == "perturbed"
    double = tiny < torch.finfo(torch.float32).tiny
    return _DOUBLE_STEP if double and not chosen else rule.difference_step("perturbed")


def _perturbed(op: Attend, step: float, *, value: str, transposed: bool = False) -> Attention:
    """An attention whose scores are q . k + step * direction . v."""
    return Attention(
        query=Joined(_scaled("query", op.scale, op), _scaled("direction", step, op)),
        key=Joined(Port(reads="key"), Port(reads="value")),
        value=Port(reads=value),
        weigh=attention.softmax,
        sum_over="h" if transposed else "",
        transposed=transposed,
    )
