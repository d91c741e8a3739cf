"""Runs the layers of a network op by op, from given inputs: what `tint verify` compares with the reference.

The compiler writes a layer down, and here it runs at once, on a stream of what it reads and writes alone: the same
layers as in the compiled network, each started from numbers that are known to be right.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tintformer.auxiliary.ops import Join, Linear, Norm, Op, Weight
from tintformer.execution.batch import Batch
from tintformer.network import weights
from tintformer.network.compiler import Compiler
from tintformer.network.flags import Flags
from tintformer.network.layers import Layer, Quantity
from tintformer.network.network import Embed
from tintformer.network.stream import Frame, Stream
from tintformer.network.symbols import Symbol
from tintformer.rule.optimiser import trained_weights
from tintformer.simulator.regions import PieceStream
from tintformer.simulator.simulator import Simulator


class StepwiseExecutor(Compiler):
    """A compiler whose symbols have values."""

    def __init__(self, simulator: Simulator, batch: Batch):
        super().__init__(simulator, num_tokens=batch.input_ids.shape[1])
        self.batch = batch
        self.values: MutableMapping[Quantity, Tensor] = WeakKeyDictionary()
        """As long as somebody may still read them."""
        blocks = (weights.to_block(tokens, simulator.geometry) for tokens in simulator.prefix.values())
        rule = simulator.rule
        self.held = Stream.before_any_step((), tuple(blocks), momentum=rule.momentum > 0, decay=rule.decay > 0)
        """What prefix tokens hold."""
        self.initial = self.held.prefix

    def emit(self, layer: Layer) -> None:
        layer.to(self.simulator.auxiliary.device, self.simulator.dtype)
        quantities = dict.fromkeys((*layer.reads, *layer.writes))
        layer.place({quantity: number for number, quantity in enumerate(quantities)})
        e = layer(replace(self.held, text=tuple(map(self._value, quantities))))
        self.values.update(zip(quantities, e.text, strict=True))
        self.held = replace(e, text=())

    def _value(self, quantity: Quantity) -> Tensor:
        if quantity not in self.values:
            for name, given in self.program.given.items():
                if quantity in given:
                    self._embed(name)
        nothing = torch.zeros(
            *self.batch.input_ids.shape,
            self.geometry.dim_slot,
            dtype=self.simulator.dtype,
            device=self.batch.input_ids.device,
        )
        return self.values.setdefault(quantity, nothing)

    def _embed(self, name: str) -> None:
        """Have the embedding write what it gives."""
        given = self.program.given
        slots = {quantity: number for number, quantity in enumerate(each for part in given.values() for each in part)}
        frame = Frame(
            width=self.geometry.dim_slot,
            stack=self.geometry.stack,
            num_slots=len(slots),
            num_tokens=self.num_tokens,
            blocks=(),
        )
        flags = Flags.of(self.batch, self.simulator.rule)
        e = Embed(self.simulator, self.program, slots, frame)(self.batch.inputs, flags)
        self.values.update((quantity, e.text[slots[quantity]]) for quantity in given[name])

    def plain(self, stream: Symbol) -> Tensor:
        assert stream.cut is not None, "no value of the auxiliary"
        pieces = torch.stack([self._value(each) for each in stream.quantities], dim=1)
        return PieceStream(pieces, stream.cut).plain()

    def stream(self, tensor: Tensor, like: Symbol) -> Symbol:
        assert like.cut is not None, "no value of the auxiliary"
        pieces = PieceStream.of(tensor, like.cut, self.geometry.dim_slot).data
        result = Symbol(self, self.new("given", len(like)), like.cut)
        self.values.update(zip(result.quantities, pieces.unbind(1), strict=True))
        return result

    def updates_of(self, op: Op | Join, row: int | None = None) -> dict[Weight, Tensor]:
        if not isinstance(op, Linear | Norm) or (prefix := self._prefix(op)) is None:
            return {}
        before, after = self.initial[prefix.block], self.held.prefix[prefix.block]
        if after is before:
            return {}
        shape = tuple(list(self.simulator.prefix.values())[prefix.block].shape)
        changes = weights.from_block(after - before, shape, self.geometry)
        rows = [self.simulator.weights_in(op, change[None]) for change in changes]
        moved = trained_weights(self.simulator.rule, op)
        if row is not None:
            return {weight: rows[row][weight] for weight in moved}
        return {weight: torch.stack([each[weight] for each in rows]) for weight in moved}
