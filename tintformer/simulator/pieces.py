"""What flows between modules: values cut into pieces, each piece in an embedding of its own.

B batch, N pieces, T tokens, W width of a value, D~ (Dslot) width of a slot. A value that is wider than a slot (a
feed-forward layer, many heads) is cut; its pieces are embeddings side by side that share one module. Coordinates beyond
a piece's own are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


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
