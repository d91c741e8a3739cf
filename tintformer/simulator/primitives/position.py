"""Position schemes as features of attention: rotary queries and keys, ALiBi scores (paper: "Attention variants")."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float, Int
from torch import Tensor

from tintformer.auxiliary.ops import Alibi, Rotary
from tintformer.rule.attention import rotate, rotation
from tintformer.simulator.primitives.primitive import Primitive, constant


class Rotate(Primitive):
    """Turns the heads of every token by angles that follow its position; `inverse` carries gradients back."""

    def __init__(self, rotary: Rotary, *, inverse: bool = False):
        super().__init__()
        self.frequencies = constant(rotary.inverse_frequencies.detach().clone())
        self.rotary, self.inverse = rotary, inverse

    def forward(
        self, heads: Float[Tensor, "B N H M T d"], positions: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B N H M T d"]:
        by = rotation(replace(self.rotary, inverse_frequencies=self.frequencies), positions, heads.dtype)
        return rotate(heads, by, interleaved=self.rotary.interleaved, inverse=self.inverse)


class Distance(Primitive):
    """Adds ALiBi's bias to the mask: a slope a head times the position of the token that answers."""

    def __init__(self, alibi: Alibi, num_key_value_heads: int):
        super().__init__()
        self.slopes = constant(alibi.slopes.detach().clone().view(num_key_value_heads, -1))

    def forward(
        self, mask: Float[Tensor, "B 1 1 1 Q P"], positions: Int[Tensor, "B P"]
    ) -> Float[Tensor, "B N H 1 Q P"]:
        slopes = self.slopes[None, :, :, None, None, None]
        return mask + slopes * positions[:, None, None, None, None, :].to(mask.dtype)
