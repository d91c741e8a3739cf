"""How a gradient moves a weight: descent with momentum, decay towards the base, rms, adam and muon.

R rows: sequences that learn, each on its own. A change is what a weight has moved from its base.

Which weights a learning rule trains: some of the trained blocks and of the final norm, never embeddings or head.

Root mean squares of gradients, collected on a text: what the optimiser `rms` divides by.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary, compute_dtype, ops
from tintformer.auxiliary.ops import Join, Linear, Norm, Op, Weight
from tintformer.errors import RuleError
from tintformer.rule.learning_rule import LearningRule

BETAS = (0.9, 0.999)
EPSILON = 1e-8
"""Adam's, and what is added to the root mean squares of `rms`."""
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of muon's five steps, those of `torch.optim.Muon`."""
NEWTON_SCHULZ_STEPS = 5
SMALLEST_NORM = 1e-7


Scalar = float | Tensor
"""One number for all rows, or `[R, 1, 1]`."""


@dataclass(frozen=True, kw_only=True)
class StepSize:
    """One step of the descent of one op's weights."""

    rate: Scalar
    momentum: float
    nesterov: bool
    decay: float
    active: Bool[Tensor, "R 1 1"] | None = None
    """Rows that make the step, those with a target; None: all."""

    @classmethod
    def of(
        cls,
        rule: LearningRule,
        op: str,
        steps: Sequence[int],
        *,
        rates: Float[Tensor, " R"] | None = None,
        active: Bool[Tensor, " R"] | None = None,
    ) -> StepSize:
        """At an op; `steps` is the number of the step, from 1, of each row, or one for all.

        `rates` are those of the rows where each has its own; otherwise the rule's is that of all.
        """
        # Rows that began at different times stand at different steps.
        scheduled = _one_or_each([rule.schedule_factor(step) for step in steps])
        rate = rule.rate if rates is None else _one_or_each(rates.double().tolist())
        return cls(
            rate=rate * rate_factor(rule, op) * scheduled,
            momentum=rule.momentum,
            nesterov=rule.nesterov,
            decay=rule.decay,
            # Without a memory a gradient of zero moves nothing anyway.
            active=None if active is None or not rule.remembers else active[:, None, None],
        )

    def of_factors(self, rate: Scalar, velocity: Scalar, own: float) -> tuple[Scalar, Scalar]:
        """New coefficients of a gradient in the change and in the velocity; `own` is 1 for that of this very step."""
        faster = self.momentum * velocity + own
        along = own + self.momentum * faster if self.nesterov else faster
        further = (rate + self.rate * along) * (1 - self.decay)
        return self._if_active(further, rate), self._if_active(faster, velocity)

    def decayed(self, change: Tensor) -> Tensor:
        """What decay leaves of a change `[R, ...]`; all of it in rows that make no step."""
        kept = self._if_active(1 - self.decay, 1.0)
        return change * (rows_like(kept, change).to(change) if isinstance(kept, Tensor) else kept)

    def _if_active(self, new: Scalar, old: Scalar) -> Scalar:
        if self.active is None:
            return new
        # Coefficients in float64, whatever the weights are in: they are products over many steps.
        stand = [torch.as_tensor(each, dtype=torch.float64, device=self.active.device) for each in (new, old)]
        return torch.where(self.active, *stand)


def _one_or_each(values: Sequence[float]) -> Scalar:
    """One number where all rows agree: nothing is then rounded that would not be for a single row."""
    return values[0] if len(set(values)) == 1 else torch.tensor(values, dtype=torch.float64)[:, None, None]


def rate_factor(rule: LearningRule, op: str) -> float:
    """What the rule multiplies the rate of an op by: the factor of the last pattern that fits its name."""
    return next((factor for pattern, factor in reversed(rule.rates) if fnmatchcase(op, pattern)), 1.0)


def step_rate(rule: LearningRule, op: str, step: int) -> float:
    """The rate of an op in step number `step`, from 1, where all sequences have that of the rule."""
    return rule.rate * rate_factor(rule, op) * rule.schedule_factor(step)


class Moments:
    """What a dense optimiser remembers of one weight, `[R, ...]` each."""

    def __init__(self) -> None:
        self.velocity: Tensor | None = None
        self.square: Tensor | None = None
        self.count: Tensor | None = None
        """Steps made, row by row."""

    def move(
        self, change: Tensor | None, gradient: Tensor, rule: LearningRule, by: StepSize, rms: Tensor | None = None
    ) -> Tensor:
        """The change after a step along a gradient; `rms` is the weight's root mean square of gradients."""
        before = torch.zeros_like(gradient) if change is None else change
        rate = rows_like(by.rate, gradient).to(gradient) if isinstance(by.rate, Tensor) else by.rate
        after = (before - rate * self._direction(gradient, rule, by, rms)) * (1 - by.decay)
        return after if by.active is None else torch.where(rows_like(by.active, after), after, before)

    def copied(self) -> Moments:
        """The same, to go on from without a change of these."""
        result = Moments()
        for name in ("velocity", "square", "count"):
            value = getattr(self, name)
            setattr(result, name, None if value is None else value.clone())
        return result

    def forget(self, rows: Bool[Tensor, " R"]) -> None:
        """Begin anew in these rows."""
        for name in ("velocity", "square", "count"):
            if (value := getattr(self, name)) is not None:
                setattr(self, name, value.masked_fill(rows_like(rows, value), 0))

    def _direction(self, gradient: Tensor, rule: LearningRule, by: StepSize, rms: Tensor | None) -> Tensor:
        if rule.optimizer == "adam":
            return self._adam(gradient, by)
        if rule.optimizer == "rms":
            assert rms is not None, "rms needs statistics"
            gradient = gradient / (rms + EPSILON)
        if by.momentum:
            velocity = gradient if self.velocity is None else by.momentum * self.velocity + gradient
            if by.active is not None and self.velocity is not None:
                velocity = torch.where(rows_like(by.active, velocity), velocity, self.velocity)
            elif by.active is not None:
                velocity = velocity * rows_like(by.active, velocity)
            self.velocity = velocity
            gradient = gradient + by.momentum * velocity if by.nesterov else velocity
        if rule.optimizer == "muon" and gradient.dim() == 3:
            return polar(gradient) * muon_factor(gradient.shape)
        return gradient

    def _adam(self, gradient: Tensor, by: StepSize) -> Tensor:
        if self.velocity is None or self.square is None or self.count is None:
            self.velocity, self.square = torch.zeros_like(gradient), torch.zeros_like(gradient)
            self.count = torch.zeros(len(gradient), dtype=gradient.dtype, device=gradient.device)
        first, second = BETAS
        steps = torch.ones_like(self.count) if by.active is None else by.active.flatten().to(self.count)
        shaped = rows_like(steps, gradient)
        self.count = self.count + steps
        self.velocity = torch.where(shaped > 0, first * self.velocity + (1 - first) * gradient, self.velocity)
        self.square = torch.where(shaped > 0, second * self.square + (1 - second) * gradient * gradient, self.square)
        count = rows_like(self.count.clamp(min=1), gradient)
        root = (self.square / (1 - second**count)).sqrt() + EPSILON
        return self.velocity / (1 - first**count) / root


