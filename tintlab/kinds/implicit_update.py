"""The update of a feed-forward layer that does what a context does: exact, of rank one, for one token.

Dherin et al., "Learning without training: the implicit dynamics of in-context learning" (2025). Let a be what the
first matrices of the feed-forward layer read at a token without the context, and a + da what they read there with it.
With W + (W da) a^T / |a|^2 in place of every matrix W that reads a, the layer answers to a as it did to a + da: the
context may be left out. Where a residual goes around the layer, its change is added as a bias of the output. In a
parallel block nothing goes from attention into the layer or around it, and there is no bias.
"""

# N tokens (one of each of N inputs), I inputs and O outputs of a matrix, D width of the stream

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary, forks
from tintformer.auxiliary.ops import Add, Attend, Fork, Linear, Step
from tintformer.errors import InputError
from tintformer.execution.inputs import Array, as_tensor
from tintformer.learning.tuned import Tuned
from tintformer.storage.loading import load


@dataclass(frozen=True, eq=False, kw_only=True)
class FeedForward:
    """The feed-forward layer of a block, as the description has it."""

    block: int
    """Its number, from 0."""
    readers: tuple[Linear, ...]
    """The matrices that read its input: one, or two in a gated unit."""
    last: Linear
    """What makes its output."""
    join: str
    """The sum that its output goes into."""
    has_skip: bool
    """Whether a residual from behind the attention goes around it; in parallel blocks none does."""

    @property
    def input_point(self) -> str:
        """The hook point of what its first matrices read."""
        return f"{self.readers[0].name}.input"

    @property
    def skip_point(self) -> str | None:
        """The hook point of what goes around it."""
        return f"{self.join}.input.0" if self.has_skip else None

    @property
    def output_point(self) -> str:
        """The hook point of what the implicit update reproduces: the sum with the skip, or the layer's own output."""
        return f"{self.join}.output" if self.has_skip else f"{self.last.name}.output"


def feed_forwards(auxiliary: Auxiliary) -> tuple[FeedForward, ...]:
    """The feed-forward layer of every block: the branch of a sum that attends to nothing."""
    return tuple(_feed_forward(number, block) for number, block in enumerate(auxiliary.blocks))


def _feed_forward(number: int, block: tuple[Step, ...]) -> FeedForward:
    for fork in forks(block):
        for branch in fork.branches if isinstance(fork.join, Add) else ():
            readers = tuple(_readers(branch))
            if readers and not _attends(branch):
                last = branch[-1]
                assert isinstance(last, Linear), "a feed-forward layer ends in a matrix"
                return FeedForward(
                    block=number,
                    readers=readers,
                    last=last,
                    join=fork.join.name,
                    has_skip=not any(map(_attends, fork.branches)),
                )
    raise InputError(f"block {number} has no feed-forward layer, of which there could be an implicit update")


def _attends(steps: Sequence[Step]) -> bool:
    return any(isinstance(fork.join, Attend) for fork in forks(tuple(steps)))


def _readers(branch: Sequence[Step]) -> Iterator[Linear]:
    """The first matrices on the way through a branch, one on each side of a gate."""
    for step in branch:
        if isinstance(step, Linear):
            yield step
            return
        if isinstance(step, Fork):
            for inner in step.branches:
                yield from _readers(inner)
            return


