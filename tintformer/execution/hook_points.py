"""Where a hook may stand: a pass, an op of the auxiliary, and what of the op is meant; and who stops there.

The walk announces its stages and runs its ops; `ObservedExecutor` stands between it and an engine's own executor and
shows every value by its point. `rehearse` walks without numbers to list the points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Attend, Join, Linear, Norm, Op, Weight
from tintformer.execution import walk
from tintformer.execution.executor import Executor, Stage, TensorStreams
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.trainable import trained_weights

X = TypeVar("X")
When = Literal["before", "below", "after"] | int
"""Which pass: `before` learning, the number of a step (from 1), or `after` the last one. `below` are the embedding and
the blocks below the trained ones: no step changes them, so they run once for all steps and for the pass after."""


class HookPoint(NamedTuple):
    """One value of one pass. It equals the tuple `(when, name)`."""

    when: When
    """Which pass: "before" learning, the number of a step from 1, "after" the last, or "below" the trained blocks."""
    name: str
    """The op and the value: `blocks.3.down.output`.

    `.input` (of a join, by branch: `.input.query`, `.input.0`), `.output`, `.gradient` (of the loss, at the op's
    output), and `.update.weight`, `.update.bias`, `.update.scale` (what one step adds to a parameter).
    """


def input_names(op: Op | Join, count: int) -> list[str]:
    """The names of an op's inputs; only a join has several, one from each branch."""
    if not isinstance(op, Join):
        return [f"{op.name}.input"]
    branches = ("query", "key", "value") if isinstance(op, Attend) else range(count)
    return [f"{op.name}.input.{branch}" for branch in branches]


def parameter_names(op: Op | Join) -> dict[Weight, str]:
    """The parameters of an op, named as nothing else is: parts of a fused Hugging Face parameter are told apart."""
    match op:
        case Linear():
            held = {"weight": op.weight, "bias": op.bias}
        case Norm():
            held = {"scale": op.scale, "bias": op.bias}
        case _:
            held = {}
    return {weight: f"{op.name}.{role}" for role, weight in held.items() if weight is not None}


def update_names(op: Op | Join) -> dict[Weight, str]:
    """The points at which the updates of an op's parameters are shown."""
    return {weight: f"{op.name}.update.{name.rpartition('.')[2]}" for weight, name in parameter_names(op).items()}


Listener = Callable[[Tensor], Tensor]
"""Is given the value at a point and returns what takes its place, or the value itself."""


