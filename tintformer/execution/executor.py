"""The contract between the walk and whatever executes an op, and how the walk says where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from tintformer.auxiliary.ops import Join, Op, Weight

X = TypeVar("X")


@dataclass(frozen=True)
class Stage:
    """Where a walk is: announced once, by the walk, to everyone who wants to know."""

    phase: Literal["before", "below", "forward", "backward", "after"]
    """`before` learning: a whole pass with the original weights. `below`: the embedding and the blocks below the
    trained ones, which no step changes, so that they run once for all steps and for the pass after. `forward` and
    `backward` (loss gradient and descent included): the two halves of a step. `after`: the pass with the final weights,
    or the only pass of a model that does not learn."""
    step: int | None = None
    """The number of the step, from 1, in `forward` and `backward`; None elsewhere."""


@runtime_checkable
class Executor(Protocol[X]):
    """What runs an op. Streams (`X`) are its own: tensors, or the constructed simulator's stream.

    `saved` is whatever the executor's own backward and descent need.
    """

    def begin(self, stage: Stage, /) -> None:
        """What follows belongs to this stage."""
        ...

    def embed(self) -> X:
        """The stream below the first block."""
        ...

    def training_part(self, x: X, /) -> X:
        """The stream as far as training needs it; tokens that no loss depends on may be left out."""
        ...

    def forward(self, op: Op | Join, inputs: tuple[X, ...], /) -> tuple[X, Any]:
        """The op's output with the current weights, and what to save."""
        ...

    def backward(self, op: Op | Join, saved: Any, gradient: X, /) -> tuple[X | None, ...]:
        """The gradient of each input; None where the rule lets none pass."""
        ...

    def descend(self, op: Op | Join, saved: Any, gradient: X, /) -> None:
        """Update the op's parameters; called after its backward, only if the rule trains any of them."""
        ...

    def move(self, x: X, device: torch.device, /) -> X:
        """A stream or a gradient on another device."""
        ...

    def add(self, terms: Sequence[X], /) -> X:
        """The sum of gradients that meet at a fork."""
        ...

    def loss_gradient(self, x: X, /) -> X:
        """The gradient of the loss at the input of the head."""
        ...

    def plain(self, stream: X, /) -> Tensor:
        """What a stream carries: `[B, T, width]`, or its first tokens where `training_part` has left out the rest."""
        ...

    def stream(self, tensor: Tensor, like: X, /) -> X:
        """A stream of the form of `like` that carries `tensor` instead; `like` stays as it is."""
        ...

    def updates_of(self, op: Op | Join, row: int | None = None, /) -> dict[Weight, Tensor]:
        """The update of each weight of an op that has one, all steps so far together.

        `[R, ...]` for R updates (one a sequence, or one that all share); of one `row`, without that axis.
        """
        ...


class TensorStreams:
    """What executors have in common whose streams are plain tensors `[B, T, width]`."""

    stage = Stage("after")

    def begin(self, stage: Stage) -> None:
        self.stage = stage

    def training_part(self, x: Tensor) -> Tensor:
        return x

    def move(self, x: Tensor, device: torch.device) -> Tensor:
        return x.to(device)

    def plain(self, stream: Tensor) -> Tensor:
        return stream

    def stream(self, tensor: Tensor, like: Tensor) -> Tensor:
        # What a hook hands back need not have the dtype of the stream.
        return tensor.to(like.dtype)
