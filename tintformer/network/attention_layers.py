"""Layers in which tokens look at each other: the only ones that carry anything from one token to another.

Linear attention between text and prefix reads, transposes and updates matrices; a matrix is chosen by position: the
one-hot positional term is zero on the prefix tokens of all others, which are therefore not visited. Softmax attention
is the auxiliary's own.
B batch, T text tokens (t asks, u answers), K prefix tokens of a piece, S stacked rows, W width of a slot,
N input pieces, M output pieces, R rows of a norm, H heads, J key/value heads, G = H / J, d head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from tintformer.auxiliary.ops import Alibi, Attend
from tintformer.network.flags import SEGMENT_KEY, SEGMENT_QUERY, coordinate
from tintformer.network.layers import Layer, Quantity
from tintformer.network.stream import Stream
from tintformer.simulator.primitives.tokenwise import constant

X = TypeVar("X")


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Where a matrix stands in the prefix: M x N pieces of K tokens, row s K + j of a piece in slot s of token j."""

    block: int
    """Number of the op's prefix tokens."""
    num_out: int
    num_in: int
    bias: int | None
    """The coordinate of the homogeneous constant, whose column of the first input piece is the bias; None without."""

    def rows(self, e: Stream) -> Float[Tensor, "B M N K S W"]:
        return e.prefix[self.block].unflatten(1, (self.num_out, self.num_in, -1))

    def with_one(self, regions: list[Tensor], flag: Tensor) -> Float[Tensor, "B T N W"]:
        """The input with the constant in its first piece: the text flag, read by the same map."""
        if self.bias is not None:
            one = functional.pad(flag[..., :1], (self.bias, regions[0].shape[-1] - self.bias - 1))
            regions = [regions[0] + one, *regions[1:]]
        return torch.stack(regions, dim=2)


class LinearForward(Layer):
    """W x + b: text asks with x, prefix tokens answer with their one-hot positions."""

    def __init__(self, flag: Quantity, reads: Sequence[Quantity], writes: Sequence[Quantity], matrix: Matrix):
        super().__init__((flag, *reads), writes)
        self.matrix = matrix

    def forward(self, e: Stream) -> Stream:
        flag, *regions = e.read(self.read_slots)
        x_BTNW = self.matrix.with_one(regions, flag)
        # Scores are <row, x>. The values are one-hot, so that a score lands on the coordinate of its own row.
        y_BTMSK = torch.einsum("btnw,bmnksw->btmsk", x_BTNW, self.matrix.rows(e))
        return e.add(self.write_slots, y_BTMSK.flatten(3).unbind(2))


class LinearBackward(Layer):
    """W^T dy: text asks with dy, prefix tokens have one-hot positions as keys and answer with their rows."""

    def __init__(self, reads: Sequence[Quantity], writes: Sequence[Quantity], matrix: Matrix, width: int):
        super().__init__(reads, writes)
        self.matrix, self.width = matrix, width

    def forward(self, e: Stream) -> Stream:
        dy_BTMW = torch.stack(e.read(self.read_slots), dim=2)
        rows = self.matrix.rows(e)
        dy_BTMSK = dy_BTMW.unflatten(3, (rows.shape[4], rows.shape[3]))
        dx_BTNW = torch.einsum("btmsk,bmnksw->btnw", dy_BTMSK, rows)
        # What stands beyond the value is the gradient of the constant, which the output map leaves out.
        dx_BTNW = functional.pad(dx_BTNW[..., : self.width], (0, dx_BTNW.shape[-1] - self.width))
        return e.add(self.write_slots, dx_BTNW.unbind(2))


@dataclass(frozen=True, kw_only=True)
class Destination:
    """What a gradient is multiplied by where descent adds it: to the weights, to their velocity, or to both."""

    weights: float = 0.0
    velocity: float = 0.0

    def __call__(self, e: Stream, block: int, gradient: Callable[[float], Tensor]) -> Stream:
        """Add a gradient, which is given times a factor."""
        if not self.velocity:
            return e.add_to_prefix(block, gradient(self.weights))
        change = gradient(1.0)
        weights = change * self.weights if self.weights else None
        return e.add_to_prefix(block, weights, change if self.velocity == 1.0 else change * self.velocity)


class LinearDescent(Layer):
    """W - eta dy x^T, and the bias with it: prefix tokens ask with their one-hot positions, the text answers."""

    def __init__(
        self,
        flag: Quantity,
        inputs: Sequence[Quantity],
        gradients: Sequence[Quantity],
        matrix: Matrix,
        into: Destination,
    ):
        super().__init__((flag, *inputs, *gradients), ())
        self.matrix, self.into = matrix, into

    def forward(self, e: Stream) -> Stream:
        flag, *regions = e.read(self.read_slots)
        x_BTNW = self.matrix.with_one(regions[: self.matrix.num_in], flag)
        dy_BTMW = torch.stack(regions[self.matrix.num_in :], dim=2)
        stack = e.prefix[self.matrix.block].shape[2]
        dy_BTMSK = dy_BTMW.unflatten(3, (stack, -1))

        def gradient(factor: float) -> Tensor:
            return torch.einsum("btmsk,btnw->bmnksw", dy_BTMSK, x_BTNW * factor).flatten(1, 3)

        return self.into(e, self.matrix.block, gradient)


