"""The one value that layers pass on: every prefix token of every matrix, then the text, in slots of equal width.

B batch, P prefix tokens, T text tokens, S stacked rows, W (D~) width of a slot. As one tensor it is
`[B, P + T, (S + text slots) W]`: prefix tokens hold rows of matrices in the S weight slots and zeros in the text slots,
text tokens the other way round. Here the two groups stand apart, slot by slot and op by op, so that a layer copies only
what it changes; `pack` gives the one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The sizes of a stream."""

    width: int
    """Coordinates of a slot."""
    stack: int
    """Weight slots: rows of a matrix in one prefix token."""
    num_slots: int
    """Text slots."""
    num_tokens: int
    """Text tokens."""
    blocks: tuple[int, ...]
    """Prefix tokens of each op that has weights, in the order of the sequence."""

    @property
    def num_prefix(self) -> int:
        return sum(self.blocks)

    @property
    def dim(self) -> int:
        """The width of the stream."""
        return (self.stack + self.num_slots) * self.width

    @property
    def length(self) -> int:
        """Tokens of the sequence."""
        return self.num_prefix + self.num_tokens

    def text_slot(self, number: int) -> slice:
        """The coordinates of a text slot; those of the weights come first."""
        start = (self.stack + number) * self.width
        return slice(start, start + self.width)

    def weight_slot(self, number: int) -> slice:
        """The coordinates of a weight slot."""
        return slice(number * self.width, (number + 1) * self.width)

    def block(self, number: int) -> slice:
        """The prefix tokens of an op."""
        start = sum(self.blocks[:number])
        return slice(start, start + self.blocks[number])


@dataclass(frozen=True, eq=False)
class Stream:
    """The embedding of all tokens; layers return a new one."""

    text: tuple[Float[Tensor, "B T W"], ...]
    """By text slot."""
    prefix: tuple[Float[Tensor, "#B _ S W"], ...]
    """By op; one set for all sequences until one of them has learnt."""

    def read(self, slots: Sequence[int]) -> list[Tensor]:
        """Text slots."""
        return [self.text[slot] for slot in slots]

    def add(self, slots: Sequence[int | None], terms: Sequence[Tensor]) -> Stream:
        """The residual connection: what a layer computes is added to text slots; None is a result that nobody reads."""
        text = list(self.text)
        for slot, term in zip(slots, terms, strict=True):
            if slot is not None:
                text[slot] = text[slot] + term
        return Stream(tuple(text), self.prefix)

    def add_to_prefix(self, block: int, term: Tensor) -> Stream:
        """The residual connection of one op's prefix tokens."""
        prefix = list(self.prefix)
        prefix[block] = prefix[block] + term
        return Stream(self.text, tuple(prefix))

    def pack(self) -> Float[Tensor, "B length dim"]:
        """The one tensor."""
        text = torch.cat(self.text, dim=-1)
        weights = [block.flatten(2).expand(len(text), -1, -1) for block in self.prefix]
        prefix = torch.cat(weights, dim=1)
        return torch.cat(
            (functional.pad(prefix, (0, text.shape[-1])), functional.pad(text, (prefix.shape[-1], 0))), dim=1
        )

    @classmethod
    def unpack(cls, e: Float[Tensor, "B length dim"], frame: Frame) -> Stream:
        """The same from the one tensor."""
        weights, text = e[:, : frame.num_prefix, : frame.stack * frame.width], e[:, frame.num_prefix :]
        return cls(
            tuple(text[..., frame.text_slot(slot)] for slot in range(frame.num_slots)),
            tuple(
                weights[:, frame.block(number)].unflatten(-1, (frame.stack, frame.width))
                for number in range(len(frame.blocks))
            ),
        )
