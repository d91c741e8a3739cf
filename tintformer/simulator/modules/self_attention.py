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
from tintformer.simulator.layouts import Layout, Module
from tintformer.simulator.modules.differences import Groups, Length
from tintformer.simulator.primitives import attention
from tintformer.simulator.primitives.attention import Attention, Joined, Port, Positional, Stream, Weigh
from tintformer.simulator.primitives.tokenwise import Combine, DimensionWise, Distance, Gated, Rotate, SplitWise
from tintformer.simulator.regions import Cut, Region, Regions

Pieces = Float[Tensor, "B N T Dslot"]
AuxiliaryHeads = Float[Tensor, "B K G 1 T d"]
Transposition = Literal["scores", "stored"]

_DOUBLE_STEP = 1e-5
"""In float64 the error of a central difference, step^2, and its round-off, 1e-16 / step, are both below 1e-10 here."""


@dataclass(frozen=True, eq=False)
class AttentionInputs:
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

    def forward(self, x: Pieces) -> AuxiliaryHeads:
        if self.gather is None or self.shift is None:
            heads = x[..., : self.in_piece * self.op.head_dim].unflatten(-1, (self.in_piece, self.op.head_dim))
            heads = heads.transpose(2, 3)
        else:
            g = self.layout.geometry
            parts = x.unflatten(-1, (g.shards, g.head_dim)).permute(0, 1, 3, 2, 4).unsqueeze(3)
            heads = self.shift(self.gather(parts)).squeeze(3)
        # Grouped queries: heads that share a key stand side by side, so nothing is repeated for them.
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

    def forward(self, heads: AuxiliaryHeads) -> Pieces:
        flat = heads.squeeze(3).flatten(1, 2)
        # The last piece may hold fewer heads than the others; zeros stand where the missing ones would.
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
    # Coordinate i stands in part i // d_sim; a map across heads cannot move it within its head, so a second one does.
    gather[i % g.head_dim, i // head_dim, i // g.head_dim] = 1
    shift[i // head_dim, i % head_dim, i % g.head_dim] = 1
    return gather, shift


class HeadInputs(nn.Module):
    """Queries, keys and values by heads, turned to their positions, and the mask with ALiBi's bias."""

    def __init__(self, op: Attend, cuts: tuple[Cut, Cut], layout: Layout):
        super().__init__()
        self.to_query = ToHeads(op, op.num_heads, cuts[0], layout)
        self.to_key = ToHeads(op, op.num_key_value_heads, cuts[1], layout)
        self.rotate = Rotate(op.position) if isinstance(op.position, Rotary) else None
        self.distance = Distance(op.position, op.num_key_value_heads) if isinstance(op.position, Alibi) else None

    def turned(self, query: Pieces, key: Pieces, given: AttentionInputs) -> tuple[AuxiliaryHeads, AuxiliaryHeads]:
        heads = self.to_query(query), self.to_key(key)
        if self.rotate is None:
            return heads
        # Rotary embeddings act between the linear layer and the attention (section "Attention variants"). With a cache
        # there are more keys than queries: the queries are those of the last tokens.
        asking = given.positions[:, -heads[0].shape[-2] :]
        return self.rotate(heads[0], asking), self.rotate(heads[1], given.positions)

    def mask(self, given: AttentionInputs) -> Tensor:
        return given.mask if self.distance is None else self.distance(given.mask, given.positions)


def _scaled(region: Region, factor: float, op: Attend) -> Port:
    shared = op.num_heads // op.num_key_value_heads
    return Port(region, factors=[DimensionWise(factor * torch.eye(shared, dtype=torch.float64)[None])])


class AttentionForward(Module):
    """sum_j softmax(q_t . k)_j v_j."""

    def __init__(self, op: Attend, cuts: tuple[Cut, Cut], layout: Layout):
        super().__init__(layout)
        # q, k and v side by side in one embedding, as in the paper: its "first 3 D coordinates".
        self.query = self.regions.read("query", num_slots=cuts[0].count)
        self.key, self.value = (self.regions.read(name, "key", num_slots=cuts[1].count) for name in ("key", "value"))
        self.inputs = HeadInputs(op, cuts, layout)
        self.attention = Attention(
            query=_scaled(self.query, op.scale, op),
            key=Port(self.key),
            value=Port(self.value),
            weigh=attention.softmax,
        )
        self.from_heads = FromHeads(op, op.num_heads, cuts[0], layout)
        self.regions.write("output", over=self.query)

    def forward(self, query: Pieces, key: Pieces, value: Pieces, given: AttentionInputs) -> Pieces:
        heads = self.inputs.turned(query, key, given)
        text = {self.query: heads[0], self.key: heads[1], self.value: self.inputs.to_key(value)}
        return self.from_heads(self.attention(text, text, self.inputs.mask(given)))


class AttentionBackward(Module):
    """Gradients of queries, keys and values; of values alone if the rule takes the scores as constants.

    The latter is the paper's simulated gradient (section "Fuzzy backpropagation via stop gradients").
    """

    def __init__(
        self,
        op: Attend,
        cuts: tuple[Cut, Cut],
        layout: Layout,
        rule: LearningRule,
        weigh: Weigh,
        tiny: float,
        transposition: Transposition | None,
    ):
        super().__init__(layout)
        queries, keys = cuts[0].count, cuts[1].count
        # Scores are not kept from the forward pass but computed again, from queries and keys that were copied along.
        self.gradient = self.regions.read("gradient", num_slots=queries)
        self.query = self.regions.read("query", num_slots=queries)
        self.key = self.regions.read("key", "key", num_slots=keys)
        self.value = None
        if rule.attention_gradient != "value":
            self.value = self.regions.read("value", "key", num_slots=keys)
        self.inputs = HeadInputs(op, cuts, layout)
        self.from_value = FromHeads(op, op.num_key_value_heads, cuts[1], layout)
        regions = self.gradient, self.query, self.key
        stores = transposition == "stored" or (transposition is None and not layout.lean)
        value_gradient = StoreThenRead if stores else TransposedScores
        self.value_gradient = value_gradient(op, layout, self.regions, regions, weigh)
        self.beyond_store = None
        if stores and transposition is None:
            # The paper's D_sim has room for D_sim / H_aux tokens; a longer training part is known with the batch only.
            self.beyond_store = TransposedScores(op, layout, self.regions, regions, weigh)
        self.scores = None
        if self.value is None:
            self.regions.write("value gradient", "key", over=self.key)
            return
        self.scores = ScoreGradient(op, cuts, layout, self.regions, (*regions, self.value), rule, tiny)
        # All attentions of this module read before any of them writes.
        self.regions.write("query gradient", over=self.query)
        self.regions.write("key gradient", "key", over=self.key)
        self.regions.write("value gradient", "key", over=self.value)

    def forward(
        self, dy: Pieces, query: Pieces, key: Pieces, value: Pieces, given: AttentionInputs
    ) -> tuple[Pieces | None, Pieces | None, Pieces]:
        heads = self.inputs.turned(query, key, given)
        text = {self.query: heads[0], self.key: heads[1], self.gradient: self.inputs.to_query(dy)}
        mask = self.inputs.mask(given)
        dvalue = self.from_value(self._way(mask.shape[-2])(text, mask))
        if self.scores is None or self.value is None:
            return None, None, dvalue
        # Only the softmax Jacobian needs the values: dy_t . v_j. The value gradient goes without them.
        text[self.value] = self.inputs.to_key(value)
        return *self.scores(text, dy, mask, self.inputs, given), dvalue

    @property
    def store_capacity(self) -> int | None:
        """Training tokens that the store has room for; None where nothing is stored."""
        return self.value_gradient.capacity if isinstance(self.value_gradient, StoreThenRead) else None

    def _way(self, num_tokens: int) -> StoreThenRead | TransposedScores:
        fits = self.store_capacity is None or num_tokens <= self.store_capacity
        return self.value_gradient if fits or self.beyond_store is None else self.beyond_store


class TransposedScores(nn.Module):
    """dv_j = sum_t a_tj dy_t: the attention of the forward pass with its scores transposed."""

    def __init__(self, op: Attend, layout: Layout, regions: Regions, read: tuple[Region, Region, Region], weigh: Weigh):
        super().__init__()
        gradient, query, key = read
        self.attention = Attention(
            query=_scaled(query, op.scale, op),
            key=Port(key),
            value=Port(gradient),
            weigh=attention.softmax,
            sum_over="h",
            transposed=True,
        )

    def forward(self, text: Stream, mask: Tensor) -> AuxiliaryHeads:
        return self.attention(text, text, mask)


class StoreThenRead(nn.Module):
    """The same without transposing (the paper's way): store a_t. in token t, then read coordinate j of every store.

    The first attention has one-hot positions as values, so that its output is the row of attention weights; in the
    second, token j asks with its own one-hot position, which picks a_tj from the store of every token t.
    """

    def __init__(self, op: Attend, layout: Layout, regions: Regions, read: tuple[Region, Region, Region], weigh: Weigh):
        super().__init__()
        gradient, query, key = read
        # A token's store has a coordinate for every token that trains, in every head: the paper's T_aux H_aux
        # coordinates, in an embedding of D_sim.
        self.capacity = layout.geometry.dim_sim // op.num_heads
        one_hot = torch.eye(self.capacity, dtype=torch.float64)
        every_head = torch.ones(1, dtype=torch.float64)
        self.positions = Positional(one_hot, every_head, used=self.capacity)
        self.position = regions.make("one-hot position", beside=True, width=self.capacity)
        self.stored = regions.make("stored scores", beside=True, width=self.capacity * op.num_heads)
        self.store = Attention(
            query=_scaled(query, op.scale, op), key=Port(key), value=Port(self.position), weigh=attention.softmax
        )
        regions.fill(self.positions, self.position)
        regions.fill(self.store, self.stored)
        # Linear: the stored scores have been through their softmax already (paper: "Separating sub-operations").
        self.read = Attention(
            query=Port(self.position), key=Port(self.stored), value=Port(gradient), weigh=weigh, sum_over="h"
        )

    def forward(self, text: Stream, mask: Tensor) -> AuxiliaryHeads:
        num_tokens = mask.shape[-2]
        if num_tokens > self.capacity:
            raise InputError(
                f"{num_tokens} tokens train but a head stores {self.capacity} scores: "
                "shorten the training part, or use transposition='scores'"
            )
        text = {**text, self.position: self.positions()[..., :num_tokens, :]}
        return self.read(text, {**text, self.stored: self.store(text, text, mask)})


class ScoreGradient(nn.Module):
    """Gradients of queries and keys by the perturbed softmax; the paper stops them, for the price of their exact form.

    With a relative step the direction is the unit vector of the gradient, and its length is put back: into dq behind
    the attention, into dk by values q_t |dy_t|, because dk_j collects from tokens of different lengths.
    """

    def __init__(
        self,
        op: Attend,
        cuts: tuple[Cut, Cut],
        layout: Layout,
        regions: Regions,
        read: tuple[Region, Region, Region, Region],
        rule: LearningRule,
        tiny: float,
    ):
        super().__init__()
        gradient, self.query, key, value = read
        # d softmax(s) along u, u_j = dy_t . v_j, is a_tj (u_j - sum_i a_ti u_i): the bracket of the exact gradient in
        # definition "Auxiliary self-attention backpropagation". Two softmaxes give it without a product.
        self.step = step = score_step(rule, tiny)
        self.length = self.lengthen = None
        self.direction, self.long_query = gradient, self.query
        if rule.epsilon_mode == "relative":
            self.length = Length(Groups(cuts[0], 1, layout.geometry.dim_slot), tiny)
            self.lengthen = Gated()
            length = regions.make("length of gradient")
            self.direction, self.long_query = (
                regions.make(name, num_slots=cuts[0].count, beside=True) for name in ("unit gradient", "long query")
            )
            regions.fill(self.length, self.direction, length, None)
            regions.fill(self.lengthen, self.long_query)

        def perturbed(step: float, values: Region, *, transposed: bool = False) -> Attention:
            """An attention whose scores are q . k + step * direction . v."""
            return Attention(
                query=Joined(_scaled(self.query, op.scale, op), _scaled(self.direction, step, op)),
                key=Joined(Port(key), Port(value)),
                value=Port(values),
                weigh=attention.softmax,
                sum_over="h" if transposed else "",
                transposed=transposed,
            )

        # The Jacobian of the softmax is symmetric, so that this difference is the gradient of the scores: dq_t sums it
        # times k_j over j, dk_j sums it times q_t over t (transposed).
        self.query_gradient = nn.ModuleList(perturbed(sign * step, key) for sign in (1.0, -1.0))
        self.key_gradient = nn.ModuleList(
            perturbed(sign * step, self.long_query, transposed=True) for sign in (1.0, -1.0)
        )
        self.subtract = Combine([[1.0, -1.0]], op.scale / (2 * step))
        self.product = Gated()
        self.turn_back = Rotate(op.position, inverse=True) if isinstance(op.position, Rotary) else None
        self.from_query = FromHeads(op, op.num_heads, cuts[0], layout)
        self.from_key = FromHeads(op, op.num_key_value_heads, cuts[1], layout)

    def forward(
        self, text: Stream, dy: Pieces, mask: Tensor, inputs: HeadInputs, given: AttentionInputs
    ) -> tuple[Pieces, Pieces]:
        length: Tensor | None = None
        if self.length is not None and self.lengthen is not None:
            unit, spread, _ = self.length(dy)
            length = inputs.to_query(spread)
            long_query = self.lengthen(text[self.query], length)
            text = {**text, self.direction: inputs.to_query(unit), self.long_query: long_query}
        dquery = self.subtract(*(half(text, text, mask) for half in self.query_gradient))[0]
        dkey = self.subtract(*(half(text, text, mask) for half in self.key_gradient))[0]
        if length is not None:
            dquery = self.product(dquery, length)
        if self.turn_back is not None:
            # A rotation's transpose is its inverse: the gradient is turned back by the angles of its own token.
            dquery, dkey = (self.turn_back(heads, given.positions) for heads in (dquery, dkey))
        return self.from_query(dquery), self.from_key(dkey)


def score_step(rule: LearningRule, tiny: float) -> float:
    """Step of the perturbed softmax. For the exact gradient it only has to be good, so it follows the dtype."""
    chosen = rule.epsilon is not None or rule.attention_gradient == "perturbed"
    double = tiny < torch.finfo(torch.float32).tiny
    return _DOUBLE_STEP if double and not chosen else rule.difference_step("perturbed")