class ReadRows(Layer):
    """Brings vectors of the prefix (a norm's scale and bias) to every text token: the query is the text flag."""

    def __init__(self, flag: Quantity, writes: Sequence[Quantity], block: int):
        super().__init__((flag,), writes)
        self.block = block

    def forward(self, e: Stream) -> Stream:
        (flag,) = e.read(self.read_slots)
        rows = e.prefix[self.block][:, :, 0]
        return e.add(self.write_slots, [flag[..., :1] * row[:, None] for row in rows.unbind(1)])


class RowDescent(Layer):
    """Moves vectors of the prefix by the sum over the text: prefix tokens ask, every text token answers."""

    def __init__(self, reads: Sequence[Quantity], block: int, rows: Sequence[int], into: Destination):
        """`rows`: the prefix token of its block that each gradient moves."""
        super().__init__(reads, ())
        self.block, self.rows, self.into = block, tuple(rows), into

    def forward(self, e: Stream) -> Stream:
        sums = dict(zip(self.rows, (region.sum(1) for region in e.read(self.read_slots)), strict=True))
        tokens = e.prefix[self.block]
        nothing = torch.zeros_like(next(iter(sums.values())))
        rows = torch.stack([sums.get(row, nothing) for row in range(tokens.shape[1])], dim=1)
        moves = functional.pad(rows[:, :, None], (0, 0, 0, tokens.shape[2] - 1))
        return self.into(e, self.block, lambda factor: moves * factor)


class NextToken(Layer):
    """Subtracts the target's row, which stands at the next token: positions are one-hot, so that nothing is shifted.

    `ahead` is 0 where a target stands at its own position.
    """

    def __init__(self, read: Quantity, write: Quantity, num_tokens: int, *, ahead: int = 1):
        super().__init__((read,), (write,))
        self.following = constant(torch.ones(num_tokens, num_tokens, dtype=torch.float64).triu(ahead).tril(ahead))

    def forward(self, e: Stream) -> Stream:
        (target,) = e.read(self.read_slots)
        return e.add(self.write_slots, [torch.einsum("tu,buw->btw", self.following, -target)])


# The auxiliary's own attention.


