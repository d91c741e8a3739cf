"""Every theorem on the real tensors of a model."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tintformer.auxiliary.ops import Activation, Linear, Norm
from tintformer.rule.learning_rule import LearningRule
from tintlab.checks.theorems.attention_gradient import hard_attention
from tintlab.checks.theorems.check import Check
from tintlab.checks.theorems.differences import first_order_activation, first_order_norm
from tintlab.checks.theorems.linear_softmax import SoftmaxError, linear_as_softmax
from tintlab.checks.verify.recorder import Recorder, SeenOp, seen_attentions, seen_ops

DTYPES = (torch.float64, torch.float32)
"""In float64 the formulas are seen, in float32 what cancellation makes of them."""


def paper_step() -> float:
    """The step of the paper's differences, as its preset takes them."""
    return LearningRule.paper(learning_rate=0.0).difference_step("first_order")


def check_theorems(recorder: Recorder, *, step: float | None = None) -> list[Check]:
    """The theorems about gradients, on every norm, activation and attention of the recorded pass."""
    step = paper_step() if step is None else step
    checks = [check for seen in seen_ops(recorder) for check in _check_op(recorder, seen, step)]
    for seen in seen_attentions(recorder):
        checks += hard_attention(
            seen.heads, seen.dy, seen.op, seen.context, projections=seen.projections, name=seen.op.name
        )
    return checks


def _check_op(recorder: Recorder, seen: SeenOp, step: float) -> Iterator[Check]:
    op = seen.op
    for dtype in DTYPES:
        x, dy = seen.x.to(dtype), seen.dy.to(dtype)
        match op:
            case Norm():
                scale = recorder.scale(op)
                scale = None if scale is None else scale.to(dtype)
                yield first_order_norm(x, dy, scale, kind=op.kind, epsilon=op.epsilon, step=step, where=op.name)
            case Activation():
                yield first_order_activation(x, dy, function=op.function, step=step, where=op.name)
            case Linear():
                return


def check_linear_as_softmax(recorder: Recorder) -> list[SoftmaxError]:
    """Linear attention as softmax attention, on the value linears of the first and the last block of the first row.

    Forward, the keys are the rows of W and a query is a token: scores W x, values one-hot. In descent, the keys are the
    tokens and a query is a row of W: scores dy, values x.
    """
    last = len(recorder.auxiliary.blocks) - 1
    wanted = {f"blocks.{layer}.value" for layer in (0, last)}
    errors: list[SoftmaxError] = []
    for seen in seen_ops(recorder):
        if isinstance(seen.op, Linear) and seen.op.name in wanted:
            weight, x, dy = recorder.value(seen.op.weight), seen.x[0], seen.dy[0]
            one_hot = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
            errors += linear_as_softmax(x @ weight.mT, one_hot, where=f"{seen.op.name}, forward")
            errors += linear_as_softmax(dy.mT, x, where=f"{seen.op.name}, descent")
    return errors