@dataclass(frozen=True, eq=False, kw_only=True)
class ImplicitUpdate:
    """What a context does to one feed-forward layer, for one token of each of N inputs."""

    layer: FeedForward = field(repr=False)
    """The layer."""
    left: dict[str, Float[Tensor, "N O"]]
    """W da for each matrix that reads the input, by the name of its parameter (`blocks.3.up.weight`)."""
    right: Float[Tensor, "N I"]
    """a / |a|^2."""
    bias: Float[Tensor, "N D"] | None
    """The change of the skip, added to the output; None in parallel blocks."""

    @classmethod
    def of(
        cls,
        layer: FeedForward,
        inputs: Float[Tensor, "N I"],
        with_context: Float[Tensor, "N I"],
        skip_change: Float[Tensor, "N D"] | None = None,
    ) -> ImplicitUpdate:
        """From what the layer reads without the context and with it."""
        change = with_context - inputs
        left = {f"{op.name}.weight": change @ op.weight.read().to(change).mT for op in layer.readers}
        right = inputs / inputs.square().sum(-1, keepdim=True)
        return cls(layer=layer, left=left, right=right, bias=skip_change if layer.has_skip else None)

    def matrix(self, name: str, row: int = 0) -> Float[Tensor, "O I"]:
        """The update of one matrix for one input, formed.

        Args:
            name: A key of `left`.
            row: The number of the input.
        """
        return torch.outer(self.left[name][row], self.right[row])

    def cosines(self, updates: dict[str, Float[Tensor, "O I"]]) -> Float[Tensor, " N"]:
        """The cosine with other updates of the same matrices, taken together as one vector, for each input.

        Args:
            updates: By the same names; a matrix that is not among them has learnt nothing.
        """
        # <l r^T, U> = l . U r: nothing of the size of a matrix is made for an input.
        products = sum((self.left[name] * (self.right @ update.mT)).sum(-1) for name, update in updates.items())
        own = torch.stack([left.square().sum(-1) for left in self.left.values()]).sum(0) * self.right.square().sum(-1)
        others = sum(update.square().sum() for update in updates.values())
        return torch.as_tensor(products / (own * others).sqrt())

    def effect_cosines(self, updates: dict[str, Float[Tensor, "O I"]]) -> Float[Tensor, " N"]:
        """The cosine of what the two do to the same input: W da, and the other update times a.

        Args:
            updates: As in `cosines`.
        """
        effects = {name: self.right @ update.mT for name, update in updates.items()}
        products = sum((self.left[name] * effect).sum(-1) for name, effect in effects.items())
        own = torch.stack([left.square().sum(-1) for left in self.left.values()]).sum(0)
        others = sum(effect.square().sum(-1) for effect in effects.values())
        return torch.as_tensor(products / (own * others).sqrt())


def kept_positions(auxiliary: Auxiliary, positions: Tensor) -> Tensor | None:
    """The `position_ids` by which tokens stay in place where others are left out; ALiBi knows distances alone."""
    return positions if auxiliary.takes_position_ids() else None


@torch.no_grad()
def implicit_updates(model: Any, input_ids: Array, *, context: slice) -> tuple[ImplicitUpdate, ...]:
    """The implicit update of every block, at the last token of sequences that hold a context.

    Without the context means that nobody sees its tokens; the others keep their positions.

    Args:
        model: What `load` takes.
        input_ids: Token ids `[batch, tokens]`, all of the same length.
        context: Which tokens are the context.
    """
    auxiliary = load(model)
    ids = as_tensor("input_ids", input_ids)
    seen = torch.ones_like(ids, dtype=torch.bool)
    seen[:, context] = False
    if seen.all() or not seen[:, -1].all():
        raise InputError("the context must be some of the tokens, and not the last one; give its place as a slice")
    positions = kept_positions(auxiliary, torch.arange(ids.shape[1]).expand(ids.shape))
    layers, tuned = feed_forwards(auxiliary), Tuned.untrained(auxiliary)
    points = [point for layer in layers for point in (layer.input_point, layer.skip_point) if point is not None]
    with tuned.watch(*points) as with_context:
        tuned.score(ids, position_ids=positions)
    with tuned.watch(*points) as without:
        tuned.score(ids, position_ids=positions, attention_mask=seen)

    def last(found: Any, point: str) -> Tensor:
        return found["after", point][:, -1]

    def skip_change(layer: FeedForward) -> Tensor | None:
        point = layer.skip_point
        return None if point is None else last(with_context, point) - last(without, point)

    return tuple(
        ImplicitUpdate.of(
            layer,
            last(without, layer.input_point),
            last(with_context, layer.input_point),
            skip_change(layer),
        )
        for layer in layers
    )
