"""What to verify, the text that is read when none is given, and what counts as agreement by dtype and rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from tintformer.errors import InputError, RuleError
from tintformer.rule.learning_rule import PRESETS, LearningRule
from tintformer.typed_fields import FLOAT32_MAX, Range, check_fields

SHARE = 1e-4
"""Without a rate, all steps together move the weights by about this share of their size. Much more, and float32 makes
two correct passes drift apart; much less, and nothing moves that could be compared."""

TEXT = (
    "The ferry left the island at six, an hour before the fog came in from the north. Mara counted the crates on "
    "the deck twice: eleven for the bakery, four for the school, and one, without a label, for the man who mends "
    'clocks. "Eleven, four and one," she told the captain, who wrote it down and forgot it at once. When the fog '
    "closed in, the bell began to ring, one stroke for every minute, and the children on the pier counted the "
    "strokes until the ferry was home again. The baker took his eleven crates, the teacher her four, and the man "
    "who mends clocks carried the last one up the hill. Nobody asked what was inside. The next morning every "
    "clock on the island showed six, and the fog was gone."
)
"""Read when no text is given."""


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    """How a model is verified."""

    presets: tuple[str, ...] = tuple(PRESETS)
    """The rules to verify."""
    learning_rate: Annotated[float | None, Range(at_least=0, at_most=FLOAT32_MAX)] = None
    """Of the whole pass; None: the rate at which its steps move the weights by `SHARE` of their size."""
    steps: int = 1
    tolerance: Annotated[float | None, Range(at_least=0)] = None
    """Replaces every tolerance; None: those of the dtype."""
    theorems: bool = True
    """Also check the theorems, which takes as long as all of the rest."""

    def __post_init__(self) -> None:
        check_fields(self, InputError)
        for preset in self.presets:
            if preset not in PRESETS:
                raise RuleError(f"preset={preset!r} is unknown; choose one of {', '.join(PRESETS)}")
        if self.learning_rate == 0:
            raise RuleError("learning_rate=0 moves nothing, so there would be nothing to verify")
        if not self.presets:
            raise RuleError(f"there are no presets to verify; give some of {', '.join(PRESETS)}")
        self.rule(self.presets[0], self.learning_rate or 1.0)

    def rule(self, preset: str, learning_rate: float) -> LearningRule:
        """One of the rules to verify."""
        return PRESETS[preset](learning_rate=learning_rate, steps=self.steps)


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
    """The tolerance of a rule in a dtype; `override` replaces every number of it.

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
