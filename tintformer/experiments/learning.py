"""Learning as a method says: from every sequence on its own, or once from all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tintformer.experiments import lora
from tintformer.rule.learning_rule import LearningRule

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary
    from tintformer.execution.output import Logits, TintOutput
    from tintformer.learning.tuned import Tuned

How = LearningRule | lora.Lora
"""All that decides what is learnt from given tokens."""


def learn_each(auxiliary: Auxiliary, how: How, engine: str, *, logits: Logits = "none", **learning: Any) -> TintOutput:
    """Every sequence learns from its own training part, and is predicted afterwards."""
    if isinstance(how, lora.Lora):
        from tintformer.execution.batch import Batch

        return lora.learn_each(auxiliary, how, Batch.of(auxiliary, **learning), logits=logits)
    from tintformer.learning.tint import Tint

    return Tint(auxiliary, how, engine=engine)(**learning, logits=logits)


def learn_once(auxiliary: Auxiliary, how: How | None, **learning: Any) -> Tuned:
    """One update from all sequences together; with None in place of a way to learn, none at all."""
    if how is None:
        from tintformer.learning.tuned import Tuned

        return Tuned.untrained(auxiliary)
    if isinstance(how, lora.Lora):
        from tintformer.execution.batch import Batch

        return lora.learn(auxiliary, how, Batch.of(auxiliary, **learning))
    from tintformer.learning.tint import Tint

    return Tint(auxiliary, how).adapt(**learning)
