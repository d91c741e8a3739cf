"""Gradients that rates and methods share: that of a single step knows no rate, and a true one is true for all methods.

One step of descent subtracts a multiple of the gradient, so that every rate that is tried on a block can take the same
one. Methods of the true gradient differ in the weights that they move: one gradient of all weights serves them all.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from tintformer.rule.learning_rule import LearningRule

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary
    from tintformer.engines.fast.updates import Updates
    from tintformer.execution.batch import Batch
    from tintformer.execution.output import Logits, TintOutput

BUDGET = 2**29
"""Bytes of gradients that are kept. With less than those of all tuning blocks a search takes them again for each rate;
the rates of a given grid are tried block by block, for which one is enough, and one is always kept."""


def knows_no_rate(rule: LearningRule, engine: str) -> bool:
    """Whether what is learnt is a gradient times the rate; a second step's gradient depends on the first's rate."""
    return engine == "fast" and rule.steps == 1 and rule.moves_evenly and not rule.is_auto


class SharedGradients:
    """What sequences have learnt at a rate of 1, for as long as one kind of gradient is asked for.

    The numbers do not depend on what is kept: a gradient is summed up and then multiplied in any case.
    """

    def __init__(self, *, many_rates: bool, budget: int = BUDGET):
        """With `many_rates` the newest are kept, since each is asked for again at once; otherwise the first that fit,
        and only those that several methods share, which go through all sequences one after the other."""
        self.many_rates, self.budget = many_rates, budget
        self._kind: tuple[Auxiliary, LearningRule, int] | None = None
        self._kept: dict[bytes, Updates] = {}

    def learn_each(self, auxiliary: Auxiliary, rule: LearningRule, batch: Batch, *, logits: Logits) -> TintOutput:
        """Every sequence learns from its own training part, and is predicted afterwards."""
        from tintformer.engines.fast import FastEngine
        from tintformer.execution.output import TintOutput, positions_of
        from tintformer.rule.optimiser import trainable_weights

        learnt = self._learnt(auxiliary, _whole(rule), batch)
        updates = learnt.of(set(trainable_weights(rule, auxiliary))).scaled(rule.rate)
        # By the rule itself, so that what diverges names its own rate.
        result = FastEngine(auxiliary, rule).score(batch, updates, logits_at=positions_of(logits, batch))
        return TintOutput.of(batch, result)

    def _learnt(self, auxiliary: Auxiliary, rule: LearningRule, batch: Batch) -> Updates:
        from tintformer.engines.fast import FastEngine

        if not (self.many_rates or rule.attention_gradient == "exact"):
            return FastEngine(auxiliary, rule).learn(batch).summed()
        # Methods come one after the other, share by share: what another kind has left is not asked for again.
        kind = auxiliary, rule, int(batch.train_mask.sum())
        if self._kind is None or self._kind[0] is not auxiliary or self._kind[1:] != kind[1:]:
            self._kind, self._kept = kind, {}
        key = _content(batch)
        if key in self._kept:
            return self._kept[key]
        # Room is made before it is needed: blocks are alike, and so are the sizes of what they have learnt.
        size = next((each.num_bytes for each in self._kept.values()), 0)
        while self.many_rates and self._kept and (len(self._kept) + 1) * size > self.budget:
            del self._kept[next(iter(self._kept))]
        updates = FastEngine(auxiliary, rule).learn(batch).summed()
        if self.many_rates or (len(self._kept) + 1) * updates.num_bytes <= self.budget:
            self._kept[key] = updates
        return updates


def _whole(rule: LearningRule) -> LearningRule:
    """The rule at a rate of 1 that moves all that a gradient of its kind can move."""
    everything = rule.attention_gradient == "exact"
    return replace(
        rule,
        learning_rate=1.0,
        update_norm_scale=rule.update_norm_scale or everything,
        update_query_key=rule.update_query_key or everything,
    )


def _content(batch: Batch) -> bytes:
    """All that a batch says, as bytes."""
    tensors = [getattr(batch, each.name) for each in fields(batch)]
    return b"|".join(b"" if each is None else each.cpu().numpy().tobytes() for each in tensors)