class ObservedExecutor(Generic[X]):
    """Implements `Executor` by another one, and shows every value to the listeners at its point.

    Values are the auxiliary's own, `[B, T, width]`, whatever form the executor's streams have. In a step they are those
    of the tokens that the loss depends on: how many more an executor carries along is its own affair.
    """

    def __init__(self, executor: Executor[X], listener_at: Callable[[HookPoint], Listener | None], num_reached: int):
        self.executor, self.listener_at, self.num_reached = executor, listener_at, num_reached
        self.stage = Stage("after")
        self._arrived: tuple[Op | Join, X, X] | None = None

    def begin(self, stage: Stage) -> None:
        self.stage, self._arrived = stage, None
        self.executor.begin(stage)

    def embed(self) -> X:
        return self._shown("embedding.output", self.executor.embed())

    def training_part(self, x: X) -> X:
        return self.executor.training_part(x)

    def forward(self, op: Op | Join, inputs: tuple[X, ...]) -> tuple[X, Any]:
        y, saved = self.executor.forward(op, tuple(map(self._shown, input_names(op, len(inputs)), inputs)))
        return self._shown(f"{op.name}.output", y), saved

    def loss_gradient(self, x: X) -> X:
        return self.executor.loss_gradient(x)

    def backward(self, op: Op | Join, saved: Any, gradient: X) -> tuple[X | None, ...]:
        return self.executor.backward(op, saved, self._arriving(op, gradient))

    def descend(self, op: Op | Join, saved: Any, gradient: X) -> None:
        gradient = self._arriving(op, gradient)
        found = {weight: self.listener_at(self._point(name)) for weight, name in update_names(op).items()}
        listeners = {weight: listener for weight, listener in found.items() if listener is not None}
        # An executor knows the update of all steps so far: this step's is what descent has added to it.
        before = self.executor.updates_of(op) if listeners else {}
        self.executor.descend(op, saved, gradient)
        after = self.executor.updates_of(op) if listeners else {}
        for weight, update in after.items():
            if weight in listeners:
                listeners[weight](update - before[weight] if weight in before else update)

    def move(self, x: X, device: torch.device) -> X:
        return self.executor.move(x, device)

    def add(self, terms: Sequence[X]) -> X:
        return self.executor.add(terms)

    def plain(self, stream: X) -> Tensor:
        return self.executor.plain(stream)

    def stream(self, tensor: Tensor, like: X) -> X:
        return self.executor.stream(tensor, like)

    def updates_of(self, op: Op | Join, row: int | None = None) -> dict[Weight, Tensor]:
        return self.executor.updates_of(op, row)

    def _point(self, name: str) -> HookPoint:
        stage = self.stage
        if stage.phase == "forward" or stage.phase == "backward":
            assert stage.step is not None, "the halves of a step have its number"
            return HookPoint(stage.step, name)
        return HookPoint(stage.phase, name)

    def _arriving(self, op: Op | Join, gradient: X) -> X:
        """The gradient at an op's output. Its backward and its descent are given the same one: it is shown once."""
        # By identity: the walk hands one and the same tensor to backward and
        # to descent, and a replacement must reach both.
        if self._arrived is None or self._arrived[0] is not op or self._arrived[1] is not gradient:
            self._arrived = op, gradient, self._shown(f"{op.name}.gradient", gradient)
        return self._arrived[2]

    def _shown(self, name: str, stream: X) -> X:
        """The stream after the listeners have seen and perhaps replaced it."""
        point = self._point(name)
        listener = self.listener_at(point)
        if listener is None:
            return stream
        value = self.executor.plain(stream)
        # Engines differ in how many tokens they carry through a step; what is shown must not.
        num_tokens = self.num_reached if isinstance(point.when, int) else value.shape[1]
        shown = value[:, :num_tokens]
        answer = listener(shown)
        # Untouched: the executor's own stream goes on, without a copy, and bit by bit as without hooks.
        if answer is shown:
            return stream
        return self.executor.stream(torch.cat((answer, value[:, num_tokens:]), dim=1), stream)


def rehearse(auxiliary: Auxiliary, rule: LearningRule, *, learns: bool) -> list[HookPoint]:
    """Every point that a pass before learning and one with learning come by; without learning, that of the latter."""
    points: list[HookPoint] = []

    def listener_at(point: HookPoint) -> Listener:
        def note(value: Tensor) -> Tensor:
            points.append(point)
            return value

        return note

    observed = ObservedExecutor(_Rehearsal(rule), listener_at, num_reached=0)
    if learns:
        walk.forward_pass(observed, auxiliary, "before")
        walk.train_in_the_pass(observed, auxiliary, rule)
    else:
        walk.forward_pass(observed, auxiliary)
    return points


NOTHING = torch.empty(1, 0, 0)


class _Rehearsal(TensorStreams):
    """Implements `Executor` with streams that carry nothing."""

    def __init__(self, rule: LearningRule):
        self.rule = rule

    def embed(self) -> Tensor:
        return NOTHING

    def forward(self, op: Op | Join, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        return NOTHING, len(inputs)

    def backward(self, op: Op | Join, saved: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if isinstance(op, Attend) and self.rule.attention_gradient == "value":
            return None, None, NOTHING
        return (NOTHING,) * saved

    def descend(self, op: Op | Join, saved: Any, gradient: Tensor) -> None:
        pass

    def add(self, terms: Sequence[Tensor]) -> Tensor:
        return NOTHING

    def loss_gradient(self, x: Tensor) -> Tensor:
        return NOTHING

    def updates_of(self, op: Op | Join, row: int | None = None) -> dict[Weight, Tensor]:
        return dict.fromkeys(trained_weights(self.rule, op), NOTHING)
