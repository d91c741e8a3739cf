"""What to verify, and the text that is read when none is given."""

from __future__ import annotations

from dataclasses import dataclass

from tintformer.errors import InputError, RuleError
from tintformer.rule.learning_rule import PRESETS, LearningRule

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
class Settings:
    """How a model is verified."""

    presets: tuple[str, ...] = tuple(PRESETS)
    """The rules to verify."""
    learning_rate: float | None = None
    """Of the whole pass; None: the rate at which its steps move the weights by `SHARE` of their size."""
    steps: int = 1
    tolerance: float | None = None
    """Replaces every tolerance; None: those of the number format."""
    theorems: bool = True
    """Also check the theorems, which takes as long as all of the rest."""

    def __post_init__(self) -> None:
        for preset in self.presets:
            if preset not in PRESETS:
                raise RuleError(f"preset={preset!r} is unknown; choose one of {', '.join(PRESETS)}")
        if self.tolerance is not None and not 0 <= self.tolerance < float("inf"):
            raise InputError(f"tolerance={self.tolerance:g} must be a finite number of at least 0")
        if self.learning_rate == 0:
            raise RuleError("learning_rate=0 moves nothing, so there would be nothing to verify")
        self.rule(self.presets[0], self.learning_rate or 1.0)

    def rule(self, preset: str, learning_rate: float) -> LearningRule:
        """One of the rules to verify."""
        return PRESETS[preset](learning_rate=learning_rate, steps=self.steps)
