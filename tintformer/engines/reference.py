"""The reference engine: the walk on plain tensors, every formula as it stands in `rule`, no tricks.

B batch, T tokens. Weights with an update carry a batch dimension: every sequence has its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary, compute_dtype
from tintformer.auxiliary.ops import Activation, Add, Attend, Join, Linear, Norm, Op, Product, Rotary, Weight
from tintformer.errors import DivergenceError
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.execution.engine import row_updates, undisturbed
from tintformer.execution.executor import TensorStreams
from tintformer.execution.hooks import Hooks
from tintformer.execution.non_finite import check_model, gradient_error, is_finite
from tintformer.execution.output import EngineResult, predict
from tintformer.rule import activation, attention, head, linear, norm
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import Moments, StepSize, by_weight, trained_weights


class ReferenceEngine:
    """The meaning of the learning rule, written for reading."""

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, *, statistics: Mapping[str, Tensor] | None = None):
        self.auxiliary, self.rule = auxiliary, rule
        self.statistics = by_weight(statistics, auxiliary, rule)
        self.hooks = Hooks(auxiliary, rule)

    @undisturbed
    @torch.no_grad()
    def run(self, batch: Batch, *, logits_at: Bool[Tensor, "B T"] | None, before: bool) -> EngineResult:
        """Train every sequence on its own, then predict."""
        executor = TensorExecutor(self.auxiliary, self.rule, batch, statistics=self.statistics)
        observed = self.hooks.observed(executor, batch)
        # First, as long as the executor has no updates: it reads every weight through them.
        x_before = walk.forward_pass(observed, self.auxiliary, "before") if before else None
        x = walk.train_in_the_pass(observed, self.auxiliary, self.rule)
        check_stream(x, self.auxiliary, self.rule, batch)
        return EngineResult(
            after=predict(batch, x, logits_at, executor.logits),
            before=None if x_before is None else predict(batch, x_before, logits_at, executor.logits),
            updates=lambda row: row_updates(executor, self.auxiliary, self.rule, row),
        )


def check_stream(x: Tensor, auxiliary: Auxiliary, rule: LearningRule, batch: Batch) -> None:
    """Raise if the stream after learning is non-finite, naming the cause: the model, its gradient or the rate."""
    if is_finite(x):
        return
    check_model(TensorExecutor(auxiliary, rule, batch), auxiliary)
    # With a rate of 0 nothing moves but by a gradient that is itself non-finite: 0 times infinity is NaN.
    standing = replace(rule, learning_rate=0.0, steps=1)
    still = replace(batch, rates=None)
    if not is_finite(walk.train_in_the_pass(TensorExecutor(auxiliary, standing, still), auxiliary, standing)):
        raise gradient_error("the gradient", auxiliary, rule)
    raise DivergenceError.at("the stream at the head", batch.largest_rate(rule))


class TensorExecutor(TensorStreams):
    """Executes ops on `[B, T, width]` tensors; implements `Executor`."""

    def __init__(
        self,
        auxiliary: Auxiliary,
        rule: LearningRule,
        batch: Batch,
        *,
        statistics: Mapping[Weight, Tensor] | None = None,
    ):
        self.auxiliary, self.rule, self.batch, self.statistics = auxiliary, rule, batch, statistics
        self.moments: dict[Weight, Moments] = {}
        self.dtype = compute_dtype(auxiliary.dtype)
        self.updates: dict[Weight, Tensor] = {}
        self.masks: dict[tuple[int | None, torch.device], Tensor] = {}
        self.rotations: dict[tuple[Rotary, torch.device], attention.Rotation] = {}

    def value(self, weight: Weight | None) -> Any:
        """A weight's current value: one for each sequence once it has an update."""
        if weight is None:
            return None
        # Half precisions are widened before anything is added: an update may be below a weight's last digit.
        base = weight.read().to(self.dtype)
        # A weight for each sequence, formed at every use: the memory that the fast engine's factors save.
        return base + self.updates[weight] if weight in self.updates else base

    def updates_of(self, op: Op | Join, row: int | None = None) -> dict[Weight, Tensor]:
        found = {weight: self.updates[weight] for weight in trained_weights(self.rule, op) if weight in self.updates}
        return found if row is None else {weight: update[row] for weight, update in found.items()}

    def embed(self) -> Float[Tensor, "B T D"]:
        # In the order of the families that have these parts: Gemma scales, OPT-350m projects before positions are
        # added, BLOOM normalises the sum. None of them is trained.
        embedding = self.auxiliary.embedding
        x = embedding.tokens.rows(self.batch.inputs).to(self.dtype) * embedding.scale
        if embedding.projection is not None:
            x, _ = self.forward(embedding.projection, (x,))
        if embedding.positions is not None:
            x = x + embedding.positions.rows(self.batch.positions + embedding.position_offset).to(self.dtype)
        if embedding.norm is not None:
            x, _ = self.forward(embedding.norm, (x,))
        return x

    def logits(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        return head.forward(x, self.value(self.auxiliary.head.weight), self.value(self.auxiliary.head.bias))

    def loss_gradient(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        weight, bias = self.value(self.auxiliary.head.weight), self.value(self.auxiliary.head.bias)
        batch, mean = self.batch.on(x.device), self.rule.reduction == "mean"
        trained, loss = batch.train_positions_at(self.stage.step), head.loss_of(self.rule, self.auxiliary)
        return head.loss_gradient(x, weight, bias, batch.targets, trained, loss=loss, mean=mean)

    def add(self, terms: Sequence[Tensor]) -> Tensor:
        # Out of place, since a term may be on the tape.
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def forward(self, op: Op | Join, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        match op:
            case Linear():
                return linear.forward(inputs[0], self.value(op.weight), self.value(op.bias)), inputs
            case Norm():
                # A query/key norm treats heads apart; cut, they are tokens, and the formulas stay as they are.
                grouped = norm.cut(inputs[0], op.num_groups)
                y = norm.forward(grouped, self._scale(op), self.value(op.bias), kind=op.kind, epsilon=op.epsilon)
                return y.view_as(inputs[0]), inputs
            case Activation():
                return activation.forward(inputs[0], function=op.function), inputs
            case Add():
                return self.add(inputs), inputs
            case Product():
                return inputs[0] * inputs[1], inputs
            case Attend():
                context = self._context(op, inputs[0].device)
                heads = attention.split(inputs, op, context)
                # The heads are saved, positions applied: what backward needs of queries, keys and values.
                return attention.forward(heads, op, context), heads

    def backward(self, op: Op | Join, saved: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rule = self.rule
        match op:
            case Linear():
                return (linear.backward(gradient, self.value(op.weight)),)
            case Norm():
                dx = norm.backward(
                    norm.cut(saved[0], op.num_groups),
                    norm.cut(gradient, op.num_groups),
                    self._scale(op),
                    kind=op.kind,
                    epsilon=op.epsilon,
                    scheme=rule.norm_gradient,
                    step=rule.difference_step(rule.norm_gradient),
                    mode=rule.epsilon_mode,
                )
                return (dx.view_as(gradient),)
            case Activation():
                dx = activation.backward(
                    saved[0],
                    gradient,
                    function=op.function,
                    scheme=rule.activation_gradient,
                    step=rule.difference_step(rule.activation_gradient),
                    mode=rule.epsilon_mode,
                )
                return (dx,)
            case Add():
                return (gradient,) * len(saved)
            case Product():
                # With the activation's backward behind it this is the paper's "Auxiliary GLU backpropagation".
                return gradient * saved[1], gradient * saved[0]
            case Attend():
                return attention.backward(
                    saved,
                    gradient,
                    op,
                    self._context(op, gradient.device),
                    scheme=rule.attention_gradient,
                    step=rule.difference_step(rule.attention_gradient),
                    mode=rule.epsilon_mode,
                )

    def descend(self, op: Op | Join, saved: Any, gradient: Tensor) -> None:
        trained = trained_weights(self.rule, op)
        match op:
            case Linear():
                # Paper, "Linear descent". Summed over tokens, as the loss is; every sequence keeps its own sum.
                gradients = {op.weight: linear.weight_gradient(saved[0], gradient)}
                if op.bias is not None:
                    gradients[op.bias] = linear.bias_gradient(gradient)
            case Norm():
                x, dy = norm.cut(saved[0], op.num_groups), norm.cut(gradient, op.num_groups)
                gradients = {} if op.bias is None else {op.bias: norm.bias_gradient(dy)}
                if op.scale in trained:
                    gradients[op.scale] = norm.scale_gradient(x, dy, kind=op.kind, epsilon=op.epsilon)
            case _:
                raise AssertionError(f"{op.name} has no parameters")
        # Updates stand beside the weights and add up over the steps: the auxiliary itself never changes.
        by = self._step_size(op.name)
        for weight in trained:
            moments = self.moments.setdefault(weight, Moments())
            rms = None if self.statistics is None else self.statistics[weight]
            self.updates[weight] = moments.move(self.updates.get(weight), gradients[weight], self.rule, by, rms)

    def _step_size(self, op: str) -> StepSize:
        step = self.stage.step or 1
        active = self.batch.train_positions_at(step).any(1)
        return StepSize.of(self.rule, op, (step,), rates=self.batch.rates, active=active)

    def _scale(self, op: Norm) -> Tensor | None:
        scale = self.value(op.scale)
        # Gemma stores the scale less 1; the gradient is that of the scale all the same.
        return scale + 1 if op.unit_offset and scale is not None else scale

    def _context(self, op: Attend, device: torch.device) -> attention.AttentionContext:
        batch = self.batch.on(device)
        # Blocks differ in their windows (GPT-Neo, Qwen2) and devices, and in nothing else that a mask depends on.
        if (op.window, device) not in self.masks:
            self.masks[op.window, device] = batch.additive_mask(self.dtype, op.window)[:, None, None]
        positions, rotary = batch.positions, op.position
        if isinstance(rotary, Rotary) and (rotary, device) not in self.rotations:
            self.rotations[rotary, device] = attention.rotation(rotary, positions, self.dtype)
        rotation = self.rotations[rotary, device] if isinstance(rotary, Rotary) else None
        return attention.AttentionContext(mask=self.masks[op.window, device], positions=positions, rotation=rotation)
