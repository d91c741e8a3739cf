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
from typing import Annotated, Literal

from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import InputError
from tintformer.typed_fields import Range, check_fields, checked

LayoutName = Literal["lean", "paper"]

DEFAULT_STACK = 4
Size = Annotated[int, Range(at_least=1)]


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Sizes that every module of a simulator shares."""

    layout: LayoutName
    dim_aux: Size
    stack: Size
    shards: Size
    slots: Annotated[int, Range(at_least=0)] = 0
    """Slots of a token's embedding; 0 is the default, the larger of stack, shards and 2. Modules may need more."""
    max_tokens: Size = 2048
    """Text positions that the paper's layout gives a one-hot vector of their own; 2048 in the paper's table."""

    def __post_init__(self) -> None:
        check_fields(self, InputError)
        if self.layout == "lean" and self.shards != self.stack:
            raise InputError(
                f"layout='lean' reads a row in as many parts as it stacks rows: shards={self.shards} must be "
                f"stack={self.stack}, or use layout='paper'"
            )
        # The paper's figure of a linear layer (S = 2, S' = 3) has D_sim = 3 D: room for S' partial sums of every row.
        object.__setattr__(self, "slots", self.slots or max(self.stack, self.shards, 2))

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
    def row_dim(self) -> int:
        """Width of a head that holds one number a prefix token: K, or d where that is larger."""
        return max(self.head_dim, self.num_prefix)

    @property
    def num_heads(self) -> int:
        return self.stack * self.shards


def derive(auxiliary: Auxiliary, *, layout: LayoutName, stack: int) -> Geometry:
    """The geometry for an auxiliary; its modules may need more slots."""
    layout, stack = checked("layout", layout, LayoutName, InputError), checked("stack", stack, Size, InputError)
    width = auxiliary_width(auxiliary)
    if stack > width:
        raise InputError(
            f"stack={stack} is more than the {width} rows of the auxiliary's matrices; use at most {width}"
        )
    # The paper has min(S^2, heads of the auxiliary) heads; a row is then read in S' = H / S parts.
    num_heads = max((attend.num_heads for attend in auxiliary.attentions()), default=stack * stack)
    return Geometry(
        layout=layout,
        dim_aux=width,
        stack=stack,
        shards=stack if layout == "lean" else max(1, min(stack, num_heads // stack)),
        slots=stack,
        max_tokens=auxiliary.max_positions or 2048,
    )


def auxiliary_width(auxiliary: Auxiliary) -> int:
    """The width D that pieces are cut to: that of the stream, or of what must not be cut where it is wider.

    That is a head of attention, and the input of the language-model head (which OPT may project to any width).
    """
    widest_head = max((attend.head_dim for attend in auxiliary.attentions()), default=0)
    width = max(auxiliary.stream_width, widest_head, auxiliary.head.weight.source.shape[1])
    # Regression may be on one number; its matrices are padded, so that any usual stack fits.
    return max(width, DEFAULT_STACK) if auxiliary.takes_examples else width
