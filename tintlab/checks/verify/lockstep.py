"""Two executors in lockstep: each op runs on the reference and on another executor, from the reference's inputs.

Whatever the other one gets wrong is measured where it happens and goes no further: the next op starts from the
reference's numbers again. Only what is kept in weights stays its own, so an error of a descent is seen again when the
updated weights are used (phase `updated`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary, ops
from tintformer.auxiliary.ops import Activation, Attend, Join, Norm, Op, Weight
from tintformer.engines.reference import TensorExecutor
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.execution.executor import Executor, Stage
from tintformer.rule.learning_rule import LearningRule

X = TypeVar("X")
CheckedPhase = Literal["forward", "backward", "descent", "updated"]
"""`updated` is the forward pass with the weights that descent has left."""


class Both(NamedTuple, Generic[X]):
    """One stream, as both executors see it."""

    plain: Tensor
    other: X


@dataclass(frozen=True, kw_only=True)
class ModuleError:
    """How far one op of the checked executor is from the reference, in one phase."""

    module: str
    """The op without its block: `query`, `attention_norm`, `final.norm`, `embedding`, `head`."""
    layer: int | None
    """The block that it stands in; None outside of the blocks."""
    phase: CheckedPhase
    absolute: float
    """Largest difference of a coordinate."""
    relative: float
    """The same, relative to the largest coordinate of the reference."""
    by_difference: bool
    """The rule asks for a gradient that may be carried out as a difference here, so that exactness is not to be had."""


def compare(auxiliary: Auxiliary, rule: LearningRule, batch: Batch, other: Executor[Any]) -> list[ModuleError]:
    """Train in the pass in lockstep with the reference: the error of every op in every phase that it has, in order."""
    lockstep = Lockstep(auxiliary, rule, batch, other)
    with torch.no_grad():
        walk.train_in_the_pass(lockstep, auxiliary, rule)
        lockstep.compare_updates()
    names = dict.fromkeys(name for name, _ in lockstep.errors)
    order = {key: index for index, key in enumerate(product(names, get_args(CheckedPhase)))}
    return [lockstep.errors[key] for key in sorted(lockstep.errors, key=lambda key: order[key])]


class Lockstep(Generic[X]):
    """Implements `Executor` on pairs of streams and keeps the largest error of each op and phase."""

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, batch: Batch, other: Executor[X]):
        self.auxiliary, self.rule, self.batch, self.other = auxiliary, rule, batch, other
        self.reference = TensorExecutor(auxiliary, rule, batch)
        self.errors: dict[tuple[str, CheckedPhase], ModuleError] = {}
        self._forward_phase: CheckedPhase = "forward"
        self._open_forks: list[str] = []

    def begin(self, stage: Stage) -> None:
        # What has been learnt is in use from the second step on, and in the pass after the last one.
        self._forward_phase = "updated" if stage.phase == "after" or (stage.step or 0) > 1 else "forward"
        self.reference.begin(stage)
        self.other.begin(stage)

    def embed(self) -> Both[X]:
        return self._both("embedding", "forward", self.reference.embed(), self.other.embed())

    def training_part(self, x: Both[X]) -> Both[X]:
        return Both(self.reference.training_part(x.plain), self.other.training_part(x.other))

    def move(self, x: Both[X], device: torch.device) -> Both[X]:
        return Both(self.reference.move(x.plain, device), self.other.move(x.other, device))

    def forward(self, op: Op | Join, inputs: tuple[Both[X], ...]) -> tuple[Both[X], Any]:
        plain, saved = self.reference.forward(op, tuple(each.plain for each in inputs))
        other, other_saved = self.other.forward(op, tuple(each.other for each in inputs))
        return self._both(op.name, self._forward_phase, plain, other), (saved, other_saved)

    def backward(self, op: Op | Join, saved: Any, gradient: Both[X]) -> tuple[Both[X] | None, ...]:
        if isinstance(op, Join):
            self._open_forks.append(op.name)
        found = self.reference.backward(op, saved[0], gradient.plain)
        other = self.other.backward(op, saved[1], gradient.other)
        inexact = _by_difference(self.rule, op)
        return tuple(
            self._gradient(op.name, plain, stream, inexact) for plain, stream in zip(found, other, strict=True)
        )

    def _gradient(self, name: str, plain: Tensor | None, other: X | None, inexact: bool) -> Both[X] | None:
        if plain is None and other is None:
            return None
        if plain is None or other is None:
            raise AssertionError(f"only one executor sends a gradient to every input of {name}")
        return self._both(name, "backward", plain, other, inexact)

    def descend(self, op: Op | Join, saved: Any, gradient: Both[X]) -> None:
        self.reference.descend(op, saved[0], gradient.plain)
        self.other.descend(op, saved[1], gradient.other)

    def add(self, terms: Sequence[Both[X]]) -> Both[X]:
        """The sum belongs to the fork whose branches have just been walked back, the innermost open one."""
        plain = self.reference.add([term.plain for term in terms])
        return self._both(self._open_forks.pop(), "backward", plain, self.other.add([term.other for term in terms]))

    def loss_gradient(self, x: Both[X]) -> Both[X]:
        self._open_forks.clear()
        return self._both("head", "backward", self.reference.loss_gradient(x.plain), self.other.loss_gradient(x.other))

    def plain(self, stream: Both[X]) -> Tensor:
        return stream.plain

    def stream(self, tensor: Tensor, like: Both[X]) -> Both[X]:
        return Both(tensor, self.other.stream(tensor, like.other))

    def updates_of(self, op: Op | Join, row: int | None = None) -> dict[Weight, Tensor]:
        return self.reference.updates_of(op, row)

    def compare_updates(self) -> None:
        """After the walk: what each op's weights have learnt, in all steps together.

        Weights and biases of an op are measured on one scale: a key's bias, to which a softmax is blind, moves by
        nothing but rounding. Where an executor stores the weight and not its update, a small rate drowns the update in
        the rounding of the weight: choose a large one.
        """
        for op in (op for steps in (*self.auxiliary.blocks, self.auxiliary.final) for op in ops(steps)):
            expected, found = self.reference.updates_of(op), self.other.updates_of(op)
            if expected:
                plain, other = (
                    torch.cat([each[weight].flatten(1) for weight in expected], dim=1) for each in (expected, found)
                )
                self._record(op.name, "descent", difference(other, plain), False)

    def _both(self, name: str, phase: CheckedPhase, plain: Tensor, other: X, inexact: bool = False) -> Both[X]:
        """Compare, then go on from the reference's numbers."""
        seen = self.other.plain(other)
        kept = plain[:, : seen.shape[1]]
        attended = self.batch.attention_mask[:, : seen.shape[1]]
        self._record(name, phase, difference(seen[attended], kept[attended]), inexact)
        return Both(plain, self.other.stream(kept, other))

    def _record(self, name: str, phase: CheckedPhase, error: tuple[float, float], inexact: bool) -> None:
        absolute, relative = error
        known = self.errors.get((name, phase))
        layer, module = split_name(name)
        self.errors[name, phase] = ModuleError(
            module=module,
            layer=layer,
            phase=phase,
            absolute=absolute if known is None else max(absolute, known.absolute),
            relative=relative if known is None else max(relative, known.relative),
            by_difference=inexact or (known is not None and known.by_difference),
        )


