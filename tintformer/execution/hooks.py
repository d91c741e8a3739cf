"""Hooks: functions that see, and may replace, the values of a pass by name.

Where a hook may stand: a pass, an op of the auxiliary, and what of the op is meant; and who stops there.

The walk announces its stages and runs its ops; `ObservedExecutor` stands between it and an engine's own executor and
shows every value by its point. `rehearse` walks without numbers to list the points.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Attend, Join, Linear, Norm, Op, Weight
from tintformer.errors import InputError, brief, nearest
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.execution.executor import Executor, Stage, TensorStreams
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import trained_weights
from tintformer.typed_fields import checked, shown

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


HookFunction = Callable[[Tensor, HookPoint], Tensor | None]
"""Given a value and its point; what it returns, if anything, takes the value's place."""


class NotSeenError(InputError, KeyError):
    """A point of which there is no value among those that were kept."""

    __str__ = Exception.__str__  # that of KeyError would put the sentence into quotes


class Seen(dict[tuple[When, str], Tensor]):
    """Values by point: `seen["after", "blocks.3.down.output"]`, `seen[1, "blocks.3.down.gradient"]`."""

    def __missing__(self, point: Any) -> Tensor:
        if not self:
            raise NotSeenError(f"nothing was seen at {brief(point)}: run a pass inside of the context")
        near = nearest(point, (repr((when, name)) for when, name in self))
        raise NotSeenError(
            f"nothing was seen at {brief(point)}: what was seen are the keys of this dict, and a block that does not "
            f"learn has no gradients{near}"
        )


@dataclass(frozen=True, eq=False)
class Hook:
    """A function and the points at which it is called."""

    pattern: str
    function: HookFunction
    when: When | None
    thread: int = field(default_factory=threading.get_ident)
    """Whose passes it sees: another thread's, run on the same object at the same time, are no business of it."""

    def stands_at(self, point: HookPoint) -> bool:
        return self.when in (None, point.when) and fnmatchcase(point.name, self.pattern)

    def __call__(self, value: Tensor, point: HookPoint) -> Tensor:
        answer = self.function(value, point)
        if answer is None:
            return value
        # An update may be kept as factors: there is no matrix that could be replaced.
        if ".update." in point.name:
            raise InputError(f"{point.name} can be looked at, not replaced; replace the gradient that it comes from")
        if answer.shape != value.shape:
            raise InputError(
                f"a hook gave a value of shape {tuple(answer.shape)} to {point.name}, which has {tuple(value.shape)}"
            )
        return answer.to(value)


class Hooks:
    """The hooks of one engine, or of one tuned model. Where there are none, a pass runs as if this did not exist."""

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, *, learns: bool = True):
        self.auxiliary, self.rule, self.learns = auxiliary, rule, learns
        self._hooks: list[Hook] = []

    def points(self) -> list[HookPoint]:
        """Every point of a pass, in order."""
        return rehearse(self.auxiliary, self.rule, learns=self.learns)

    def observed(self, executor: Executor[X], batch: Batch) -> Executor[X]:
        """The executor for one pass over a batch: itself, or one that shows its values to the hooks."""
        # Of this thread alone, and a copy of the list, which other threads change at any time.
        hooks = [hook for hook in tuple(self._hooks) if hook.thread == threading.get_ident()]
        return ObservedExecutor(executor, partial(_listener_at, hooks), batch.num_reached) if hooks else executor

    @contextmanager
    def standing(self, hooks: Sequence[Hook], held: X) -> Generator[X]:
        """Let hooks stand at every point that fits them while the context lasts; `held` is what it gives."""
        points = self.points()
        for hook in hooks:
            checked("pattern", hook.pattern, str, InputError)
            if not callable(hook.function):
                raise InputError(f"a hook is a function of a value and its point, not {shown(hook.function)}")
            # A mistyped pattern would watch nothing, and an empty result looks like a finding.
            if not any(map(hook.stands_at, points)):
                place = "" if hook.when is None else f" with when={hook.when!r}"
                near = nearest(hook.pattern, (point.name for point in points))
                raise InputError(f"no hook point fits {hook.pattern!r}{place}; points() lists them all{near}")
        # In place and one by one, which threads cannot tear apart as they can a list that is made anew.
        self._hooks.extend(hooks)
        try:
            yield held
        finally:
            for hook in hooks:
                self._hooks.remove(hook)


def _listener_at(standing: Sequence[Hook], point: HookPoint) -> Listener | None:
    hooks = [hook for hook in standing if hook.stands_at(point)]
    if not hooks:
        return None

    def show(value: Tensor) -> Tensor:
        for hook in hooks:
            value = hook(value, point)
        return value

    return show


class Watchable:
    """Something that runs passes which can be watched."""

    @property
    def hooks(self) -> Hooks:
        """The hooks of its passes."""
        raise NotImplementedError

    def points(self) -> list[HookPoint]:
        """Every point of a pass where a hook may stand, as `(when, name)`, in order.

        Those of the pass `before` learning are met only where `before=True` asks for it.
        """
        return self.hooks.points()

    def watch(self, *patterns: str, when: When | None = None) -> AbstractContextManager[Seen]:
        """Keep the values at every point whose name fits a pattern: `with model.watch("blocks.*.down.output") as seen`.

        They are found by pass and name, `seen["after", "blocks.3.down.output"]`. A later call inside of the context
        replaces what an earlier one left.

        Args:
            *patterns: Names of `points`, with `*` for anything.
            when: Restricts the pass: "before" learning, the number of a step from 1, "after" the last one, or "below"
                for the embedding and the blocks that do not learn; None for all.
        """
        seen = Seen()

        def keep(value: Tensor, point: HookPoint) -> None:
            seen[point] = value

        return self.hooks.standing([Hook(pattern, keep, when) for pattern in patterns], seen)

    def hook(self, pattern: str, function: HookFunction, *, when: When | None = None) -> AbstractContextManager[None]:
        """Call `function(value, point)` at every point whose name fits the pattern; what it returns replaces the value.

        Several hooks at one point are called in the order in which they were set, each with the answer of the one
        before. A hook holds while the context lasts: `with model.hook(...)`.

        Args:
            pattern: A name of `points`, with `*` for anything.
            function: It may return None to leave the value alone, and must not change it in place.
            when: Restricts the pass, as in `watch`.
        """
        return self.hooks.standing([Hook(pattern, function, when)], None)
