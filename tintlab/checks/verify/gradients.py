"""How well each preset's update follows the true gradient: cosine and norm ratio, by matrix and over everything.

The true gradient is what autograd gives for every parameter of the blocks and of the final norm, in float64: the
update of `LearningRule.full` by the oracle, divided by minus the rate. A preset's gradient is the update of that
preset by the engine that is verified, divided by minus the rate, in the model's own dtype; what the preset
does not move counts as zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary, ops
from tintformer.auxiliary.ops import Linear, Norm, Weight
from tintformer.engines.oracle import OracleEngine
from tintformer.execution.batch import Batch
from tintformer.execution.engine import Engine
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import trainable_weights
from tintlab.checks.verify.lockstep import split_name

Gradients = dict[str, Tensor]
"""By the op's name and the part of it, `blocks.0.query.weight`; `[batch, ...]`, a gradient for each sequence."""


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """One gradient next to the true one."""

    cosine: float | None
    """Of the angle between them; None where the true gradient is zero (up to rounding), or nothing moves."""
    norm_ratio: float | None
    """Norm of the gradient over that of the true one; None where the true one is zero."""


@dataclass(frozen=True, kw_only=True)
class MatrixAlignment(Alignment):
    """The alignment of one parameter."""

    layer: int | None
    """Its block; None for the final norm."""
    matrix: str
    """Its op and the part of it, `query.weight`."""
    moved: bool
    """Whether the preset moves it at all."""


@dataclass(frozen=True, kw_only=True)
class PresetAlignment:
    """How one preset follows the true gradient."""

    matrices: tuple[MatrixAlignment, ...]
    moved: Alignment
    """Over the parameters that the preset moves: is the direction right, as far as it goes?"""
    everything: Alignment
    """Over all parameters of the blocks and the final norm, those that stand still as zeros: plain SGD's direction?"""


def true_gradient(auxiliary: Auxiliary, batch: Batch) -> Gradients:
    """Autograd's gradient of the summed loss; give the model in float64, in which a rate of 1 costs no digits."""
    rule = LearningRule.full(learning_rate=1.0)
    return simulated_gradient(auxiliary, rule, batch, OracleEngine(auxiliary, rule))


def simulated_gradient(auxiliary: Auxiliary, rule: LearningRule, batch: Batch, engine: Engine) -> Gradients:
    """One step of the rule by an engine, as a gradient; zeros where it moves nothing."""
    if rule.steps != 1 or rule.learning_rate == 0:
        raise AssertionError("an update is a gradient only after one step with a rate")
    result = engine.run(batch, logits_at=None, before=False)
    updates = [result.updates(row) for row in range(len(batch.input_ids))]
    gradients: Gradients = {}
    for name, weight in parameters(auxiliary):
        rows = [_read(weight, row.get(weight.name)) for row in updates]
        gradients[name] = torch.stack(rows).double() / -rule.rate
    return gradients


def _read(weight: Weight, update: Tensor | None) -> Tensor:
    """The part of a Hugging Face parameter's update that a weight stands for."""
    return torch.zeros_like(weight.read()) if update is None else replace(weight, source=update).read()


def parameters(auxiliary: Auxiliary) -> Iterator[tuple[str, Weight]]:
    """Every parameter of the blocks and of the final norm, by name."""
    for steps in (*auxiliary.blocks, auxiliary.final):
        for op in ops(steps):
            if isinstance(op, Linear) and op.group != "frozen":
                parts = {"weight": op.weight, "bias": op.bias}
            elif isinstance(op, Norm):
                parts = {"scale": op.scale, "bias": op.bias}
            else:
                parts = {}
            yield from ((f"{op.name}.{part}", weight) for part, weight in parts.items() if weight is not None)


def align(auxiliary: Auxiliary, rule: LearningRule, found: Gradients, truth: Gradients) -> PresetAlignment:
    """Compare a rule's gradient with the true one, parameter by parameter and as a whole."""
    moving = set(trainable_weights(rule, auxiliary))
    moved = {name: weight in moving for name, weight in parameters(auxiliary)}
    floor = ROUNDING * math.sqrt(sum(float(each.square().sum()) for each in truth.values()))
    matrices: list[MatrixAlignment] = []
    for name in truth:
        layer, matrix = split_name(name)
        alignment = compare([found[name]], [truth[name]], floor)
        matrices.append(
            MatrixAlignment(
                cosine=alignment.cosine,
                norm_ratio=alignment.norm_ratio,
                layer=layer,
                matrix=matrix,
                moved=moved[name],
            )
        )
    names = [name for name in truth if moved[name]]
    return PresetAlignment(
        matrices=tuple(matrices),
        moved=compare([found[name] for name in names], [truth[name] for name in names]),
        everything=compare(list(found.values()), [truth[name] for name in found]),
    )


ROUNDING = 1e-12
"""A gradient smaller than this share of all of it is rounding: a key's bias, to which a softmax is blind."""


def compare(found: list[Tensor], truth: list[Tensor], floor: float = 0.0) -> Alignment:
    """Cosine and norm ratio of lists of tensors, taken as one vector."""
    product = sum(float((ours * theirs).sum()) for ours, theirs in zip(found, truth, strict=True))
    ours, theirs = (math.sqrt(sum(float(each.square().sum()) for each in tensors)) for tensors in (found, truth))
    if theirs <= floor:
        return Alignment(cosine=None, norm_ratio=None)
    return Alignment(cosine=product / (ours * theirs) if ours > 0 else None, norm_ratio=ours / theirs)


def rate_of_share(auxiliary: Auxiliary, truth: Gradients, share: float) -> float:
    """The power of two nearest to the rate at which a step changes the weights by `share` of their size."""
    weights = math.sqrt(sum(float(weight.read().double().square().sum()) for _, weight in parameters(auxiliary)))
    gradient = math.sqrt(sum(float(each.square().sum()) for each in truth.values()) / len(next(iter(truth.values()))))
    return 2.0 ** round(math.log2(share * weights / gradient)) if gradient > 0 else 1.0
