"""Hooks: functions that see, and may replace, the values of a pass by name."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol, TypeVar

from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import InputError
from tintformer.execution.hook_points import HookPoint, When
from tintformer.execution.observed import Observable, Observed
from tintformer.execution.rehearsal import rehearse
from tintformer.execution.walk import Executor
from tintformer.rule.learning_rule import LearningRule

if TYPE_CHECKING:
    from tintformer.execution.batch import Batch

X = TypeVar("X")
Function = Callable[[Tensor, HookPoint], Tensor | None]
"""Given a value and its point; what it returns, if anything, takes the value's place."""
Seen = dict[tuple[When, str], Tensor]
"""Values by point: `seen["after", "blocks.3.down.output"]`, `seen[1, "blocks.3.down.gradient"]`."""


class _Runs(Observable[X], Protocol[X]):
    batch: Batch


@dataclass(frozen=True, eq=False)
class Hook:
    """A function and the points at which it is called."""

    pattern: str
    function: Function
    when: When | None

    def stands_at(self, point: HookPoint) -> bool:
        return self.when in (None, point.when) and fnmatchcase(point.name, self.pattern)

    def __call__(self, value: Tensor, point: HookPoint) -> Tensor:
        answer = self.function(value, point)
        if answer is None:
            return value
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

    @contextmanager
    def hook(self, pattern: str, function: Function, *, when: When | None = None) -> Generator[None]:
        """Let a function stand at every point that fits."""
        with self._standing([Hook(pattern, function, when)]):
            yield

    @contextmanager
    def watch(self, *patterns: str, when: When | None = None) -> Generator[Seen]:
        """Keep the values at every point that fits."""
        seen: Seen = {}

        def keep(value: Tensor, point: HookPoint) -> None:
            seen[point] = value

        with self._standing([Hook(pattern, keep, when) for pattern in patterns]):
            yield seen

    def observed(self, executor: _Runs[X], when: When) -> Executor[X]:
        """The executor for one pass: itself, or one that tells the hooks."""
        if not self._hooks:
            return executor
        return Observed(executor, self, when=when, num_steps=self.rule.steps, num_reached=executor.batch.num_reached)

    def at(self, point: HookPoint) -> Callable[[Tensor], Tensor] | None:
        hooks = [hook for hook in self._hooks if hook.stands_at(point)]
        if not hooks:
            return None

        def tell(value: Tensor) -> Tensor:
            for hook in hooks:
                value = hook(value, point)
            return value

        return tell

    @contextmanager
    def _standing(self, hooks: Sequence[Hook]) -> Generator[None]:
        points = self.points()
        for hook in hooks:
            if not any(map(hook.stands_at, points)):
                place = "" if hook.when is None else f" with when={hook.when!r}"
                raise InputError(f"no hook point fits {hook.pattern!r}{place}; points() lists them all")
        self._hooks = [*self._hooks, *hooks]
        try:
            yield
        finally:
            self._hooks = [hook for hook in self._hooks if hook not in hooks]
