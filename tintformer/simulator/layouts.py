"""The two layouts: where rows of a matrix sit in the prefix, and the constant maps between signal and heads.

Row i = s K + j of a D x D piece sits in slot s of prefix token j. Head (s, q) of a linear module sees slot s and part
q of its coordinates. Two maps and their transposes say all that linear modules need:

    columns   head (s, q) gets part q of the signal                   (every slot sees the whole input)
    rows      head (s, q) gets the coordinates s K .. s K + K - 1     (every part of slot s sees that slot's outputs)

Lean: S' = S and d = K, so that part s of the signal IS the rows of slot s, and each map is one H x S' matrix for all
coordinates. Paper: S' is any number; every map is a product of split-wise and dimension-wise factors of full size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from tintformer.errors import InputError
from tintformer.simulator.geometry import Geometry
from tintformer.simulator.primitives.attention import Port, Positional
from tintformer.simulator.primitives.selection import Direction, MatrixProduct
from tintformer.simulator.primitives.tokenwise import Constant, DimensionWise, SplitWise
from tintformer.simulator.regions import PREFIX, Region, Regions

HeadMaps = list[DimensionWise | SplitWise]


class Layout:
    """Makes the ports and outputs of linear modules for one geometry."""

    def __init__(self, geometry: Geometry):
        self.geometry = geometry
        self.lean = geometry.layout == "lean"

    # Ports: what queries, keys and values are made of.

    def columns(self, region: Region, *, factor: float = 1.0) -> Port:
        """Every slot sees the region."""
        g = self.geometry
        copy = factor * torch.eye(g.shards, dtype=torch.float64).repeat(g.stack, 1)
        if self.lean:
            return Port(region, factors=[DimensionWise(copy[None])])
        # A split-wise and a dimension-wise factor (section "H-split operation"), of which a copy needs the second.
        split = self._identity_split(g.slots * g.shards)
        return self._port(region, [split, self._from_slot(copy.repeat(g.head_dim, 1, 1), region.slot)], g.head_dim)

    def rows(self, region: Region) -> Port:
        """Every part of slot s sees the coordinates of the region that are the rows of slot s."""
        g = self.geometry
        if self.lean:
            pick = torch.eye(g.stack, dtype=torch.float64).repeat_interleave(g.shards, 0)
            return Port(region, factors=[DimensionWise(pick[None])])
        place, shift, copy = self._row_maps
        factors: HeadMaps = [self._from_slot(place, region.slot), SplitWise(shift.clone()), DimensionWise(copy.clone())]
        return self._port(region, factors, g.row_dim)

    def content(self) -> Port:
        """Prefix tokens as they are."""
        if self.lean:
            return Port(PREFIX)
        return Port(PREFIX, factors=self.to_prefix(), idle=self._tables(self.geometry.head_dim))

    def position(self) -> Port:
        """A one-hot vector for every prefix token of a piece, in every head."""
        g = self.geometry
        rows = g.num_prefix if self.lean else g.num_prefix + g.max_tokens
        table = torch.zeros(rows, g.row_dim, dtype=torch.float64)
        # One-hot positions, as in the paper's attention. Those of the text stay zero: no linear module asks for them.
        table[: g.num_prefix, : g.num_prefix] = torch.eye(g.num_prefix, dtype=torch.float64)
        switches = torch.ones(1 if self.lean else g.num_heads, dtype=torch.float64)
        idle = [] if self.lean else [self._identity_split(g.num_heads, 0.0), self._identity_mix(0.0)]
        return Port(positional=Positional(table, switches, used=g.num_prefix), idle=idle)

    # Outputs: from heads back to the signal, the transposes of `rows` and `columns`; or to the prefix.

    def from_rows(self) -> HeadMaps:
        g = self.geometry
        if self.lean:
            pick = torch.eye(g.stack, dtype=torch.float64).repeat_interleave(g.shards, 0)
            return [DimensionWise(pick.mT[None].clone())]
        place, shift, copy = self._row_maps
        back = self._from_slot(place, 0).weight.mT.clone()
        return [DimensionWise(copy.mT.clone()), SplitWise(shift.mT.clone()), DimensionWise(back)]

    def from_columns(self) -> HeadMaps:
        g = self.geometry
        gather = torch.eye(g.shards, dtype=torch.float64).repeat(1, g.stack)
        if self.lean:
            return [DimensionWise(gather[None])]
        # The sum goes to slot 0 of a whole embedding; the other slots get zeros.
        full = torch.zeros(g.slots * g.shards, g.num_heads, dtype=torch.float64)
        full[: g.shards] = gather
        return [self._identity_split(g.num_heads), DimensionWise(full.repeat(g.head_dim, 1, 1))]

    def to_prefix(self) -> HeadMaps:
        return [] if self.lean else [self._identity_split(self.geometry.num_heads), self._identity_mix()]

    def product(self, direction: Direction) -> MatrixProduct | None:
        """What the attention of a linear module comes to, if its tables only select; the paper's maps do more."""
        return MatrixProduct(direction, self.geometry.stack) if self.lean else None

    def homogeneous(self) -> Constant:
        """The constant 1 that turns a bias into one more column."""
        one = torch.zeros(self.geometry.dim_slot, dtype=torch.float64)
        # The first coordinate behind the value, which padding guarantees: no value ever stands there.
        one[self.geometry.dim_aux] = 1
        return Constant(one)

    # The paper's factors.

    def _port(self, region: Region, factors: HeadMaps, width: int) -> Port:
        first_head = region.slot * self.geometry.shards
        return Port(region, first_head=first_head, factors=factors, idle=self._tables(width))

    def _from_slot(self, matrix: Tensor, slot: int) -> DimensionWise:
        """The same map read from one slot of a whole embedding; the columns of the other slots are zero."""
        g = self.geometry
        full = torch.zeros(g.head_dim, g.num_heads, g.slots * g.shards, dtype=torch.float64)
        # The paper's maps read all of D_sim, and so do these, zeros included, as its table counts them.
        full[:, :, slot * g.shards : (slot + 1) * g.shards] = matrix
        return DimensionWise(full)

    def _identity_split(self, num_heads: int, factor: float = 1.0) -> SplitWise:
        return SplitWise(factor * torch.eye(self.geometry.head_dim, dtype=torch.float64).repeat(num_heads, 1, 1))

    def _identity_mix(self, factor: float = 1.0) -> DimensionWise:
        g = self.geometry
        return DimensionWise(factor * torch.eye(g.num_heads, dtype=torch.float64).repeat(g.head_dim, 1, 1))

    def _tables(self, width: int) -> list[Positional]:
        """The positional term that every port of the paper has, switched off."""
        g = self.geometry
        table = torch.zeros(g.num_prefix + g.max_tokens, width, dtype=torch.float64)
        return [Positional(table, torch.zeros(g.num_heads, dtype=torch.float64), used=0)]

    # Made once: on tensors that have only shapes, index arithmetic costs milliseconds, and every linear module asks.
    @cached_property
    def _row_maps(self) -> tuple[Tensor, Tensor, Tensor]:
        """`rows` in three factors: coordinate i goes to head (i // K, i // d), moves to place i % K, and to all parts.

        A map across heads keeps a coordinate where it is within its head, so coordinates of one slot that stand at the
        same place of different parts need heads of their own: head (s, q) answers for part q of the signal. Where the
        prefix is longer than a part is wide (K > d, as in the paper's figure), heads are K wide behind the shift.
        """
        g = self.geometry
        place = torch.zeros(g.head_dim, g.num_heads, g.shards, dtype=torch.float64)
        shift = torch.zeros(g.num_heads, g.row_dim, g.head_dim, dtype=torch.float64)
        i = torch.arange(g.dim_slot)
        part, coordinate, slot, row = i // g.head_dim, i % g.head_dim, i // g.num_prefix, i % g.num_prefix
        # The paper's example of an output map (section "H-split operation") has these three steps in the other
        # direction: column-wise, row-wise, column-wise.
        place[coordinate, slot * g.shards + part, part] = 1
        shift[slot * g.shards + part, row, coordinate] = 1
        every_part = torch.ones(g.shards, g.shards, dtype=torch.float64)
        copy = torch.block_diag(*[every_part] * g.stack)
        return place, shift, copy.repeat(g.row_dim, 1, 1)


class Module(nn.Module):
    """An op in one direction: declares its regions, and wires primitives to them."""

    def __init__(self, layout: Layout):
        super().__init__()
        self.layout, self.regions = layout, Regions(layout.geometry)

    def __setattr__(self, name: str, value: Any) -> None:
        # Every part comes by here, so this is where a port that reads anything else than a declared region is refused.
        if isinstance(value, nn.Module) and not isinstance(value, Module):
            for region in _regions_read(value):
                if region != PREFIX and region not in self.regions.declared:
                    declared = ", ".join(each.name for each in self.regions.declared)
                    raise InputError(f"a port reads region {region.name!r}; the module has declared {declared}")
        super().__setattr__(name, value)


def _regions_read(part: nn.Module) -> Iterator[Region]:
    """What the ports of a part read; a module inside of another has regions of its own."""
    if isinstance(part, Port):
        yield from part.reads
    for child in part.children():
        if not isinstance(child, Module):
            yield from _regions_read(child)
