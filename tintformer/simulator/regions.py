"""Regions: the named quantities of a module, and where they stand in an embedding. They are declared by the module.

An embedding has slots of D~ coordinates. A module declares what it reads, what it makes on the way and what it writes;
each declaration takes the lowest slots that are free, and gives them back once the quantity is no longer needed. Ports
read declared regions alone, and a module whose regions do not fit the embedding cannot be built. Tables, printer,
figures and the number of slots are derived from the declarations of built modules.

What flows between modules: values cut into pieces, each piece in an embedding of its own.

B batch, N pieces, T tokens, W width of a value, D~ (Dslot) width of a slot. A value that is wider than a slot (a
feed-forward layer, many heads) is cut; its pieces are embeddings side by side that share one module. Coordinates beyond
a piece's own are zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tintformer.errors import InputError
from tintformer.simulator.geometry import Geometry

Phase = Literal["forward", "backward", "descent"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "descent")
Follows = Literal["input", "output", "key"]
"""Which value of an op a quantity is cut like: modules are shared by ops, so a width is that of the op."""


@dataclass(frozen=True, kw_only=True)
class Region:
    """A named quantity of a module, and its place."""

    name: str
    slot: int
    num_slots: int = 1
    """Self-attention has the pieces of a value in slots one after the other; others have one slot in every piece."""
    follows: Follows = "input"
    beside: bool = False
    """In an embedding beside the module's own, as a further piece would be: it is needed while all slots are taken."""
    width: int | None = None
    """Coordinates, where it is not cut like a value of the op."""


PREFIX = Region(name="rows", slot=0)
"""What prefix tokens hold; every module may read those of its op."""


class Regions:
    """The regions of one module in the order of their declaration."""

    def __init__(self, geometry: Geometry):
        self.geometry = geometry
        self.declared: list[Region] = []
        self.given: list[Region] = []
        """What the module is called with, in this order."""
        self.written: list[Region] = []
        """What its call returns, in this order."""
        self.filled: list[tuple[nn.Module, tuple[Region | None, ...]]] = []
        """Parts that leave what they return in regions, with the region of each of their outputs."""
        self._taken: set[int] = set()

    def read(self, name: str, follows: Follows = "input", *, num_slots: int = 1) -> Region:
        """Declare what the module is given next."""
        self.given.append(self.make(name, follows, num_slots=num_slots))
        return self.given[-1]

    def make(
        self,
        name: str,
        follows: Follows = "input",
        *,
        num_slots: int = 1,
        over: Region | None = None,
        beside: bool = False,
        width: int | None = None,
    ) -> Region:
        """Declare what the module makes on the way; `over` is no longer needed then."""
        if over is not None:
            self.free(over)
        # First fit: the order of declarations alone decides, so a rebuilt simulator has every quantity where it was.
        slot = 0
        if not beside:
            # Pieces of a value stand next to each other, or its port would need a map for each of them.
            while not self._taken.isdisjoint(range(slot, slot + num_slots)):
                slot += 1
            last = slot + num_slots - 1
            # Refused here, while wiring: later it would be a shape error, or a quantity that overwrites another.
            if last >= self.geometry.slots:
                raise InputError(f"region {name!r} needs slot {last}, but an embedding has {self.geometry.slots} slots")
            self._taken |= set(range(slot, slot + num_slots))
        region = Region(name=name, slot=slot, num_slots=num_slots, follows=follows, beside=beside, width=width)
        self.declared.append(region)
        return region

    def write(self, name: str, follows: Follows = "input", *, over: Region) -> Region:
        """Declare a result, which takes the place of something that is no longer needed."""
        # A result stands where something stood before, so a module needs no more slots at its end than on its way.
        self.written.append(self.make(name, follows, num_slots=over.num_slots, over=over))
        return self.written[-1]

    def free(self, *regions: Region) -> None:
        """Give the slots of regions back: what is declared from here on may stand there."""
        for region in regions:
            # Width is what a simulator pays for (D_sim = S D in the paper), so a slot that nothing reads is used again.
            self._taken -= set(range(region.slot, region.slot + region.num_slots))

    def fill(self, part: nn.Module, *regions: Region | None) -> None:
        """Say which regions hold what a part returns."""
        self.filled.append((part, regions))

    @property
    def needed(self) -> int:
        """Slots that the module needs."""
        return max((each.slot + each.num_slots for each in self.declared if not each.beside), default=0)


@dataclass(frozen=True)
class Cut:
    """How a value of any width is cut into pieces that fit a slot: `step` coordinates each, the last maybe fewer."""

    width: int
    step: int

    @property
    def count(self) -> int:
        return -(-self.width // self.step)


def groups_in_pieces(cut: Cut, size: int) -> list[int]:
    """How many groups of that size each piece holds; the last piece may hold fewer."""
    num_groups, in_piece = cut.width // size, max(1, cut.step // size)
    return [min(in_piece, num_groups - piece * in_piece) for piece in range(cut.count)]


@dataclass(frozen=True, eq=False)
class PieceStream:
    """A value of the auxiliary as the simulator carries it."""

    data: Float[Tensor, "B N T Dslot"]
    cut: Cut

    @classmethod
    def of(cls, plain: Float[Tensor, "B T W"], cut: Cut, dim_slot: int) -> PieceStream:
        """Lay a value out in pieces."""
        padded = functional.pad(plain, (0, cut.count * cut.step - plain.shape[-1]))
        pieces = padded.unflatten(-1, (cut.count, cut.step)).transpose(1, 2)
        return cls(functional.pad(pieces, (0, dim_slot - cut.step)), cut)

    def plain(self) -> Float[Tensor, "B T W"]:
        """The value as the auxiliary knows it."""
        merged = self.data[..., : self.cut.step].transpose(1, 2).flatten(2)
        return merged[..., : self.cut.width]

    def like(self, data: Float[Tensor, "B N T Dslot"]) -> PieceStream:
        return PieceStream(data, self.cut)


def add_streams(terms: list[PieceStream]) -> PieceStream:
    """The residual stream adds what arrives."""
    result = terms[0].data
    for term in terms[1:]:
        result = torch.add(result, term.data)
    return terms[0].like(result)
