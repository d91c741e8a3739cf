"""What counts as agreement, by number format and rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tintformer.rule.learning_rule import LearningRule

FULL_COSINE = 0.9999
"""Least cosine of the full rule's update with the true gradient, over all parameters of the blocks."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The largest errors that pass."""

    module: float
    """Of one op, relative to the reference's largest number. Too small and rounding fails it."""
    difference: float
    """The same where the rule lets the gradient be a difference, which cancels digits."""
    logits: float
    """Of a logit and of an updated weight after the whole pass, absolute."""
    loss: float
    """Of the mean loss after the whole pass, in nats."""


FLOAT64 = Tolerance(module=1e-8, difference=1e-6, logits=1e-8, loss=1e-8)
FLOAT64_DIFFERENCES = Tolerance(module=1e-8, difference=1e-6, logits=1e-6, loss=1e-6)
FLOAT32 = Tolerance(module=1e-3, difference=1e-1, logits=2e-3, loss=1e-4)
FLOAT32_DIFFERENCES = Tolerance(module=1e-3, difference=1e-1, logits=float("inf"), loss=float("inf"))
"""Norms and activations by differences: what float32 cancels there is the rule's fault, not the engine's, and differs
100-fold between models (docs/approximations.md). So the whole pass is reported and not judged."""


NOTHING = Tolerance(module=float("inf"), difference=float("inf"), logits=float("inf"), loss=float("inf"))
"""Report and do not judge."""


def tolerance_for(
    rule: LearningRule, dtype: torch.dtype, override: float | None = None, *, approximate: bool = False
) -> Tolerance:
    """The tolerance of a rule in a number format; `override` replaces every number of it.

    `approximate` asks for a report only. An exact attention gradient counts as a difference in float64, because the
    simulator perturbs a softmax for it.
    """
    if override is not None:
        return Tolerance(module=override, difference=override, logits=override, loss=override)
    if approximate:
        return NOTHING
    if dtype == torch.float64:
        exact = rule.attention_gradient == "value" and not rule.takes_differences()
        return FLOAT64 if exact else FLOAT64_DIFFERENCES
    return FLOAT32_DIFFERENCES if rule.takes_differences() else FLOAT32
