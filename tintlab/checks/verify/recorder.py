"""Real tensors of a model: the input and the true gradient of every op, for the theorems to be measured on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary, forks, ops
from tintformer.auxiliary.ops import Attend, Fork, Join, Linear, Norm, Op, Rotary
from tintformer.engines.reference import TensorExecutor
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.rule import norm
from tintformer.rule.attention import AttentionContext, AttentionHeads
from tintformer.rule.learning_rule import LearningRule
from tintlab.checks.theorems.attention_gradient import Projections


@dataclass(frozen=True, eq=False, kw_only=True)
class SeenOp:
    """What met an op on the way forth and back."""

    op: Op
    x: Tensor
    dy: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class SeenAttention:
    """The same of an attention, and what stands before it."""

    op: Attend
    heads: AttentionHeads
    context: AttentionContext
    dy: Tensor
    projections: Projections


class Recorder(TensorExecutor):
    """The reference, which also remembers: by op, the inputs, what was saved, and the gradient of the output."""

    def __init__(self, auxiliary: Auxiliary, batch: Batch):
        super().__init__(auxiliary, LearningRule.full(learning_rate=0.0), batch)
        self.saved: dict[str, Any] = {}
        self.gradients: dict[str, Tensor] = {}

    def backward(self, op: Op | Join, saved: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        self._remember(op, saved, gradient)
        return super().backward(op, saved, gradient)

    def descend(self, op: Op | Join, saved: Any, gradient: Tensor) -> None:
        self._remember(op, saved, gradient)  # the lowest ops have no backward, and nothing is to be trained

    def _remember(self, op: Op | Join, saved: Any, gradient: Tensor) -> None:
        self.saved[op.name], self.gradients[op.name] = saved, gradient

    def context(self, op: Attend) -> AttentionContext:
        return self._context(op, self.auxiliary.device)

    def scale(self, op: Norm) -> Tensor | None:
        return self._scale(op)


def record(auxiliary: Auxiliary, batch: Batch) -> Recorder:
    """Forward and true gradients of one batch; nothing is trained."""
    recorder = Recorder(auxiliary, batch)
    with torch.no_grad():
        walk.train(recorder, auxiliary, recorder.rule)
    return recorder


def seen_ops(recorder: Recorder) -> Iterator[SeenOp]:
    """Every op with one input that a gradient has met; norms by their groups."""
    auxiliary = recorder.auxiliary
    for op in (op for steps in (*auxiliary.blocks, auxiliary.final) for op in ops(steps)):
        if op.name in recorder.gradients:
            x, dy = recorder.saved[op.name][0], recorder.gradients[op.name]
            if isinstance(op, Norm):
                x, dy = norm.cut(x, op.num_groups), norm.cut(dy, op.num_groups)
            yield SeenOp(op=op, x=x, dy=dy)


def seen_attentions(recorder: Recorder) -> Iterator[SeenAttention]:
    """Every attention with its projections."""
    for block in recorder.auxiliary.blocks:
        for fork in forks(block):
            if isinstance(fork.join, Attend):
                yield SeenAttention(
                    op=fork.join,
                    heads=recorder.saved[fork.join.name],
                    context=recorder.context(fork.join),
                    dy=recorder.gradients[fork.join.name],
                    projections=_projections(recorder, fork, fork.join),
                )


def _projections(recorder: Recorder, fork: Fork, op: Attend) -> Projections:
    linears = [branch[0] for branch in fork.branches]
    assert all(isinstance(linear, Linear) for linear in linears), "an attention reads three linears"
    query, key, value = (linear for linear in linears if isinstance(linear, Linear))
    weights = [recorder.value(linear.weight) for linear in (query, key, value)]
    biases = [recorder.value(linear.bias) for linear in (query, key, value) if linear.bias is not None]
    gradients = (recorder.gradients[linear.name] for linear in (query, key))
    return Projections(
        x=recorder.saved[query.name][0],
        query=weights[0],
        key=weights[1],
        value=weights[2],
        biases=tuple(biases),
        query_gain=_gain(recorder, fork.branches[0][1:], op),
        key_gain=_gain(recorder, fork.branches[1][1:], op),
        left_out=sum(
            (gradient @ weight for gradient, weight in zip(gradients, weights[:2], strict=True)),
            start=torch.zeros_like(recorder.saved[query.name][0]),
        ),
    )


def _gain(recorder: Recorder, norms: tuple[Any, ...], op: Attend) -> Tensor | None:
    """How much the way back from the heads can stretch a gradient; None if it cannot.

    A rotation stretches by its scaling; a norm by its largest scale over the smallest deviation of a head, because its
    Jacobian is a projection divided by the deviation.
    """
    turn = max(1.0, op.position.scaling) if isinstance(op.position, Rotary) else 1.0
    if not norms:
        return None if turn == 1.0 else torch.full_like(recorder.saved[op.name].query[:, 0, 0, :, 0], turn)
    (between,) = norms
    x = recorder.saved[between.name][0]
    scale = recorder.scale(between)
    largest = 1.0 if scale is None else scale.abs().max()
    parts = x.unflatten(-1, (between.num_groups, -1))
    if between.kind == "layer":
        parts = parts - parts.mean(-1, keepdim=True)
    deviation = (parts.square().mean(-1) + between.epsilon).sqrt().amin(-1)
    return turn * largest / deviation