def rows_like(values: Tensor, like: Tensor) -> Tensor:
    """One value a row, shaped so that it meets `like`."""
    return values.reshape(-1, *(1 for _ in like.shape[1:])).to(like.device)


def polar(matrices: Float[Tensor, "R O I"]) -> Float[Tensor, "R O I"]:
    """About U V^T of U S V^T: five Newton-Schulz steps that bring singular values near 1."""
    a, b, c = NEWTON_SCHULZ
    x = matrices / matrices.flatten(1).norm(dim=1).clamp(min=SMALLEST_NORM)[:, None, None]
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def polar_core(gram_x: Float[Tensor, "R n n"], gram_g: Float[Tensor, "R n n"]) -> Float[Tensor, "R n n"]:
    """M such that `polar(g^T x)` is g^T M x, from the products x x^T and g g^T alone.

    A Newton-Schulz step of g^T M x is of that form again: M becomes (a + b P + c P P) M, P = M (x x^T) M^T (g g^T).
    """
    a, b, c = NEWTON_SCHULZ
    # |g^T x|^2 = trace of (x x^T)(g g^T), both symmetric.
    norm = (gram_x * gram_g).sum((1, 2)).clamp(min=0).sqrt().clamp(min=SMALLEST_NORM)
    core = torch.eye(gram_x.shape[1], dtype=gram_x.dtype, device=gram_x.device) / norm[:, None, None]
    for _ in range(NEWTON_SCHULZ_STEPS):
        squared = core @ gram_x @ core.mT @ gram_g
        core = a * core + (b * squared + c * squared @ squared) @ core
    return core


def muon_factor(shape: torch.Size | tuple[int, ...]) -> float:
    """What `torch.optim.Muon` multiplies the rate of a matrix `[..., out, in]` by."""
    return math.sqrt(max(1.0, shape[-2] / shape[-1]))


def trained_weights(rule: LearningRule, op: Op | Join) -> tuple[Weight, ...]:
    """The weights of an op on the backward path that descent changes."""
    # With attention_gradient="value" no gradient reaches queries and keys, which is why they have a knob of their own.
    if isinstance(op, Linear):
        # Group `frozen` is OPT-350m's projections into and out of the stream: they belong to the embeddings.
        free = op.group == "body" or (op.group == "query_key" and rule.update_query_key)
        candidates = (op.weight, op.bias) if free else ()
    elif isinstance(op, Norm) and op.group == "query_key":
        candidates = (op.scale, op.bias) if rule.update_query_key else ()
    elif isinstance(op, Norm):  # the paper trains biases of norms and leaves their scales alone
        candidates = (op.scale, op.bias) if rule.update_norm_scale else (op.bias,)
    else:
        candidates = ()
    return tuple(weight for weight in candidates if weight is not None)


def trainable_weights(rule: LearningRule, auxiliary: Auxiliary) -> Iterator[Weight]:
    """Every weight that the rule trains: those of the trained blocks, then those of the final steps."""
    num_trained = rule.num_trained(len(auxiliary.blocks))
    for steps in (*auxiliary.blocks[len(auxiliary.blocks) - num_trained :], auxiliary.final):
        for op in ops(steps):
            yield from trained_weights(rule, op)


def by_weight(
    statistics: Mapping[str, Tensor] | None, auxiliary: Auxiliary, rule: LearningRule
) -> dict[Weight, Tensor] | None:
    """Those of every weight that the rule trains, from tensors by Hugging Face name."""
    if rule.optimizer != "rms":
        if statistics is not None:
            raise RuleError(f"statistics are for optimizer='rms', and this rule has {rule.optimizer!r}; leave them out")
        return None
    if statistics is None:
        raise RuleError(
            "optimizer='rms' divides by root mean squares of gradients: give statistics=, collected on a text by "
            "tint.collect_statistics or `tint statistics`"
        )
    found: dict[Weight, Tensor] = {}
    for weight in trainable_weights(rule, auxiliary):
        values = statistics.get(weight.name)
        if values is None or values.shape != weight.source.shape:
            raise RuleError(
                f"the statistics do not fit {auxiliary.name}: {weight.name} is missing or has another shape"
            )
        here = values.to(weight.home, compute_dtype(auxiliary.dtype))
        found[weight] = replace(weight, source=here, device=None).read()
    return found
