"""The two layouts: where rows of a matrix sit in the prefix, and the constant maps between signal and heads.

Row i = s K + j of a D x D piece sits in slot s of prefix token j. Head (s, q) of a linear module sees slot s and part
q of its coordinates. Two maps and their transposes say all that linear modules need:

    columns   head (s, q) gets part q of the signal                   (every slot sees the whole input)
    rows      head (s, q) gets the coordinates s K .. s K + K - 1     (every part of slot s sees that slot's outputs)

Lean: S' = S and d = K, so that part s of the signal IS the rows of slot s, and each map is one H x S' matrix for all
coordinates. Paper: S' may be smaller; every map is a product of split-wise and dimension-wise factors of full size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tintformer.errors import InputError
from tintformer.simulator.geometry import Geometry
from tintformer.simulator.primitives.attention import Port, Positional
from tintformer.simulator.primitives.linear_maps import Constant, DimensionWise, SplitWise

Factors = list[DimensionWise | SplitWise]


class Layout:
    """Makes the ports and outputs of linear modules for one geometry."""

    def __init__(self, geometry: Geometry):
        self.geometry = geometry
        self.lean = geometry.layout == "lean"

    # Ports: what queries, keys and values are made of.

    def columns(self, region: str, slot: int, *, factor: float = 1.0) -> Port:
        """Every slot sees the region."""
        g = self.geometry
        self._check(region, slot)
        copy = factor * torch.eye(g.shards, dtype=torch.float64).repeat(g.stack, 1)
        return self._port(region, slot, [self._mix_from(slot, copy)], split_first=True)

    def rows(self, region: str, slot: int) -> Port:
        """Every part of slot s sees the coordinates of the region that are the rows of slot s."""
        g = self.geometry
        self._check(region, slot)
        pick = torch.eye(g.stack, dtype=torch.float64).repeat_interleave(g.shards, 0)
        if self.lean:
            return self._port(region, slot, [self._mix_from(slot, pick)])
        place, shift, copy = self._row_maps()
        return self._port(region, slot, [self._widen(place, slot), SplitWise(shift), DimensionWise(copy)])

    def content(self, region: str) -> Port:
        """Prefix tokens as they are."""
        g = self.geometry
        if self.lean:
            return Port(reads=region)
        return Port(
            reads=region, factors=[self._identity_split(g.num_heads), self._identity_mix()], idle=self._tables()
        )

    def position(self) -> Port:
        """A one-hot vector for every prefix token of a piece, in every head."""
        g = self.geometry
        rows = g.num_prefix if self.lean else g.num_prefix + g.max_tokens
        table = torch.zeros(rows, g.head_dim, dtype=torch.float64)
        table[: g.num_prefix, : g.num_prefix] = torch.eye(g.num_prefix, dtype=torch.float64)
        switches = torch.ones(1 if self.lean else g.num_heads, dtype=torch.float64)
        idle = [] if self.lean else [self._identity_split(g.num_heads, 0.0), self._identity_mix(0.0)]
        return Port(positional=Positional(table, switches, used=g.num_prefix), idle=idle)

    # Outputs: from heads back to the signal, the transposes of `rows` and `columns`; or to the prefix.

    def from_rows(self) -> Factors:
        g = self.geometry
        if self.lean:
            pick = torch.eye(g.stack, dtype=torch.float64).repeat_interleave(g.shards, 0)
            return [DimensionWise(pick.mT[None].clone())]
        place, shift, copy = self._row_maps()
        back = self._widen(place, 0).weight.mT.clone()
        return [DimensionWise(copy.mT.clone()), SplitWise(shift.mT.clone()), DimensionWise(back)]

    def from_columns(self) -> Factors:
        g = self.geometry
        gather = torch.eye(g.shards, dtype=torch.float64).repeat(1, g.stack)
        if self.lean:
            return [DimensionWise(gather[None])]
        full = torch.zeros(g.slots * g.shards, g.num_heads, dtype=torch.float64)
        full[: g.shards] = gather
        return [self._identity_split(g.num_heads), DimensionWise(full.repeat(g.head_dim, 1, 1))]

    def to_prefix(self) -> Factors:
        return [] if self.lean else [self._identity_split(self.geometry.num_heads), self._identity_mix()]

    def homogeneous(self) -> Constant:
        """The constant 1 that turns a bias into one more column."""
        one = torch.zeros(self.geometry.dim_slot, dtype=torch.float64)
        one[self.geometry.dim_aux] = 1
        return Constant(one)

    def _check(self, region: str, slot: int) -> None:
        """A region must lie inside of the embedding."""
        if slot >= self.geometry.slots:
            raise InputError(f"region {region!r} needs slot {slot}, but an embedding has {self.geometry.slots} slots")

    # The paper's factors.

    def _port(self, region: str, slot: int, factors: Factors, *, split_first: bool = False) -> Port:
        if self.lean:
            return Port(reads=region, factors=factors)
        g = self.geometry
        split: Factors = [self._identity_split(g.slots * g.shards)] if split_first else []
        return Port(reads=region, first_head=slot * g.shards, factors=[*split, *factors], idle=self._tables())

    def _mix_from(self, slot: int, matrix: Tensor) -> DimensionWise:
        if self.lean:
            return DimensionWise(matrix[None])
        return self._widen(matrix.repeat(self.geometry.head_dim, 1, 1), slot)

    def _widen(self, matrix: Tensor, slot: int) -> DimensionWise:
        """The same map read from one slot of a whole embedding; the columns of the other slots are zero."""
        g = self.geometry
        full = torch.zeros(g.head_dim, g.num_heads, g.slots * g.shards, dtype=torch.float64)
        full[:, :, slot * g.shards : (slot + 1) * g.shards] = matrix
        return DimensionWise(full)

    def _identity_split(self, num_heads: int, factor: float = 1.0) -> SplitWise:
        return SplitWise(factor * torch.eye(self.geometry.head_dim, dtype=torch.float64).repeat(num_heads, 1, 1))

    def _identity_mix(self, factor: float = 1.0) -> DimensionWise:
        g = self.geometry
        return DimensionWise(factor * torch.eye(g.num_heads, dtype=torch.float64).repeat(g.head_dim, 1, 1))

    def _tables(self) -> list[Positional]:
        """The positional term that every port of the paper has, switched off."""
        g = self.geometry
        table = torch.zeros(g.num_prefix + g.max_tokens, g.head_dim, dtype=torch.float64)
        return [Positional(table, torch.zeros(g.num_heads, dtype=torch.float64), used=0)]

    def _row_maps(self) -> tuple[Tensor, Tensor, Tensor]:
        """`rows` in three factors: bring coordinate i to head (i // K, 0), shift it to place i % K, copy to all parts.

        Two coordinates of one slot never meet in a place of a head, because K <= d.
        """
        g = self.geometry
        place = torch.zeros(g.head_dim, g.num_heads, g.shards, dtype=torch.float64)
        shift = torch.zeros(g.num_heads, g.head_dim, g.head_dim, dtype=torch.float64)
        i = torch.arange(g.dim_slot)
        part, coordinate, slot, row = i // g.head_dim, i % g.head_dim, i // g.num_prefix, i % g.num_prefix
        place[coordinate, slot * g.shards, part] = 1
        shift[slot * g.shards, row, coordinate] = 1
        copy = torch.zeros(g.num_heads, g.num_heads, dtype=torch.float64)
        for head in range(g.num_heads):
            copy[head, head // g.shards * g.shards] = 1
        return place, shift, copy.repeat(g.head_dim, 1, 1)
