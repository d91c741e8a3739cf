"""What flows between modules: tokens of the simulator, each piece of a value in the signal region of one embedding.

B batch, N pieces, T tokens, D~ width of a slot. A value that is wider than a slot (a feed-forward layer, many heads)
is cut; its pieces are embeddings side by side that share one module. Coordinates beyond a piece's own are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from tintformer.simulator.geometry import Cut


@dataclass(frozen=True, eq=False)
class Tokens:
    """A value of the auxiliary as the simulator carries it."""

    data: Float[Tensor, "B N T Dslot"]
    cut: Cut

    def plain(self) -> Float[Tensor, "B T W"]:
        """The value as the auxiliary knows it."""
        merged = self.data[..., : self.cut.step].transpose(1, 2).flatten(2)
        return merged[..., : self.cut.width]

    def like(self, data: Float[Tensor, "B N T Dslot"]) -> Tokens:
        return Tokens(data, self.cut)


def cut_tokens(plain: Float[Tensor, "B T W"], cut: Cut, dim_slot: int) -> Tokens:
    """Lay a value out in pieces."""
    padded = functional.pad(plain, (0, cut.count * cut.step - plain.shape[-1]))
    pieces = padded.unflatten(-1, (cut.count, cut.step)).transpose(1, 2)
    return Tokens(functional.pad(pieces, (0, dim_slot - cut.step)), cut)


def total(terms: list[Tokens]) -> Tokens:
    """The residual stream adds what arrives."""
    result = terms[0].data
    for term in terms[1:]:
        result = torch.add(result, term.data)
    return terms[0].like(result)
