"""Linear layer y = W x + b: each direction is ONE linear attention between text tokens and prefix tokens.

Paper: section "Linear layer". B batch, N input pieces, M output pieces, T tokens, K prefix tokens of a piece,
H heads, d head width. The prefix is `[B or 1, N, H, M, K, d]`: piece (m, n) of W, row s K + j in slot s of token j.

    direction   asks     query        answers   key          value             output
    forward     text     columns(x)   prefix    rows of W    one-hot(j)        sum of parts: row s K + j of W x
    backward    text     rows(dy)     prefix    one-hot(j)   rows of W         sum of slots: W^T dy
    descent     prefix   one-hot(j)   text      rows(dy)     -eta columns(x)   lands on the row it updates

With momentum, decay or rates that differ, descent sends the gradient itself, and `movement.py` has the rest.

One-hot positions and the maps `columns` and `rows` only select; where all of a module's tables do, the attention is
computed as the one product that they leave (`primitives/selection.py`).
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, cat

from tintformer.simulator.layouts import Layout, Module
from tintformer.simulator.modules.movement import Descending, Movement
from tintformer.simulator.primitives.attention import Attention, Weigh
from tintformer.simulator.primitives.tokenwise import Constant
from tintformer.simulator.regions import PREFIX

Pieces = Float[Tensor, "B N T Dslot"]
Prefix = Float[Tensor, "B N H M K d"]


def by_heads(x: Pieces, layout: Layout, *, output: bool = False) -> Float[Tensor, "B N parts M T d"]:
    """A region by parts of its coordinates; the pieces of an output stand in the axis of output pieces."""
    parts = x.unflatten(-1, (layout.geometry.shards, layout.geometry.head_dim))
    return parts.permute(0, 3, 1, 2, 4).unsqueeze(1) if output else parts.permute(0, 1, 3, 2, 4).unsqueeze(3)


def from_heads(heads: Float[Tensor, "B N H M T d"], layout: Layout) -> Pieces:
    """Slot 0 of an attention's output, whose pieces stand in N or in M."""
    # Whatever the heads leave in the other slots, W x is in the first D coordinates (section "Efficient Aggregation").
    slot = heads[:, :, : layout.geometry.shards]
    return slot.permute(0, 1, 3, 4, 2, 5).flatten(4).flatten(1, 2)


def with_one(x: Pieces, constant: Constant | None) -> Pieces:
    """Set the homogeneous coordinate in the first piece alone: in all of them, the bias would move once a piece."""
    if constant is None:
        return x
    return constant(x) if x.shape[1] == 1 else cat((constant(x[:, :1]), x[:, 1:]), dim=1)


class LinearForward(Module):
    """W x + b."""

    def __init__(self, layout: Layout, *, has_bias: bool, weigh: Weigh):
        super().__init__(layout)
        self.input = self.regions.read("input")
        self.output = self.regions.write("output", "output", over=self.input)
        # The bias is one more column of W, read by a constant 1: the paper copies it by S' heads of its own instead.
        self.constant = layout.homogeneous() if has_bias else None
        self.attention = Attention(
            # Scores are inner products <w_i, x>, so weights are used where they stand and never copied to the text
            # (section "Read and write access to auxiliary model"); values say which row answered.
            query=layout.columns(self.input),
            key=layout.content(),
            value=layout.position(),
            output=layout.from_rows(),
            weigh=weigh,
            sum_over="n",
            product=layout.product("forward"),
        )

    def forward(self, x: Pieces, prefix: Prefix) -> Pieces:
        parts = by_heads(with_one(x, self.constant), self.layout)
        return from_heads(self.attention({self.input: parts}, {PREFIX: prefix}), self.layout)


class LinearBackward(Module):
    """W^T dy."""

    def __init__(self, layout: Layout, *, weigh: Weigh):
        super().__init__(layout)
        self.gradient = self.regions.read("gradient", "output")
        self.input_gradient = self.regions.write("input gradient", over=self.gradient)
        self.attention = Attention(
            # W^T dy = sum_i dy_i w_i: the score of a prefix token is dy_i itself, so that W need not be stored a second
            # time by columns (paper: "Linear backpropagation module").
            query=layout.rows(self.gradient),
            key=layout.position(),
            value=layout.content(),
            output=layout.from_columns(),
            weigh=weigh,
            sum_over="m",
            product=layout.product("backward"),
        )

    def forward(self, dy: Pieces, prefix: Prefix) -> Pieces:
        parts = by_heads(dy, self.layout, output=True)
        dx = from_heads(self.attention({self.gradient: parts}, {PREFIX: prefix}), self.layout)
        # What stands beyond the value is the gradient of the homogeneous constant, which nothing may follow.
        dx[..., self.layout.geometry.dim_aux :] = 0
        return dx


class LinearDescent(Module):
    """W - eta sum_t dy_t x_t^T, and the bias with it: the prefix after the residual."""

    def __init__(self, layout: Layout, *, has_bias: bool, movement: Movement, weigh: Weigh):
        super().__init__(layout)
        self.gradient = self.regions.read("gradient", "output")
        self.input = self.regions.read("input")
        self.constant = layout.homogeneous() if has_bias else None
        self.movement = movement
        # The prefix asks and the text answers: the one place where text tokens write into prefix tokens.
        self.attention = Attention(
            query=layout.position(),
            key=layout.rows(self.gradient),
            # -eta is a factor of the value's map; the residual connection subtracts (definition "Linear descent").
            value=layout.columns(self.input, factor=movement.factor),
            output=layout.to_prefix(),
            weigh=weigh,
            product=layout.product("descent"),
        )

    def forward(self, dy: Pieces, x: Pieces, prefix: Prefix | Descending) -> Prefix | Descending:
        return self.movement(self.change(dy, x), prefix)

    def change(self, dy: Pieces, x: Pieces) -> Prefix:
        """What the text sends to the prefix."""
        text = {
            self.gradient: by_heads(dy, self.layout, output=True),
            self.input: by_heads(with_one(x, self.constant), self.layout),
        }
        return self.attention({}, text)
