"""The integers of a simulator, all derived from the stack S and the auxiliary's shape.

    D   dim_aux      width of the auxiliary          S   stack       rows of a matrix in one prefix token
    D~  dim_slot     D, padded; width of a slot      S'  shards      parts in which a row is read
    K   num_prefix   prefix tokens of a D x D piece  d   head_dim    width of a head, D~ / S'
    slots            regions of a token's embedding  H   num_heads   heads of a linear module, S S'

A slot is wider than D by at least one coordinate. Coordinate D is the homogeneous one: where a linear has a bias, the
input carries a 1 there and the bias is one more column of the matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import InputError

LayoutName = Literal["lean", "paper"]

DEFAULT_STACK = 4


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Sizes that every module of a simulator shares."""

    layout: LayoutName
    dim_aux: int
    stack: int
    shards: int
    slots: int
    """Named regions in a token's embedding: the stack, or more where a small stack leaves too little memory."""
    max_tokens: int
    """Text positions that the paper's layout gives a one-hot vector of their own."""

    @property
    def dim_slot(self) -> int:
        unit = math.lcm(self.stack, self.shards)
        return (self.dim_aux // unit + 1) * unit

    @property
    def dim_sim(self) -> int:
        return self.slots * self.dim_slot

    @property
    def num_prefix(self) -> int:
        return self.dim_slot // self.stack

    @property
    def head_dim(self) -> int:
        return self.dim_slot // self.shards

    @property
    def num_heads(self) -> int:
        return self.stack * self.shards


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


def derive(auxiliary: Auxiliary, *, layout: LayoutName, stack: int, slots: int) -> Geometry:
    """The geometry for an auxiliary; `slots` is what its modules need at least."""
    if layout not in ("lean", "paper"):
        raise InputError(f"layout={layout!r} is unknown; choose lean or paper")
    if isinstance(stack, bool) or not isinstance(stack, int) or stack < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"stack={stack!r} must be a whole number of at least 1")
    width = auxiliary_width(auxiliary)
    if stack > width:
        raise InputError(
            f"stack={stack} is more than the {width} rows of the auxiliary's matrices; use at most {width}"
        )
    # The paper has min(S^2, heads of the auxiliary) heads; a row is then read in S' = H / S parts.
    num_heads = max(attend.num_heads for attend in auxiliary.attentions())
    return Geometry(
        layout=layout,
        dim_aux=width,
        stack=stack,
        shards=stack if layout == "lean" else max(1, min(stack, num_heads // stack)),
        slots=max(stack, slots),
        max_tokens=auxiliary.max_positions or 2048,
    )


def auxiliary_width(auxiliary: Auxiliary) -> int:
    """The width D that pieces are cut to: that of the stream, or of one head where a head is wider."""
    widest_head = max(attend.head_dim for attend in auxiliary.attentions())
    return max(auxiliary.stream_width, widest_head)
