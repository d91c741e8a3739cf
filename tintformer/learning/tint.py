"""Tint: a model that learns inside its own forward pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import torch

from tintformer.errors import InputError, TintError
from tintformer.execution.arrays import Array, as_tensor
from tintformer.execution.batch import Batch, LearningMasks
from tintformer.execution.engine import Adapts, Engine
from tintformer.execution.hooks import Hooks, Watchable
from tintformer.execution.output import Logits, TintOutput, positions_of, warn_of_ruin
from tintformer.learning.engine_registry import make_engine
from tintformer.learning.rate_selection import choose_for, with_rates
from tintformer.learning.tuned import Tuned
from tintformer.rule.learning_rule import LearningRule, require_rule
from tintformer.storage.loading import load
from tintformer.typed_fields import checked


class Tint(Watchable):
    """An auxiliary model, a learning rule and an engine that runs them in one pass.

    `options` are those of the engine: `dual` of the fast one, and of the simulator the knobs of its construction
    (layout, stack, tie_blocks, ...).
    """

    def __init__(self, model: Any, rule: LearningRule, *, engine: str = "fast", **options: Any):
        self.auxiliary = load(model)
        self.rule = rule
        # Too many layers are refused here, before an engine is built, which takes the simulator a while.
        require_rule(rule).num_trained(len(self.auxiliary.blocks))
        self.engine: Engine = make_engine(engine, self.auxiliary, rule, **options)

    def __call__(
        self,
        input_ids: Array,
        *,
        train_mask: Array,
        before: bool = False,
        logits: Logits = "all",
        **masks: Unpack[LearningMasks],
    ) -> TintOutput:
        """Train on the part under `train_mask`, each sequence on its own, and predict the rest.

        `train_mask` restricts the loss, not attention. `before` adds what the model predicted before learning. `logits`
        says which logits to return: "all", "evaluation" or "none". With `learning_rate="auto"` the rate of each
        sequence is chosen by its own training part, and `learning_rates` of the output has it.

        `masks`, all `[batch, tokens]` and optional: `attention_mask` is 0 at padding, on either side. `loss_mask`
        restricts the training targets further (label loss). `segment_ids` packs independent examples; -1 marks leading
        tokens that all of them see. `position_ids` are positions of your own.
        """
        batch = Batch.of(self.auxiliary, input_ids, train_mask=train_mask, **masks)
        checked("before", before, bool, InputError)
        logits_at = positions_of(logits, batch)
        if self.rule.is_auto:
            batch = with_rates(self.auxiliary, self.rule, batch)
        out = TintOutput.of(batch, self.engine.run(batch, logits_at=logits_at, before=before))
        warn_of_ruin(out, stacklevel=2)
        return out

    @property
    def hooks(self) -> Hooks:
        if self.engine.hooks is None:
            raise TintError("the oracle has no hook points: autograd runs it, not the walk; choose another engine")
        return self.engine.hooks

    def adapt(self, input_ids: Array, *, train_mask: Array | None = None, **masks: Unpack[LearningMasks]) -> Tuned:
        """One update from one or more training sequences, their losses summed, to be used many times.

        Without `train_mask` all attended tokens are the training part. `masks` are those of a call.
        """
        if not isinstance(self.engine, Adapts):
            raise TintError("adapt() needs engine='fast': the other engines keep no update for later")
        input_ids = as_tensor("input_ids", input_ids)
        train_mask = torch.ones_like(input_ids, dtype=torch.bool) if train_mask is None else train_mask
        batch = Batch.of(self.auxiliary, input_ids, train_mask=train_mask, **masks)
        if not self.rule.is_auto:
            return Tuned(self.auxiliary, self.rule, self.engine.adapt(batch))
        # One update has one rate, which is a number from here on.
        choice = choose_for(self.auxiliary, self.rule, batch, together=True)
        return Tint(self.auxiliary, replace(self.rule, learning_rate=choice.rate)).adapt(
            input_ids, train_mask=train_mask, **masks
        )