def difference(found: Tensor, expected: Tensor) -> tuple[float, float]:
    """The largest difference, and the same relative to the largest expected number; NaN counts as infinite."""
    if found.shape != expected.shape:
        raise AssertionError(f"shapes differ: {tuple(found.shape)} found, {tuple(expected.shape)} expected")
    wide = torch.promote_types(found.dtype, expected.dtype)
    absolute = float((found.to(wide) - expected.to(wide)).abs().max().nan_to_num(nan=torch.inf, posinf=torch.inf))
    largest = float(expected.abs().max())
    relative = absolute / largest if largest > 0 else 0.0 if absolute == 0 else float("inf")
    return absolute, relative


def split_name(name: str) -> tuple[int | None, str]:
    """`blocks.3.query` is the query of block 3; everything else stands outside of the blocks."""
    if not name.startswith("blocks."):
        return None, name
    _, layer, module = name.split(".", 2)
    return int(layer), module


def _by_difference(rule: LearningRule, op: Op | Join) -> bool:
    """Whether a gradient is a difference. An exact attention gradient counts: the simulator perturbs a softmax."""
    match op:
        case Norm():
            return rule.norm_gradient != "exact"
        case Activation():
            return rule.activation_gradient != "exact"
        case Attend():
            return rule.attention_gradient != "value"
        case _:
            return False
