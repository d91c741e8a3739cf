"""Where tokens enter and leave: tables of rows, and the feed-forward layer over the vocabulary."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tintformer.rule.head import softmax
from tintformer.simulator.primitives.primitive import Primitive


class Table(Primitive):
    """Rows by number: the embedding of tokens, of positions, and the head's row of a target."""

    def __init__(self, rows: nn.Parameter, *, dim_slot: int, scale: float = 1.0):
        super().__init__()
        self.rows, self.dim_slot, self.scale = rows, dim_slot, scale

    def forward(self, numbers: Int[Tensor, "B T"]) -> Float[Tensor, "B 1 T Dslot"]:
        rows = functional.embedding(numbers, self.rows)
        rows = rows if self.scale == 1.0 else rows * self.scale
        return functional.pad(rows, (0, self.dim_slot - rows.shape[-1])).unsqueeze(1)


class FeedForward(Primitive):
    """The layer over the vocabulary: logits E x + b, and E^T s(E x + b) for a loss gradient.

    Paper: section "Language model head"; s is the softmax for cross-entropy and the identity for the quad loss.
    """

    def __init__(
        self, rows: nn.Parameter, bias: nn.Parameter | None, activation: Literal["none", "softmax", "identity"]
    ):
        super().__init__()
        self.rows, self.bias, self.activation = rows, bias, activation

    def forward(self, x: Float[Tensor, "rows Dslot"]) -> Float[Tensor, "rows out_"]:
        """Logits, or (with an activation) what the second matrix makes of them, as wide as x."""
        width = self.rows.shape[1]
        if self.activation == "none":
            return functional.linear(x[:, :width], self.rows, self.bias)
        if self.activation == "identity":
            hidden = functional.linear(x[:, :width], self.rows)
        else:
            hidden = softmax(functional.linear(x[:, :width], self.rows, self.bias))
        return functional.pad(hidden @ self.rows, (0, x.shape[-1] - width))
