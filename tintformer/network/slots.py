"""Places in the stream: a program's quantities get slots by liveness.

A quantity that nobody reads any more gives its slot back, and a slot is cleared, by subtracting itself, before it is
used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tintformer.auxiliary.ops import Rotary
from tintformer.network.layers import Layer, LinearMap, Quantity, Term


@dataclass(kw_only=True)
class Program:
    """What was written down: layers in order, and what the embedding gives and the head takes."""

    layers: list[Layer] = field(default_factory=list)
    given: dict[str, tuple[Quantity, ...]] = field(default_factory=dict)
    """By what the embedding writes there: tokens, positions, target, flags, and cosines and sines by number."""
    rotaries: list[tuple[Rotary, int]] = field(default_factory=list)
    """Rotary positions in use, each with the head width and by its number in `given`."""
    result: tuple[Quantity, ...] = ()
    """The head's input after learning."""
    before: tuple[Quantity, ...] = ()
    """The head's input of the first step, before anything was learnt."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Layers with their slots."""

    layers: list[Layer]
    """In order, with those that clear slots; a loop's body stands there once for every step."""
    slots: dict[Quantity, int]
    num_slots: int


def allocate(program: Program, *, keep: Sequence[Quantity], num_loops: int = 1) -> Allocation:
    """Slots by liveness; `keep` are read behind the last layer. With loops, the layers of step 1 run that often."""
    layers = _needed(program.layers, keep)
    allocator = _Allocator(program, layers, keep)
    starts = [index for index, layer in enumerate(layers) if layer.stage.step is not None]
    if num_loops == 1 or not starts:
        result = allocator.place(layers)
    else:
        first, behind = starts[0], starts[-1] + 1
        # The body must find every slot as it found it the first time: what it reads of before stays until it has run
        # for the last time, and all other slots are clean when it begins and when it ends.
        given = {quantity for quantities in program.given.values() for quantity in quantities}
        earlier = given.union(*(layer.writes for layer in layers[:first]))
        read = {quantity for layer in layers[first:behind] for quantity in layer.reads}
        allocator.keep_until(behind, earlier & read)
        below = allocator.place(layers[:first])
        below += allocator.clear(layers[first])
        body = allocator.place(layers[first:behind], first)
        body += allocator.clear(layers[behind - 1])
        result = below + body * num_loops + allocator.place(layers[behind:], behind)
    return Allocation(layers=result, slots=allocator.slots, num_slots=allocator.num_slots)


class _Allocator:
    """Gives slots to quantities: one that is clean, or a new one."""

    def __init__(self, program: Program, layers: Sequence[Layer], keep: Sequence[Quantity]):
        self.last = {
            quantity: index for index, layer in enumerate(layers) for quantity in (*layer.reads, *layer.writes)
        }
        self.last.update(dict.fromkeys(keep, len(layers)))
        self.read = {quantity for layer in layers for quantity in layer.reads} | set(keep)
        self.slots: dict[Quantity, int] = {}
        for quantities in program.given.values():
            for quantity in quantities:
                self.slots[quantity] = len(self.slots)
        self.num_slots = len(self.slots)
        self.clean: list[int] = []
        self.dirty: list[Quantity] = []

    def keep_until(self, index: int, quantities: Iterable[Quantity]) -> None:
        """Have quantities keep their slots at least until a layer."""
        for quantity in quantities:
            self.last[quantity] = max(self.last[quantity], index)

    def place(self, layers: Sequence[Layer], first: int = 0) -> list[Layer]:
        """Give slots to what layers write; a quantity that nobody reads gets none."""
        result: list[Layer] = []
        for index, layer in enumerate(layers, first):
            for quantity in dict.fromkeys(layer.writes):
                if quantity in self.slots or quantity not in self.read:
                    continue
                if not self.clean and self.dirty:
                    # All of them at once: clearing costs depth, and a new slot costs width.
                    result += self.clear(layer)
                if not self.clean:
                    self.clean.append(self.num_slots)
                    self.num_slots += 1
                self.slots[quantity] = self.clean.pop()
            layer.place(self.slots)
            result.append(layer)
            used = dict.fromkeys((*layer.reads, *layer.writes))
            self.dirty += [each for each in used if each in self.slots and self.last[each] == index]
        return result

    def clear(self, beside: Layer) -> list[Layer]:
        """A layer that clears what nobody reads any more, x - x = 0, exactly; it is part of the stage of another."""
        if not self.dirty:
            return []
        layer = LinearMap(self.dirty, self.dirty, [Term(i, i, -1.0) for i in range(len(self.dirty))])
        layer.stage, layer.op, layer.phase = beside.stage, "clear", beside.phase
        layer.place(self.slots)
        self.clean = sorted((*self.clean, *(self.slots[each] for each in self.dirty)), reverse=True)
        self.dirty = []
        return [layer]


def _needed(layers: Sequence[Layer], keep: Sequence[Quantity]) -> list[Layer]:
    """Without the layers whose results nobody reads; what changes the prefix is always needed."""
    wanted = set(keep)
    needed: list[Layer] = []
    for layer in reversed(layers):
        if not layer.writes or any(quantity in wanted for quantity in layer.writes):
            needed.append(layer)
            wanted.update(layer.reads)
    return needed[::-1]
