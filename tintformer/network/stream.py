"""The one value that layers pass on: every prefix token of every matrix, then the text, in slots of equal width.

B batch, P prefix tokens, T text tokens, S stacked rows, W (D~) width of a slot. As one tensor it is
`[B, P + T, (S + text slots) W]`: prefix tokens hold rows of matrices in the S weight slots and zeros in the text slots,
text tokens the other way round. Momentum has S more weight slots for the velocity, decay S more for the base. Here the
groups stand apart, slot by slot and op by op, so that a layer copies only what it changes; `pack` gives the one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    momentum: bool = False
    """Whether S more slots hold the velocity."""
    decay: bool = False
    """Whether S more slots hold the weights before any step."""

    @property
    def num_prefix(self) -> int:
        return sum(self.blocks)

    @property
    def dim(self) -> int:
        """The width of the stream."""
        return (self.weight_slots + self.num_slots) * self.width

    @property
    def weight_slots(self) -> int:
        """The slots of prefix tokens: weights, velocity and base."""
        return self.stack * (1 + self.momentum + self.decay)

    @property
    def length(self) -> int:
        """Tokens of the sequence."""
        return self.num_prefix + self.num_tokens

    def text_slot(self, number: int) -> slice:
        """The coordinates of a text slot; those of the weights come first."""
        start = (self.weight_slots + number) * self.width
        return slice(start, start + self.width)

    def weight_slot(self, number: int) -> slice:
        """The coordinates of a weight slot."""
        return slice(number * self.width, (number + 1) * self.width)

    def velocity_slot(self, number: int) -> slice:
        """The coordinates of a slot for the velocity, which stand behind the weights."""
        assert self.momentum, "without momentum there is no velocity"
        return self.weight_slot(self.stack + number)

    def base_slot(self, number: int) -> slice:
        """The coordinates of a slot for the base, which come last."""
        assert self.decay, "without decay there is no base"
        return self.weight_slot(self.weight_slots - self.stack + number)

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
    velocity: tuple[Float[Tensor, "#B _ S W"], ...] = ()
    """The same of momentum; empty without it."""
    base: tuple[Float[Tensor, "1 _ S W"], ...] = ()
    """The weights before any step; empty without decay."""

    @classmethod
    def before_any_step(
        cls, text: tuple[Tensor, ...], prefix: Sequence[Tensor], *, momentum: bool, decay: bool
    ) -> Stream:
        """With a velocity of zero, and the weights as their own base."""
        # Neither takes memory: a zero for all, and the same tensors once more.
        velocity = tuple(block.new_zeros(()).expand(block.shape) for block in prefix) if momentum else ()
        return cls(text, tuple(prefix), velocity, tuple(prefix) if decay else ())

    def read(self, slots: Sequence[int]) -> list[Tensor]:
        """Text slots."""
        return [self.text[slot] for slot in slots]

    def add(self, slots: Sequence[int | None], terms: Sequence[Tensor]) -> Stream:
        """The residual connection: what a layer computes is added to text slots; None is a result that nobody reads."""
        text = list(self.text)
        for slot, term in zip(slots, terms, strict=True):
            if slot is not None:
                text[slot] = text[slot] + term
        return replace(self, text=tuple(text))

    def add_to_prefix(self, block: int, weights: Tensor | None, velocity: Tensor | None = None) -> Stream:
        """The residual connection of one op's prefix tokens."""
        return replace(
            self, prefix=_added(self.prefix, block, weights), velocity=_added(self.velocity, block, velocity)
        )

    def pack(self) -> Float[Tensor, "B length dim"]:
        """The one tensor."""
        text = torch.cat(self.text, dim=-1)
        groups = [
            torch.cat([block.flatten(2).expand(len(text), -1, -1) for block in each], dim=1)
            for each in (self.prefix, self.velocity, self.base)
            if each
        ]
        prefix = torch.cat(groups, dim=-1)
        return torch.cat(
            (functional.pad(prefix, (0, text.shape[-1])), functional.pad(text, (prefix.shape[-1], 0))), dim=1
        )

    @classmethod
    def unpack(cls, e: Float[Tensor, "B length dim"], frame: Frame) -> Stream:
        """The same from the one tensor."""
        text, width = e[:, frame.num_prefix :], frame.stack * frame.width

        def group(slot: slice) -> tuple[Tensor, ...]:
            held = e[:, : frame.num_prefix, slot.start : slot.start + width].unflatten(-1, (frame.stack, frame.width))
            return tuple(held[:, frame.block(number)] for number in range(len(frame.blocks)))

        return cls(
            tuple(text[..., frame.text_slot(slot)] for slot in range(frame.num_slots)),
            group(frame.weight_slot(0)),
            group(frame.velocity_slot(0)) if frame.momentum else (),
            group(frame.base_slot(0)) if frame.decay else (),
        )


def _added(blocks: tuple[Tensor, ...], number: int, term: Tensor | None) -> tuple[Tensor, ...]:
    if term is None:
        return blocks
    return (*blocks[:number], blocks[number] + term, *blocks[number + 1 :])
