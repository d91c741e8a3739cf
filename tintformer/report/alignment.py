"""Cosine of the rule's gradient with the exact one, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tintformer.analysis.verify.first_blocks import in_float64
from tintformer.analysis.verify.gradients import Gradients, compare, parameters, rate_of_share, simulated_gradient
from tintformer.analysis.verify.lockstep import split_name
from tintformer.analysis.verify.settings import SHARE
from tintformer.auxiliary.description import Auxiliary
from tintformer.engines.fast import FastEngine
from tintformer.engines.oracle import OracleEngine
from tintformer.execution.batch import Batch
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.trainable import trainable_weights

LIMIT = 150_000_000
"""Parameters up to which cosines are computed unasked: they take a copy of the model and two gradients in float64."""


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """How a gradient lies to the exact one; None where one of them is zero."""

    layer: int | None
    """The block; None for all of them and the final norm together."""
    moved: float | None
    """Over the parameters that the rule moves."""
    everything: float | None
    """Over all parameters, with zeros for those that stand still."""


def cosines(auxiliary: Auxiliary, rule: LearningRule, batch: Batch) -> tuple[Cosine, ...]:
    """The whole first, then block by block: the first step of `rule` against autograd in float64, on the same loss."""
    precise = in_float64(auxiliary)
    exact = LearningRule.full(learning_rate=1.0, loss=rule.loss)
    truth = simulated_gradient(precise, exact, batch, OracleEngine(precise, exact))
    # Rate and steps of the rule do not matter to the direction of its first step.
    step = replace(rule, steps=1, reduction="sum", learning_rate=rate_of_share(auxiliary, truth, SHARE))
    found = simulated_gradient(auxiliary, step, batch, FastEngine(auxiliary, step))
    moving = set(trainable_weights(rule, auxiliary))
    moved = {name for name, weight in parameters(auxiliary) if weight in moving}
    layers = [None, *range(len(auxiliary.blocks))]
    return tuple(_cosine(layer, found, truth, moved) for layer in layers)


def _cosine(layer: int | None, found: Gradients, truth: Gradients, moved: set[str]) -> Cosine:
    names = [name for name in truth if layer is None or split_name(name)[0] == layer]
    some = [name for name in names if name in moved]
    of_some, of_all = (
        compare([found[name] for name in each], [truth[name] for name in each]).cosine for each in (some, names)
    )
    return Cosine(layer=layer, moved=of_some, everything=of_all)
