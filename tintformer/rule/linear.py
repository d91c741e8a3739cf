"""Linear layer y = W x + b: forward, backward and descent, all exact (paper, section "Linear layer").

B batch, T tokens, I inputs, O outputs. Weights are `[O, I]` for all sequences or `[B, O, I]` for one set a sequence.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def forward(
    x: Float[Tensor, "B T I"], weight: Float[Tensor, "... O I"], bias: Float[Tensor, "... O"] | None
) -> Float[Tensor, "B T O"]:
    y = x @ weight.mT
    return y if bias is None else y + bias.unsqueeze(-2)


def backward(dy: Float[Tensor, "B T O"], weight: Float[Tensor, "... O I"]) -> Float[Tensor, "B T I"]:
    # No transpose is stored anywhere: dx = W^T dy for row vectors is dy W.
    return dy @ weight


def weight_gradient(x: Float[Tensor, "B T I"], dy: Float[Tensor, "B T O"]) -> Float[Tensor, "B O I"]:
    # Summed over the tokens of each sequence: sum_t dy_t x_t^T, of rank at most T. The fast engine keeps the factors.
    return dy.mT @ x


def bias_gradient(dy: Float[Tensor, "B T O"]) -> Float[Tensor, "B O"]:
    # The gradient of a weight whose input is always 1; the fast engine applies both in one product.
    return dy.sum(-2)
