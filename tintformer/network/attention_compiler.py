"""What one self-attention becomes: rotary turns, softmax attention, and for backward a store that is then read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tintformer.auxiliary.ops import Attend, Rotary
from tintformer.network.attention_layers import ApplyStore, Heads, ReadStore, SoftmaxAttention, num_store_slots
from tintformer.network.flags import COORDINATES
from tintformer.network.layers import GatedUnit, LinearMap, Term
from tintformer.network.symbols import Symbol
from tintformer.simulator.modules.self_attention import AttentionBackward
from tintformer.simulator.primitives import tokenwise

if TYPE_CHECKING:
    from tintformer.network.compiler import Compiler


class AttentionCompiler:
    """Writes the layers of self-attentions down, for a compiler of everything else."""

    def __init__(self, compiler: Compiler):
        self.compiler, self.width = compiler, compiler.geometry.dim_slot
        self.turns: dict[int, torch.nn.Parameter] = {}
        """The quarter turn of each rotary in use, by its number: wide, so that all layers share one."""
        self.later = torch.ones(compiler.num_tokens, compiler.num_tokens, dtype=torch.bool).triu(1)

    def forward(self, op: Attend, inputs: tuple[Symbol, ...]) -> tuple[Symbol, tuple[Symbol, ...]]:
        """The output, and the inputs that backward needs."""
        query, key, value = inputs
        query, key = self._turned(op, (query, key))
        y = self.compiler.symbol("output", len(query))
        self._attend(op, query, key, y, value=value.quantities)
        # Turned as they are: backward needs no others, and the originals give their slots back.
        return y, (query, key, value)

    def backward(
        self, op: Attend, module: AttentionBackward, dy: Symbol, query: Symbol, key: Symbol, value: Symbol
    ) -> tuple[Symbol | None, ...]:
        """The gradients of query, key and value; of the first two where the rule wants them."""
        compiler, heads, num_tokens = self.compiler, self._heads(op), self.compiler.num_tokens
        slots = num_store_slots(op.num_heads, num_tokens, self.width)
        store, dvalue = compiler.symbol("stored weights", slots), compiler.symbol("value gradient", len(value))
        self._attend(op, query, key, store)
        compiler.emit(ReadStore(heads, store.quantities, dy.quantities, dvalue.quantities, num_tokens=num_tokens))
        scores = module.scores
        if scores is None:
            return None, None, dvalue
        unit, long_query, length = dy, query, None
        if scores.length is not None:
            unit, length, _ = scores.length(dy)
            long_query = compiler.gated(query, length, tokenwise.Gated())
        # The store now keeps the difference of two softmaxes whose scores are perturbed by +-h dy_t . v_u.
        change = compiler.symbol("stored change", slots)
        for sign in (1.0, -1.0):
            extra = (unit.quantities, value.quantities, sign * scores.step)
            self._attend(op, query, key, change, extra=extra, factor=sign)
        dquery, dkey = compiler.symbol("query gradient", len(query)), compiler.symbol("key gradient", len(key))
        factor = op.scale / (2 * scores.step)
        for kind, values, into in ((ApplyStore, key, dquery), (ReadStore, long_query, dkey)):
            compiler.emit(
                kind(heads, change.quantities, values.quantities, into.quantities, num_tokens=num_tokens, factor=factor)
            )
        if length is not None:
            dquery = compiler.gated(dquery, length, tokenwise.Gated())
        dquery, dkey = self._turned(op, (dquery, dkey), inverse=True)
        return dquery, dkey, dvalue

    def _heads(self, op: Attend) -> tuple[Heads, Heads]:
        wired = self.compiler.simulator.wired[op.name]
        query, key = (
            Heads(count=count, dim=op.head_dim, in_piece=step // op.head_dim, width=self.width)
            for count, step in ((op.num_heads, wired.into.step), (op.num_key_value_heads, wired.keys.step))
        )
        return query, key

    def _attend(self, op: Attend, query: Symbol, key: Symbol, into: Symbol, **more: Any) -> None:
        flags = self.compiler.flags[: -(-len(COORDINATES) // self.width)]
        heads, reads = self._heads(op), (query.quantities, key.quantities)
        self.compiler.emit(SoftmaxAttention(op, heads, flags, *reads, into.quantities, later=self.later, **more))

    def _turned(self, op: Attend, values: tuple[Symbol, ...], *, inverse: bool = False) -> tuple[Symbol, ...]:
        """Rotary positions: x cos + R x sin, with R the turn by a right angle; two gated units and a linear map."""
        if not isinstance(op.position, Rotary):
            return values
        compiler, number = self.compiler, self._rotary(op.position, op.head_dim)
        (cos,), (sin,) = compiler.given(f"cosines {number}", 1), compiler.given(f"sines {number}", 1)
        x = [quantity for value in values for quantity in value.quantities]
        across, turned = compiler.new("across", len(x)), compiler.new("turned", len(x))
        if number not in self.turns:
            turn = quarter_turn(op.position, op.head_dim, self.width, compiler.simulator.dtype)
            self.turns[number] = tokenwise.constant(turn)
        terms = [Term(i, i, -1.0 if inverse else 1.0, matrix=0) for i in range(len(x))]
        # A turn has one entry in each row of a pair.
        num_turned = 2 * len(op.position.inverse_frequencies) * (self.width // op.head_dim)
        compiler.emit(LinearMap(x, across, terms, [self.turns[number]], num_non_zero=[num_turned]))
        compiler.emit(GatedUnit(x, [cos] * len(x), turned, tokenwise.Gated()))
        compiler.emit(GatedUnit(across, [sin] * len(x), turned, tokenwise.Gated()))
        results: list[Symbol] = []
        for value in values:
            results.append(Symbol(compiler, turned[: len(value)], value.cut))
            turned = turned[len(value) :]
        return tuple(results)

    def _rotary(self, rotary: Rotary, head_dim: int) -> int:
        rotaries = self.compiler.program.rotaries
        for number, (known, dim) in enumerate(rotaries):
            if known is rotary and dim == head_dim:
                return number
        rotaries.append((rotary, head_dim))
        return len(rotaries) - 1


def quarter_turn(rotary: Rotary, head_dim: int, width: int, dtype: torch.dtype) -> Tensor:
    """R: the first of each pair of coordinates gets minus the second, the second the first; others get nothing."""
    half = len(rotary.inverse_frequencies)
    pairs = torch.arange(half)
    first, second = (2 * pairs, 2 * pairs + 1) if rotary.interleaved else (pairs, pairs + half)
    matrix = torch.zeros(width, width, dtype=dtype)
    for start in range(0, width - head_dim + 1, head_dim):
        matrix[start + first, start + second] = -1
        matrix[start + second, start + first] = 1
    return matrix
