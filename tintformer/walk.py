"""The one walk over an auxiliary: forward with a tape, backward and descent, in order, whatever executes an op.

An engine gives an `Executor`; the walk decides what runs when. Streams (`X`) are opaque here: tensors for the
reference and the fast engine, the constructed transformer's own stream for the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Fork, Join, Op, Step
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.movement import moving

X = TypeVar("X")


@runtime_checkable
class Executor(Protocol[X]):
    """What runs an op. `saved` is whatever the executor's own backward and descent need."""

    def embed(self) -> X:
        """The stream below the first block."""
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

    def add(self, terms: Sequence[X]) -> X:
        """The sum of gradients that meet at a fork."""
        ...

    def loss_gradient(self, x: X) -> X:
        """The gradient of the loss at the input of the head."""
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
        else:
            x, saved = executor.forward(step, (x,))
            tape.append(Record(step, saved))
    return x, tape


def backward(executor: Executor[X], rule: LearningRule, tape: Sequence[Record], gradient: X) -> X:
    """Send the gradient back along the tape; each op descends once its own backward has read the old weights."""
    for record in reversed(tape):
        step = record.step
        if isinstance(step, Fork):
            gradients = executor.backward(step.join, record.saved, gradient)
            arriving = [
                backward(executor, rule, branch, branch_gradient)
                for branch, branch_gradient in zip(record.branches, gradients, strict=True)
                if branch_gradient is not None
            ]
            gradient = executor.add(arriving)
        else:
            (below,) = executor.backward(step, record.saved, gradient)
            assert below is not None, "an op with one input always passes its gradient on"
            if moving(rule, step):
                executor.descend(step, record.saved, gradient)
            gradient = below
    return gradient


def run_without_tape(executor: Executor[X], steps: Sequence[Step], x: X) -> X:
    """Forward alone: nothing saved outlives its step."""
    for step in steps:
        if isinstance(step, Fork):
            inputs = tuple(run_without_tape(executor, branch, x) for branch in step.branches)
            x, _ = executor.forward(step.join, inputs)
        else:
            x, _ = executor.forward(step, (x,))
    return x


def train_in_the_pass(executor: Executor[X], auxiliary: Auxiliary, rule: LearningRule) -> X:
    """N steps of descent, then the forward pass with the final weights; returns the stream at the head's input.

    Blocks below the trained ones never change, so they run once for all steps and for the final pass.
    """
    num_frozen = len(auxiliary.blocks) - rule.num_trained(len(auxiliary.blocks))
    below = executor.embed()
    for block in auxiliary.blocks[:num_frozen]:
        below = run_without_tape(executor, block, below)
    trained = [step for block in auxiliary.blocks[num_frozen:] for step in block] + list(auxiliary.final)
    for _ in range(rule.steps):
        x, tape = forward(executor, trained, below)
        backward(executor, rule, tape, executor.loss_gradient(x))
    return run_without_tape(executor, trained, below)


def forward_pass(executor: Executor[X], auxiliary: Auxiliary) -> X:
    """The auxiliary as it is: the stream at the head's input, nothing trained."""
    x = executor.embed()
    for block in (*auxiliary.blocks, auxiliary.final):
        x = run_without_tape(executor, block, x)
    return x
