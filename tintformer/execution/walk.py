"""The one walk over an auxiliary: forward with a tape, backward and descent, in order, whatever executes an op.

An engine gives an `Executor`; the walk decides what runs when. Streams (`X`) are opaque here: tensors for the
reference and the fast engine, the constructed transformer's own stream for the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Fork, Join, Move, Op, Step
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.trainable import moving

if TYPE_CHECKING:
    import torch

X = TypeVar("X")


@runtime_checkable
class Executor(Protocol[X]):
    """What runs an op. `saved` is whatever the executor's own backward and descent need."""

    def embed(self) -> X:
        """The stream below the first block."""
        ...

    def training_part(self, x: X) -> X:
        """The stream as far as training needs it; tokens that no loss depends on may be left out."""
        ...

    def forward(self, op: Op | Join, inputs: tuple[X, ...]) -> tuple[X, Any]:
        """The op's output with the current weights, and what to save."""
        ...

    def backward(self, op: Op | Join, saved: Any, gradient: X) -> tuple[X | None, ...]:
        """The gradient of each input; None where the rule lets none pass."""
        ...

    def descend(self, op: Op | Join, saved: Any, gradient: X) -> None:
        """Move the op's parameters; called after its backward, only if the rule moves any of them."""
        ...

    def move(self, x: X, device: torch.device) -> X:
        """A stream or a gradient on another device."""
        ...

    def add(self, terms: Sequence[X]) -> X:
        """The sum of gradients that meet at a fork."""
        ...

    def loss_gradient(self, x: X) -> X:
        """The gradient of the loss at the input of the head."""
        ...


@runtime_checkable
class Readable(Executor[X], Protocol[X]):
    """An executor whose streams can be read and written, so that it can be checked and looked into op by op."""

    def plain(self, stream: X, /) -> Tensor:
        """What a stream carries: `[B, T, width]`, or its first tokens where `training_part` has left out the rest."""
        ...

    def stream(self, tensor: Tensor, like: X, /) -> X:
        """A stream of the form of `like` that carries `tensor` instead; `like` stays as it is."""
        ...


@dataclass(frozen=True)
class Record:
    """One entry of the tape."""

    step: Step
    saved: Any
    branches: tuple[list[Record], ...] = ()


def forward(executor: Executor[X], steps: Sequence[Step], x: X) -> tuple[X, list[Record]]:
    """Run the steps and keep what backward needs."""
    tape: list[Record] = []
    for step in steps:
        if isinstance(step, Fork):
            runs = [forward(executor, branch, x) for branch in step.branches]
            x, saved = executor.forward(step.join, tuple(output for output, _ in runs))
            tape.append(Record(step, saved, tuple(branch_tape for _, branch_tape in runs)))
        elif isinstance(step, Move):
            x = executor.move(x, step.device)
            tape.append(Record(step, None))
        else:
            x, saved = executor.forward(step, (x,))
            tape.append(Record(step, saved))
    return x, tape


def backward(
    executor: Executor[X], rule: LearningRule, tape: Sequence[Record], gradient: X, *, pass_on: bool = True
) -> X | None:
    """Send the gradient back along the tape; each op descends once its own backward has read the old weights.

    `pass_on=False` says that nobody needs the gradient of the tape's input: the products for it are left out.
    """
    for index in reversed(range(len(tape))):
        step, saved = tape[index].step, tape[index].saved
        wanted = pass_on or index > 0
        if isinstance(step, Fork):
            arriving = [
                backward(executor, rule, branch, branch_gradient, pass_on=wanted)
                for branch, branch_gradient in zip(
                    tape[index].branches, executor.backward(step.join, saved, gradient), strict=True
                )
                if branch_gradient is not None and (branch or wanted)
            ]
            below = executor.add([term for term in arriving if term is not None]) if wanted else None
        elif isinstance(step, Move):
            below = executor.move(gradient, step.origin)
        else:
            below = executor.backward(step, saved, gradient)[0] if wanted else None
            if moving(rule, step):
                executor.descend(step, saved, gradient)
        if below is None:
            return None
        gradient = below
    return gradient


def run_without_tape(executor: Executor[X], steps: Sequence[Step], x: X) -> X:
    """Forward alone: nothing saved outlives its step."""
    for step in steps:
        if isinstance(step, Fork):
            inputs = tuple(run_without_tape(executor, branch, x) for branch in step.branches)
            x, _ = executor.forward(step.join, inputs)
        elif isinstance(step, Move):
            x = executor.move(x, step.device)
        else:
            x, _ = executor.forward(step, (x,))
    return x


def train(executor: Executor[X], auxiliary: Auxiliary, rule: LearningRule) -> tuple[X, list[Step]]:
    """N steps of descent; returns the stream below the trained steps, and those steps.

    Blocks below the trained ones never change, so they run once for all steps and for whatever comes after.
    """
    num_frozen = len(auxiliary.blocks) - rule.num_trained(len(auxiliary.blocks))
    below = executor.embed()
    for block in auxiliary.blocks[:num_frozen]:
        below = run_without_tape(executor, block, below)
    trained = [step for block in auxiliary.blocks[num_frozen:] for step in block] + list(auxiliary.final)
    seen = executor.training_part(below)
    for _ in range(rule.steps):
        _descend_once(executor, rule, trained, seen)
    return below, trained


def _descend_once(executor: Executor[X], rule: LearningRule, steps: Sequence[Step], x: X) -> None:
    """One step of descent; its tape does not outlive it."""
    x, tape = forward(executor, steps, x)
    backward(executor, rule, tape, executor.loss_gradient(x), pass_on=False)


def train_in_the_pass(executor: Executor[X], auxiliary: Auxiliary, rule: LearningRule) -> X:
    """Train, then run the forward pass with the final weights: the stream at the head's input."""
    below, trained = train(executor, auxiliary, rule)
    return run_without_tape(executor, trained, below)


def forward_pass(executor: Executor[X], auxiliary: Auxiliary) -> X:
    """The auxiliary as it is: the stream at the head's input, nothing trained."""
    x = executor.embed()
    for block in (*auxiliary.blocks, auxiliary.final):
        x = run_without_tape(executor, block, x)
    return x


def learn_and_read(executor: Executor[X], auxiliary: Auxiliary, rule: LearningRule, *, learn: bool) -> X:
    """`train_in_the_pass`, or, where there is nothing to learn from, the forward pass alone."""
    return train_in_the_pass(executor, auxiliary, rule) if learn else forward_pass(executor, auxiliary)
