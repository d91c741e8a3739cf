"""An executor that tells hooks what passes through it; the walk does not know the difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from tintformer.auxiliary.ops import Join, Op, Weight
from tintformer.execution.hook_points import HookPoint, When, input_names, update_names
from tintformer.execution.walk import Readable

X = TypeVar("X")


class Observable(Readable[X], Protocol[X]):
    """An executor that can also say how far it has moved the weights of an op."""

    def changes_of(self, op: Op | Join, /) -> dict[Weight, Tensor]:
        """The change of each weight that has moved, all steps together: `[R, ...]`, R updates."""
        ...


class Listeners(Protocol):
    """Who hears of points."""

    def at(self, point: HookPoint, /) -> Callable[[Tensor], Tensor] | None:
        """What to do with the value at a point; None if nobody listens there."""
        ...


class Observed(Generic[X]):
    """Implements `walk.Executor` by another executor, and hands every value to the listeners on its way.

    Values are the auxiliary's own, `[B, T, width]`, whatever form the executor's streams have. In a step they are those
    of the tokens that the loss depends on: how many more an executor carries along is its own affair.
    """

    def __init__(self, executor: Observable[X], listeners: Listeners, *, when: When, num_steps: int, num_reached: int):
        self.executor, self.listeners = executor, listeners
        self.when: When = when
        self.num_steps, self.num_reached = num_steps, num_reached
        self._turned = False
        self._arrived: tuple[Op | Join, X, X] | None = None

    def embed(self) -> X:
        return self._told("embedding.output", self.executor.embed())

    def training_part(self, x: X) -> X:
        self.when = 1
        return self.executor.training_part(x)

    def forward(self, op: Op | Join, inputs: tuple[X, ...]) -> tuple[X, Any]:
        if self._turned:
            self._begin_next_pass()
        names = input_names(op, len(inputs))
        y, saved = self.executor.forward(op, tuple(map(self._told, names, inputs)))
        return self._told(f"{op.name}.output", y), saved

    def loss_gradient(self, x: X) -> X:
        self._turned = True
        return self.executor.loss_gradient(x)

    def backward(self, op: Op | Join, saved: Any, gradient: X) -> tuple[X | None, ...]:
        return self.executor.backward(op, saved, self._arriving(op, gradient))

    def descend(self, op: Op | Join, saved: Any, gradient: X) -> None:
        gradient = self._arriving(op, gradient)
        listeners = {weight: self.listeners.at(HookPoint(self.when, name)) for weight, name in update_names(op).items()}
        heard = {weight: listener for weight, listener in listeners.items() if listener is not None}
        before = self.executor.changes_of(op) if heard else {}
        self.executor.descend(op, saved, gradient)
        after = self.executor.changes_of(op) if heard else {}
        for weight, change in after.items():
            if weight in heard:
                heard[weight](change - before[weight] if weight in before else change)

    def move(self, x: X, device: torch.device) -> X:
        return self.executor.move(x, device)

    def add(self, terms: Sequence[X]) -> X:
        return self.executor.add(terms)

    def _begin_next_pass(self) -> None:
        """The walk turns round at the loss; the first forward after that belongs to the next step, or to the end."""
        assert isinstance(self.when, int), "a loss is taken in steps only"
        self.when = self.when + 1 if self.when < self.num_steps else "after"
        self._turned, self._arrived = False, None

    def _arriving(self, op: Op | Join, gradient: X) -> X:
        """The gradient at an op's output. Its backward and its descent are given the same one: it is told once."""
        if self._arrived is None or self._arrived[0] is not op or self._arrived[1] is not gradient:
            self._arrived = op, gradient, self._told(f"{op.name}.gradient", gradient)
        return self._arrived[2]

    def _told(self, name: str, stream: X) -> X:
        """The stream after the listeners have had their say."""
        listener = self.listeners.at(HookPoint(self.when, name))
        if listener is None:
            return stream
        value = self.executor.plain(stream)
        num_tokens = self.num_reached if isinstance(self.when, int) else value.shape[1]
        shown = value[:, :num_tokens]
        answer = listener(shown)
        if answer is shown:
            return stream
        return self.executor.stream(torch.cat((answer, value[:, num_tokens:]), dim=1), stream)
