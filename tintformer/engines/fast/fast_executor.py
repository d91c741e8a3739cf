"""Executes the walk on tensors at speed: fused products, factored updates, chunked heads.

B batch, T tokens, n tokens that training reaches, V vocabulary. Whatever the tape saves is never changed in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from tintformer.auxiliary.description import Auxiliary, compute_dtype
from tintformer.auxiliary.ops import Activation, Add, Attend, Join, Linear, Norm, Op, Product, Weight
from tintformer.engines.fast import kernels
from tintformer.engines.fast.kernels import FusedAttention
from tintformer.engines.fast.update_costs import UpdateUse, prefers_dual, smaller_as_factors
from tintformer.engines.fast.updates import MatrixUpdate, Updates
from tintformer.errors import DivergenceError
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.execution.continuation import KeyValueCache
from tintformer.execution.executor import TensorStreams
from tintformer.execution.non_finite import check_model, gradient_error, is_finite
from tintformer.rule import activation, head, norm
from tintformer.rule.attention import AttentionHeads, merge_key
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import Moments, StepSize, trained_weights

Targets = Shaped[Tensor, "rows *vector"]
"""Tokens, or vectors."""
BUDGET = 64 * 2**20
"""Bytes that the scores of an attention chunk, or the logits of a chunk of positions, may take."""


class FastExecutor(TensorStreams):
    """Implements `Executor` on `[B, T, width]` tensors."""

    def __init__(
        self,
        auxiliary: Auxiliary,
        rule: LearningRule,
        batch: Batch,
        *,
        updates: Updates | None = None,
        dual: bool | None = None,
        pooled: bool = False,
        budget: int = BUDGET,
        cache: KeyValueCache | None = None,
        start: int = 0,
        statistics: Mapping[Weight, Tensor] | None = None,
    ):
        """`cache` keeps keys and values; the tokens before `start` are read from it and not computed again.

        `statistics` are root mean squares of gradients, for rules that divide by them.
        """
        self.statistics = statistics
        self.auxiliary, self.rule, self.batch, self.start = auxiliary, rule, batch, start
        self.updates = Updates() if updates is None else updates
        self.dual, self.pooled, self.budget = dual, pooled, budget
        self.wide = compute_dtype(auxiliary.dtype)
        self.attention = FusedAttention(batch, self.wide, budget, cache=cache, start=start)
        self.steps_taken = 0
        """For messages: what is non-finite from here on, this many steps have led to."""
        self.gradient_sums: dict[str, Tensor] = {}
        """Of the current step, by op: what is non-finite there has diverged."""
        self.checks_outputs = False
        self._fused: tuple[Tensor, Tensor, Tensor] | None = None

    def embed(self) -> Float[Tensor, "B T D"]:
        embedding = self.auxiliary.embedding
        x = embedding.tokens.rows(self.batch.inputs[:, self.start :])
        if embedding.scale != 1.0:
            x = x * embedding.scale
        if embedding.projection is not None:
            x, _ = self.forward(embedding.projection, (x,))
        if embedding.positions is not None:
            # Not widened, here or between ops: the stream has the model's own dtype, as it has in Hugging Face's pass.
            rows = self.batch.positions[:, self.start :] + embedding.position_offset
            x = x + embedding.positions.rows(rows)
        if embedding.norm is not None:
            x, _ = self.forward(embedding.norm, (x,))
        return x

    def training_part(self, x: Tensor) -> Tensor:
        # Attention is causal: no loss depends on the tokens behind the last target, whose gradients are exactly zero.
        return x[:, : self.batch.num_reached - self.start]

    def add(self, terms: Sequence[Tensor]) -> Tensor:
        # In place on the sum that is made here alone: the terms themselves may be on the tape, or wanted by others.
        total = terms[0] if len(terms) == 1 else terms[0] + terms[1]
        for term in terms[2:]:
            total += term
        return total

    def forward(self, op: Op | Join, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        y, saved = self._forward(op, inputs)
        if self.checks_outputs and not bool(torch.isfinite(y).all()):
            raise self._divergence(f"the output of {op.name}")
        return y, saved

    def _forward(self, op: Op | Join, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        match op:
            case Linear():
                return self._linear(op, inputs[0]), inputs[0]
            case Norm():
                return self._norm(op, inputs[0])
            case Activation():
                return kernels.activation_forward(op.function, inputs[0]), inputs[0]
            case Add():
                # The number of branches is all that backward needs; the streams themselves would be kept for nothing.
                return self.add(inputs), len(inputs)
            case Product():
                return inputs[0] * inputs[1], inputs
            case Attend():
                heads = self.attention.heads(op, inputs)
                return self.attention.forward(op, heads), heads

    def backward(self, op: Op | Join, saved: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        match op:
            case Linear():
                return (self._linear_backward(op, gradient),)
            case Norm():
                return (self._norm_backward(op, saved, gradient),)
            case Activation():
                return (self._activation_backward(op, saved, gradient),)
            case Add():
                return (gradient,) * saved
            case Product():
                return gradient * saved[1], gradient * saved[0]
            case Attend():
                found = self.attention.backward(op, saved, gradient, self.rule)
                if found.query is None or found.key is None:
                    return None, None, merge_key(found.value)
                return self.attention.merge(op, AttentionHeads(found.query, found.key, found.value))

    def descend(self, op: Op | Join, saved: Any, gradient: Tensor) -> None:
        # An update in the making, and so float32 at least, as all sums are that end beside a weight.
        total = gradient.sum(1, dtype=self.wide)
        # One number an op, looked at once a step: to ask of each gradient whether it is finite would wait for the
        # device every time. What is non-finite stays so in a sum.
        self.gradient_sums[op.name] = total.sum()
        by = self.step_size(op)
        for weight in trained_weights(self.rule, op):
            if isinstance(op, Linear) and weight is op.weight:
                x, g = self._factors(saved, gradient)
                self._matrix(op).step(x, g, self.rule, by, self.rms_of(weight))
            else:
                self._update_vector(weight, self._vector_gradient(op, weight, saved, gradient, total), by)

    def step_size(self, op: Op | Join) -> StepSize:
        """How far the weights of an op move in this step."""
        active = None
        if self.rule.remembers and not self.pooled:
            targets = self.batch.train_positions_at(self.stage.step).any(1)
            active = None if bool(targets.all()) else targets
        steps = self.numbers(self.stage.step or 1)
        return StepSize.of(self.rule, op.name, steps, rates=self.batch.rates, active=active)

    def numbers(self, step: int) -> Sequence[int]:
        """The number of a step of this pass among all that have been made, row by row or one for all."""
        return ((self.updates.steps_made or 0) + step,)

    def rms_of(self, weight: Weight) -> Tensor | None:
        """The root mean square of a weight's gradients, where the rule divides by it."""
        return None if self.statistics is None else self.statistics[weight]

    def updates_of(self, op: Op | Join, row: int | None = None) -> dict[Weight, Tensor]:
        return self.updates.formed(trained_weights(self.rule, op), row)

    def _vector_gradient(self, op: Op | Join, weight: Weight, saved: Any, gradient: Tensor, total: Tensor) -> Tensor:
        """The gradient of a bias or a scale, `[B, D]`."""
        if not isinstance(op, Norm):
            return total
        # `total` does not serve a query/key norm, whose heads share one scale: they are summed over like tokens.
        dy = norm.cut(gradient, op.num_groups).to(self.wide)
        if weight is op.scale:
            dy = dy * norm.normalise(saved.x, kind=op.kind, epsilon=op.epsilon)
        return dy.sum(1)

    def _update_vector(self, weight: Weight, gradient: Tensor, by: StepSize) -> None:
        # One update of all sequences is that of their summed losses:
        # gradients are linear in the loss, so sums are enough.
        gradient = gradient.sum(0, keepdim=True) if self.pooled else gradient
        moments = self.updates.moments.setdefault(weight, Moments())
        known = self.updates.vectors.get(weight)
        self.updates.vectors[weight] = moments.move(known, gradient, self.rule, by, self.rms_of(weight))

    def check_gradients(self) -> None:
        """After a step: raise if a gradient is non-finite, naming the op."""
        sums, self.gradient_sums = self.gradient_sums, {}
        totals = [total.to(self.auxiliary.device) for total in sums.values()]
        if totals and not bool(torch.isfinite(torch.stack(totals)).all()):
            first = next(name for name, total in sums.items() if not bool(torch.isfinite(total)))
            if self.steps_taken <= 1:
                raise gradient_error(f"the gradient at {first}", self.auxiliary, self.rule)
            raise self._divergence(f"the gradient at {first}")

    def check_updates(self) -> None:
        """After the last step: raise if the update of a parameter is non-finite, naming it."""
        self.check_gradients()
        # Factors are inputs and gradients, which have been looked at; a formed product of the two may still overflow.
        formed = {weight: update.dense for weight, update in self.updates.matrices.items()} | self.updates.vectors
        for weight, update in formed.items():
            if update is not None and not is_finite(update):
                raise self._divergence(f"the update of {weight.name}")

    def check(self, x: Tensor) -> None:
        """After a step: raise if a gradient, or the stream `x`, is non-finite, naming the place."""
        self.check_gradients()
        if not is_finite(x):
            # Only to name the op: the pass is run once more, now with every output looked at; first without updates,
            # since a model may have been non-finite all along.
            check_model(FastExecutor(self.auxiliary, self.rule, self.batch, budget=self.budget), self.auxiliary)
            self.checks_outputs = True
            walk.read(self, self.auxiliary)
            raise self._divergence("the stream at the head")

    def _divergence(self, where: str) -> DivergenceError:
        when = f" after step {self.steps_taken} of {self.rule.steps}" if self.steps_taken else ""
        return DivergenceError.at(where, self.batch.largest_rate(self.rule), when)

    def _factors(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and gradients whose product is the gradient of a matrix."""
        if self.pooled:
            # All tokens of all sequences in a row: sum_b sum_t g x^T is one
            # product, and padding adds nothing to it but rank.
            kept = self.batch.on(x.device).attention_mask[:, : x.shape[1]]
            x, gradient = x[kept][None], gradient[kept][None]
        return x, gradient

    def _matrix(self, op: Linear) -> MatrixUpdate:
        """The update of a linear's matrix, in the form that costs less."""
        if op.weight not in self.updates.matrices:
            dual = self.dual
            outputs, inputs = op.weight.read().shape
            if self.rule.needs_matrices:
                dual = False
            elif self.pooled:  # used again and again: what takes less memory is also what reads faster
                dual = smaller_as_factors(inputs, outputs, pooled_rank(self.rule, self.batch))
            elif dual is None:
                tokens, steps = self.batch.input_ids.shape[1], self.rule.steps
                use = UpdateUse(trained=self.batch.num_reached, tokens=tokens, steps=steps)
                dual = prefers_dual(inputs, outputs, use)
            self.updates.matrices[op.weight] = MatrixUpdate(dual=dual, keep=self.pooled or self.rule.steps > 1)
        return self.updates.matrices[op.weight]

    def _linear(self, op: Linear, x: Tensor) -> Tensor:
        update = self.updates.matrices.get(op.weight)
        bias_update = None if op.bias is None else self.updates.vectors.get(op.bias)
        if update is None:  # and yet the bias may have an update, if that of the matrix alone was taken away
            y = self._shared_product(op, x)
            return y if bias_update is None else (y + bias_update[:, None]).to(y.dtype)
        # W x - rate G^T (X x): W meets the whole batch at once, and only the thin factors are each
        # sequence's own. With X as keys, G as values and x as the query this is a linear attention to the
        # training part. The update of the bias has the same factors with an input of 1, so it is one added
        # to each score and costs no product of its own.
        if update.dual:
            y = self._shared_product(op, x)
            implied = bias_update is not None and not update.own_bias
            for factors in update.factors:
                y = factors.add_forward(y, x, with_bias=implied)
            return y if implied or bias_update is None else (y + bias_update[:, None]).to(y.dtype)
        matrices = self.formed(op, update)
        # A formed matrix is float32 at least, so x is widened for this product and its result rounded once.
        y = x.to(matrices.dtype) @ (matrices.mT if len(matrices) == len(x) else matrices[0].mT)
        if op.bias is not None:
            y += op.bias.read() if bias_update is None else (op.bias.read() + bias_update)[:, None]
        return y.to(x.dtype)

    def formed(self, op: Linear, update: MatrixUpdate) -> Float[Tensor, "R O I"]:
        """The updated matrix."""
        return update.matrix(op.weight.read())

    def _shared_product(self, op: Linear, x: Tensor) -> Tensor:
        """W x + b for the whole batch at once; fused projections are multiplied once for all their parts."""
        part = op.weight.part
        if part is None or self._has_dense_part(op.weight):
            return functional.linear(x, op.weight.read(), None if op.bias is None else op.bias.read())
        # The branches of a fork are given the same tensor, one after the other; the first
        # multiplies for all. Identity is the test, so a hook that replaces the input of one branch
        # is noticed. The last branch lets go of the memory.
        if self._fused is None or self._fused[0] is not x or self._fused[1] is not op.weight.source:
            matrix = op.weight.whole().mT if op.weight.transposed else op.weight.whole()
            y = functional.linear(x, matrix, None if op.bias is None else op.bias.whole())
            self._fused = x, op.weight.source, y
        y = self._fused[2].unflatten(-1, (part.groups, part.count, -1))[..., part.index, :].flatten(-2)
        if part.index == part.count - 1:
            self._fused = None
        return y

    def _has_dense_part(self, weight: Weight) -> bool:
        # Then one part at least is multiplied by a matrix of its own, and
        # the fused product would compute it for nothing.
        return any(not update.dual and other.source is weight.source for other, update in self.updates.matrices.items())

    def _linear_backward(self, op: Linear, dy: Tensor) -> Tensor:
        update = self.updates.matrices.get(op.weight)
        if update is None:
            # W^T dy for row vectors (paper, "Linear backpropagation"): no transposed copy is made.
            return dy @ op.weight.read()
        if not update.dual:
            matrices = self.formed(op, update)
            return (dy.to(matrices.dtype) @ (matrices if len(matrices) == len(dy) else matrices[0])).to(dy.dtype)
        dx = dy @ op.weight.read()
        for factors in update.factors:
            dx = factors.add_backward(dx, dy)
        return dx

    def _norm(self, op: Norm, x: Tensor) -> tuple[Tensor, kernels.Normed]:
        scale, bias = self._scale(op), None if op.bias is None else op.bias.read()
        scale_update, bias_update = (
            None if weight is None else self.updates.vectors.get(weight) for weight in (op.scale, op.bias)
        )
        # torch's kernel takes one scale for all sequences; those that have learnt their own are multiplied behind it.
        if scale_update is None:
            y, saved = kernels.norm_forward(op, norm.cut(x, op.num_groups), scale, bias)
        else:
            y, saved = kernels.norm_forward(op, norm.cut(x, op.num_groups), None, None)
            y = y * (scale + scale_update)[:, None] + (0 if bias is None else bias)
        y = y if bias_update is None else y + bias_update[:, None]
        return y.to(x.dtype).view_as(x), saved

    def _scale(self, op: Norm) -> Any:
        scale = None if op.scale is None else op.scale.read().to(self.wide)
        return scale + 1 if op.unit_offset and scale is not None else scale

    def _norm_backward(self, op: Norm, saved: kernels.Normed, gradient: Tensor) -> Tensor:
        dy, scale, rule = norm.cut(gradient, op.num_groups), self._scale(op), self.rule
        update = None if op.scale is None else self.updates.vectors.get(op.scale)
        if update is not None:
            dy, scale = dy * (scale + update)[:, None], None
        if rule.norm_gradient == "exact":
            # Exact gradients by fused kernels, differences by the formulas
            # of `rule`: those are for study, not for speed.
            dx = kernels.norm_backward(saved, dy, scale)
        else:
            dx = norm.backward(
                saved.x,
                dy.to(saved.x.dtype),
                scale,
                kind=op.kind,
                epsilon=op.epsilon,
                scheme=rule.norm_gradient,
                step=rule.difference_step(rule.norm_gradient),
                mode=rule.epsilon_mode,
            )
        return dx.to(gradient.dtype).view_as(gradient)

    def _activation_backward(self, op: Activation, x: Tensor, gradient: Tensor) -> Tensor:
        rule = self.rule
        if rule.activation_gradient == "exact":
            return kernels.activation_backward(op.function, x, gradient)
        # Widened: in 8 bits x + step * dy is x itself for the steps that serve best, and the difference would be zero.
        return activation.backward(
            x.to(self.wide),
            gradient.to(self.wide),
            function=op.function,
            scheme=rule.activation_gradient,
            step=rule.difference_step(rule.activation_gradient),
            mode=rule.epsilon_mode,
        ).to(gradient.dtype)

    def loss_gradient(self, x: Float[Tensor, "B n D"]) -> Float[Tensor, "B n D"]:
        """The gradient at the head's input, a chunk of positions at a time, only where a target is predicted."""
        # Before the loss: behind it a non-finite stream is NaN in every
        # gradient, and nothing tells any more where it began.
        self.check(x)
        self.steps_taken = self.stage.step or 0
        batch, here = self.batch.on(x.device), slice(self.start, self.start + x.shape[1])
        at = batch.train_positions_at(self.stage.step)[:, here]
        dx = torch.zeros_like(x)
        dx[at] = self._gradients(x[at], batch.targets[:, here][at])
        if self.rule.reduction == "mean":
            dx /= at.sum(-1).clamp(min=1)[:, None, None]
        return dx

    def _gradients(self, rows: Float[Tensor, "rows D"], targets: Targets) -> Float[Tensor, "rows D"]:
        gradients = torch.empty_like(rows)
        for part in self._chunks(len(rows)):
            gradients[part] = self._loss_gradient(rows[part], targets[part])
        return gradients

    def _loss_gradient(self, rows: Float[Tensor, "rows D"], targets: Targets) -> Float[Tensor, "rows D"]:
        weight = self.auxiliary.head.weight.read()
        loss = head.loss_of(self.rule, self.auxiliary)
        if loss == "mse":
            return rows - head.target_rows(weight, targets)
        if loss == "quad":
            # E^T E x - e, which is what the quad loss has (`rule.head`).
            return (rows @ weight.mT) @ weight - weight[targets]
        # Softmax minus one-hot, in the memory of the logits: they are the largest tensor of the whole pass.
        probabilities = self.logits(rows)
        probabilities -= probabilities.amax(-1, keepdim=True)
        probabilities.exp_()
        # A sum of its own, added in pairs: see `rule.head.softmax`.
        probabilities /= probabilities.sum(-1, keepdim=True)
        probabilities.scatter_add_(1, targets[:, None], probabilities.new_full((len(rows), 1), -1.0))
        # Rounded to the head's dtype, since widening the head instead would copy the model's largest matrix.
        return probabilities.to(weight.dtype) @ weight

    def logits(self, rows: Float[Tensor, "rows D"]) -> Float[Tensor, "rows V"]:
        bias = self.auxiliary.head.bias
        product = head.forward(rows, self.auxiliary.head.weight.read(), None if bias is None else bias.read())
        return product.to(self.wide)

    def losses(self, rows: Float[Tensor, "rows D"], targets: Targets) -> Float[Tensor, " rows"]:
        """The loss of each target; logits exist for one chunk of positions at a time."""
        if self.auxiliary.takes_examples:
            return head.token_loss(self.logits(rows), targets)
        result = torch.zeros(len(rows), dtype=self.wide, device=rows.device)
        for part in self._chunks(len(rows)):
            logits = self.logits(rows[part])
            logits -= logits.amax(-1, keepdim=True)
            # A copy, taken before exp overwrites the logits.
            at_targets = logits.gather(1, targets[part, None])[:, 0]
            result[part] = logits.exp_().sum(-1).log_() - at_targets
        return result

    def _chunks(self, num_rows: int) -> Iterator[slice]:
        # At least one position, however large the vocabulary: a budget is a wish, not a bound.
        size = max(1, self.budget // (self.auxiliary.vocabulary_size * self.wide.itemsize))
        for start in range(0, num_rows, size):
            yield slice(start, start + size)


def pooled_rank(rule: LearningRule, batch: Batch) -> int:
    """The rank of the factors of an update that all sequences share: every token that training reaches adds one."""
    return rule.steps * int(batch.attention_mask[:, : batch.num_reached].sum())
