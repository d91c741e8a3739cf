"""Hooks: functions that see, and may replace, the values of a pass by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import InputError, brief, nearest
from tintformer.execution.batch import Batch
from tintformer.execution.executor import Executor
from tintformer.execution.hook_points import HookPoint, Listener, ObservedExecutor, When, rehearse
from tintformer.rule.learning_rule import LearningRule
from tintformer.typed_fields import checked, shown

X = TypeVar("X")
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
