"""The walk without numbers: which points a pass comes by, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Attend, Join, Op, Weight
from tintformer.execution import walk
from tintformer.execution.hook_points import HookPoint, When
from tintformer.execution.observed import Observed
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.trainable import moving

NOTHING = torch.empty(1, 0, 0)


def rehearse(auxiliary: Auxiliary, rule: LearningRule, *, learns: bool) -> list[HookPoint]:
    """Every point that a pass before learning and one with learning come by; without learning, that of the latter."""
    points: list[HookPoint] = []

    def observed(when: When) -> Observed[Tensor]:
        return Observed(_Rehearsal(rule), _Recorder(points), when=when, num_steps=rule.steps, num_reached=0)

    if learns:
        walk.forward_pass(observed("before"), auxiliary)
        walk.train_in_the_pass(observed("below"), auxiliary, rule)
    else:
        walk.forward_pass(observed("after"), auxiliary)
    return points


class _Recorder:
    """Listens everywhere and notes where it was."""

    def __init__(self, points: list[HookPoint]):
        self.points = points

    def at(self, point: HookPoint) -> Callable[[Tensor], Tensor]:
        def note(value: Tensor) -> Tensor:
            self.points.append(point)
            return value

        return note


class _Rehearsal:
    """Implements `Observable` with streams that carry nothing."""

    def __init__(self, rule: LearningRule):
        self.rule = rule

    def embed(self) -> Tensor:
        return NOTHING

    def training_part(self, x: Tensor) -> Tensor:
        return x

    def forward(self, op: Op | Join, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        return NOTHING, len(inputs)

    def backward(self, op: Op | Join, saved: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if isinstance(op, Attend) and self.rule.attention_gradient == "value":
            return None, None, NOTHING
        return (NOTHING,) * saved

    def descend(self, op: Op | Join, saved: Any, gradient: Tensor) -> None:
        pass

    def move(self, x: Tensor, device: torch.device) -> Tensor:
        return x

    def add(self, terms: Sequence[Tensor]) -> Tensor:
        return NOTHING

    def loss_gradient(self, x: Tensor) -> Tensor:
        return NOTHING

    def plain(self, stream: Tensor) -> Tensor:
        return stream

    def stream(self, tensor: Tensor, like: Tensor) -> Tensor:
        return tensor

    def changes_of(self, op: Op | Join) -> dict[Weight, Tensor]:
        return dict.fromkeys(moving(self.rule, op), NOTHING)
