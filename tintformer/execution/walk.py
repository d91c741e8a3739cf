"""The one walk over an auxiliary: forward with a tape, backward and descent, in order, whatever executes an op.

An engine gives an `Executor`; the walk decides what runs when, and says so: `begin(Stage(...))` before each part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Fork, Move, Step
from tintformer.execution.batch import Batch
from tintformer.execution.executor import Executor, Stage
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import trained_weights

X = TypeVar("X")


@dataclass(frozen=True)
class TapeEntry:
    """One step of the forward pass, with what its backward pass needs."""

    step: Step
    saved: Any
    branches: tuple[list[TapeEntry], ...] = ()


def forward(executor: Executor[X], steps: Sequence[Step], x: X) -> tuple[X, list[TapeEntry]]:
    """Run the steps and keep what backward needs."""
    tape: list[TapeEntry] = []
    for step in steps:
        if isinstance(step, Fork):
            # Every branch reads the same x and has a tape of its own; a residual is a branch without steps.
            runs = [forward(executor, branch, x) for branch in step.branches]
            x, saved = executor.forward(step.join, tuple(output for output, _ in runs))
            tape.append(TapeEntry(step, saved, tuple(branch_tape for _, branch_tape in runs)))
        elif isinstance(step, Move):
            x = executor.move(x, step.device)
            tape.append(TapeEntry(step, None))
        else:
            x, saved = executor.forward(step, (x,))
            tape.append(TapeEntry(step, saved))
    return x, tape


def backward(
    executor: Executor[X], rule: LearningRule, tape: Sequence[TapeEntry], gradient: X, *, pass_on: bool = True
) -> X | None:
    """Send the gradient back along the tape; each op descends once its own backward has read the old weights.

    `pass_on=False` says that nobody needs the gradient of the tape's input: the products for it are left out.
    """
    for index in reversed(range(len(tape))):
        step, saved = tape[index].step, tape[index].saved
        wanted = pass_on or index > 0
        if isinstance(step, Fork):
            # A branch without steps is a residual: it hands its gradient on as it is, if anybody wants it.
            arriving = [
                backward(executor, rule, branch, branch_gradient, pass_on=wanted)
                for branch, branch_gradient in zip(
                    tape[index].branches, executor.backward(step.join, saved, gradient), strict=True
                )
                # No gradient, no walk: with value-only attention the branches of queries and keys are never visited,
                # which is what the paper's stop gradients save.
                if branch_gradient is not None and (branch or wanted)
            ]
            below = executor.add([term for term in arriving if term is not None]) if wanted else None
        elif isinstance(step, Move):
            below = executor.move(gradient, step.origin)
        else:
            # In this order: a gradient passes through the weights of the forward pass, and only then do they change.
            below = executor.backward(step, saved, gradient)[0] if wanted else None
            if trained_weights(rule, step):
                executor.descend(step, saved, gradient)
        if below is None:  # the lowest step, or one whose branches pass nothing on
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
    # The paper's "N-step Fine-Tuning", on the top blocks alone where the rule says so (its tables: 12 layers for 1
    # step, 6 for 2, 3 for 4; the prose once says 6 for 3).
    num_frozen = len(auxiliary.blocks) - rule.num_trained(len(auxiliary.blocks))
    executor.begin(Stage("below"))
    below = executor.embed()
    for block in auxiliary.blocks[:num_frozen]:
        below = run_without_tape(executor, block, below)
    trained = [step for block in auxiliary.blocks[num_frozen:] for step in block] + list(auxiliary.final)
    # `below` itself is kept whole: the pass after learning goes on from there over all tokens.
    seen = executor.training_part(below)
    for number in range(1, rule.steps + 1):
        _descend_once(executor, rule, trained, seen, number)
    return below, trained


def _descend_once(executor: Executor[X], rule: LearningRule, steps: Sequence[Step], x: X, number: int) -> None:
    """One step of descent; a function of its own, so that its tape does not outlive it."""
    executor.begin(Stage("forward", number))
    x, tape = forward(executor, steps, x)
    # The loss's gradient opens the backward half: what observers see from here on are gradients and updates.
    executor.begin(Stage("backward", number))
    # Below the trained steps nothing learns, so the lowest op need not hand a gradient on.
    backward(executor, rule, tape, executor.loss_gradient(x), pass_on=False)


def train_in_the_pass(executor: Executor[X], auxiliary: Auxiliary, rule: LearningRule) -> X:
    """Train, then run the forward pass with the final weights: the stream at the head's input."""
    below, trained = train(executor, auxiliary, rule)
    executor.begin(Stage("after"))
    # The head is no step of the walk: it is frozen, and each engine applies it only where logits are wanted.
    return run_without_tape(executor, trained, below)


def forward_pass(executor: Executor[X], auxiliary: Auxiliary, phase: Literal["before", "after"] = "after") -> X:
    """A whole pass without learning: the stream at the head's input."""
    executor.begin(Stage(phase))
    return read(executor, auxiliary)


def read(executor: Executor[X], auxiliary: Auxiliary) -> X:
    """Run all blocks in whatever stage the executor is."""
    x = executor.embed()
    for block in (*auxiliary.blocks, auxiliary.final):
        x = run_without_tape(executor, block, x)
    return x


def learn_and_read(executor: Executor[X], auxiliary: Auxiliary, rule: LearningRule, batch: Batch) -> X:
    """`train_in_the_pass`, or, where there is nothing to learn from, the forward pass alone."""
    learns = bool(batch.train_positions.any())
    return train_in_the_pass(executor, auxiliary, rule) if learns else forward_pass(executor, auxiliary)