@dataclass(frozen=True, kw_only=True)
class Heads:
    """How heads stand in the pieces of a value: none straddles two pieces."""

    count: int
    dim: int
    in_piece: int
    width: int
    """Of a slot."""

    @property
    def num_pieces(self) -> int:
        return -(-self.count // self.in_piece)

    def split(self, pieces: Sequence[Tensor]) -> Float[Tensor, "B T heads d"]:
        used = self.in_piece * self.dim
        return torch.cat([x[..., :used] for x in pieces], dim=-1).unflatten(-1, (-1, self.dim))[..., : self.count, :]

    def merge(self, heads: Float[Tensor, "B T heads d"]) -> list[Tensor]:
        return cut(heads.flatten(-2), self.in_piece * self.dim, self.width)


def cut(value: Tensor, step: int, width: int) -> list[Tensor]:
    """A value in pieces of `step` coordinates, each padded to the width of a slot."""
    return [functional.pad(piece, (0, width - piece.shape[-1])) for piece in value.split(step, dim=-1)]


class SoftmaxAttention(Layer):
    """sum_u softmax(q_t . k_u + ...)_u v_u by head; with `store`, token t keeps its weights: the values are one-hot.

    `extra` are further pairs of queries and keys whose products are added, times a factor: perturbed scores.
    """

    def __init__(
        self,
        op: Attend,
        heads: tuple[Heads, Heads],
        flags: Sequence[Quantity],
        query: Sequence[Quantity],
        key: Sequence[Quantity],
        writes: Sequence[Quantity],
        *,
        value: Sequence[Quantity] = (),
        extra: tuple[Sequence[Quantity], Sequence[Quantity], float] | None = None,
        later: Tensor,
        factor: float = 1.0,
    ):
        """`later[t, u]`: whether u comes after t."""
        extra_query, extra_key, self.extra_factor = extra or ((), (), 0.0)
        super().__init__((*flags, *query, *key, *value, *extra_query, *extra_key), writes)
        sizes = [len(flags), len(query), len(key), len(value), len(extra_query), len(extra_key)]
        self.sizes, self.attend, self.heads, self.factor = sizes, op, heads, factor
        self.later = constant(later)
        self.slopes = None
        if isinstance(op.position, Alibi):
            self.slopes = constant(op.position.slopes.detach().clone().view(op.num_key_value_heads, -1, 1, 1))

    def forward(self, e: Stream) -> Stream:
        flags, query, key, value, extra_query, extra_key = groups(e.read(self.read_slots), self.sizes)
        asking, answering = self.heads
        q, k = asking.split(query) * self.attend.scale, answering.split(key)
        if extra_query:
            q = torch.cat((q, asking.split(extra_query) * self.extra_factor), dim=-1)
            k = torch.cat((k, answering.split(extra_key)), dim=-1)
        q_BTJGd = q.unflatten(2, (answering.count, -1))
        scores_BJGTU = torch.einsum("btjgd,bujd->bjgtu", q_BTJGd, k)
        flag = torch.cat(flags, dim=-1)
        if self.slopes is not None:
            scores_BJGTU = scores_BJGTU + self.slopes * flag[:, None, None, None, :, coordinate("position")]
        weights = (scores_BJGTU + self._visibility(flag)[:, None, None]).softmax(-1)
        if value:
            y = torch.einsum("bjgtu,bujd->btjgd", weights, answering.split(value)).flatten(2, 3)
            return e.add(self.write_slots, asking.merge(y))
        stored = weights.permute(0, 3, 1, 2, 4).flatten(2)
        stored = stored if self.factor == 1.0 else stored * self.factor
        return e.add(self.write_slots, cut(stored, flags[0].shape[-1], flags[0].shape[-1]))

    def _visibility(self, flag: Tensor) -> Float[Tensor, "B T U"]:
        """A score term of its own: 0 where u is visible to t, the smallest finite number elsewhere.

        Order is a matter of constant positions. Segments and windows are inner products of whole numbers, exact, that
        are negative where a token must not be seen.
        """
        same = sum(
            query_factor * key_factor * flag[:, :, None, coordinate(query)] * flag[:, None, :, coordinate(key)]
            for query, (feature, query_factor) in SEGMENT_QUERY.items()
            for key, (other, key_factor) in SEGMENT_KEY.items()
            if feature == other
        )
        hidden = self.later | (same < 0)
        if self.attend.window is not None:
            distance = flag[..., coordinate("distance")]
            hidden = hidden | (self.attend.window - 1 - distance[:, :, None] + distance[:, None] < 0)
        return torch.zeros(hidden.shape, dtype=flag.dtype, device=flag.device).masked_fill(
            hidden, torch.finfo(flag.dtype).min
        )


class StoreAttention(Layer):
    """Linear attention whose weights a_tu stand in the stores of the tokens t."""

    def __init__(
        self,
        heads: tuple[Heads, Heads],
        store: Sequence[Quantity],
        values: Sequence[Quantity],
        writes: Sequence[Quantity],
        *,
        num_tokens: int,
        factor: float = 1.0,
    ):
        super().__init__((*store, *values), writes)
        self.sizes, self.heads, self.num_tokens, self.factor = [len(store), len(values)], heads, num_tokens, factor


class ReadStore(StoreAttention):
    """sum_t a_tu x_t: token u asks with its one-hot position, which picks a_tu from the store of every token t."""

    def forward(self, e: Stream) -> Stream:
        store, values = groups(e.read(self.read_slots), self.sizes)
        weights_BTJGU = stored(store, self.heads, self.num_tokens)
        x_BTJGd = self.heads[0].split(values).unflatten(2, (self.heads[1].count, -1))
        y = torch.einsum("btjgu,btjgd->bujd", weights_BTJGU, x_BTJGd)
        return e.add(self.write_slots, self.heads[1].merge(y if self.factor == 1.0 else y * self.factor))


class ApplyStore(StoreAttention):
    """sum_u a_tu x_u: token t asks with its store, every token u has its one-hot position as key."""

    def forward(self, e: Stream) -> Stream:
        store, values = groups(e.read(self.read_slots), self.sizes)
        weights_BTJGU = stored(store, self.heads, self.num_tokens)
        y = torch.einsum("btjgu,bujd->btjgd", weights_BTJGU, self.heads[1].split(values)).flatten(2, 3)
        return e.add(self.write_slots, self.heads[0].merge(y if self.factor == 1.0 else y * self.factor))


def stored(store: Sequence[Tensor], heads: tuple[Heads, Heads], num_tokens: int) -> Float[Tensor, "B T J G U"]:
    """The attention weights that tokens have kept."""
    flat = torch.cat(tuple(store), dim=-1)[..., : heads[0].count * num_tokens]
    return flat.unflatten(-1, (heads[1].count, -1, num_tokens))


def num_store_slots(num_heads: int, num_tokens: int, width: int) -> int:
    """Slots that one token's attention weights take."""
    return -(-num_heads * num_tokens // width)


def groups(regions: list[X], sizes: Sequence[int]) -> list[list[X]]:
    """What is read, by what it is."""
    result: list[list[X]] = []
    for size in sizes:
        result.append(regions[:size])
        regions = regions[size:]
    return result
