"""What `tint inspect --engine network` shows: every layer of a compiled network, its slots, and what stands there.

Names and slots are those of the compiled layers, values are read from the stream that the layers pass on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tintformer.execution.batch import Batch
from tintformer.network.layers import Layer, Quantity, WeightMap
from tintformer.network.network import Network

Place = tuple[int, str]
"""A text slot, and the name of what stands there."""


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One layer: what it is, what it reads and writes, and which slots nobody reads behind it."""

    number: int
    kind: str
    phase: str
    step: int | None
    op: str
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]
    freed: tuple[Place, ...]
    cleared: tuple[Place, ...]
    """Slots that are set to zero, because what stood there is no longer needed and another quantity comes."""
    blocks: tuple[str, ...]
    """The ops whose prefix tokens it reads or changes."""
    changes_prefix: bool


def list_layers(network: Network) -> list[LayerRow]:
    """The layers of a structured network, in order."""
    layers: list[Layer] = list(network.layers)  # pyright: ignore[reportAssignmentType]
    last: dict[Quantity, int] = {}
    for number, layer in enumerate(layers):
        last.update((each, number) for each in (*layer.reads, *layer.writes) if layer.op != "clear")
    blocks = list(network.shapes)
    rows: list[LayerRow] = []
    for number, layer in enumerate(layers):
        clears = layer.op == "clear"
        reads = {} if clears else _places(layer.reads, layer.read_slots)
        writes = tuple(_places(layer.writes, layer.write_slots).values())
        rows.append(
            LayerRow(
                number=number,
                kind=type(layer).__name__,
                phase=layer.stage.phase,
                step=layer.stage.step,
                # Slots are cleared for the op that comes next.
                op=next((each.op for each in layers[number:] if each.op != "clear"), "head"),
                reads=tuple(reads.values()),
                writes=() if clears else writes,
                freed=tuple(reads[each] for each in reads if last[each] == number),
                cleared=writes if clears else (),
                blocks=tuple(blocks[number] for number in _blocks_of(layer)),
                changes_prefix=not layer.writes,
            )
        )
    return rows


def _blocks_of(layer: Layer) -> tuple[int, ...]:
    """The numbers of the ops whose prefix tokens a layer reads or changes."""
    if isinstance(layer, WeightMap):
        return layer.blocks
    block: int | None = getattr(getattr(layer, "matrix", layer), "block", None)
    return () if block is None else (block,)


def _places(quantities: tuple[Quantity, ...], slots: list[int] | list[int | None]) -> dict[Quantity, Place]:
    return {each: (slot, each.name) for each, slot in zip(quantities, slots, strict=True) if slot is not None}


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerValues:
    """What a layer has left in the stream: of each slot that it writes, or how far it has moved prefix tokens."""

    row: LayerRow
    written: dict[Place, Tensor]
    """`[B, T, W]`, as it stands in the slot."""
    moved: dict[str, Tensor]
    """By op, how far its weights have moved: `[B, prefix tokens, S, W]`."""
    sped_up: dict[str, Tensor]
    """By op, the change of its velocity; none without momentum."""


@torch.no_grad()
def watch(network: Network, batch: Batch) -> Iterator[LayerValues]:
    """Run a batch layer by layer and read from the stream what each layer has changed."""
    e, ops = network.embed(batch.input_ids, network.flags(batch)), list(network.shapes)
    for layer, row in zip(network.layers, list_layers(network), strict=True):
        before, e = e, layer(e)
        changed = {name: ops.index(name) for name in row.blocks} if row.changes_prefix else {}
        yield LayerValues(
            row=row,
            written={place: e.text[place[0]] for place in row.writes},
            moved={name: e.prefix[number] - before.prefix[number] for name, number in changed.items()},
            sped_up={name: e.velocity[number] - before.velocity[number] for name, number in changed.items()}
            if e.velocity
            else {},
        )
