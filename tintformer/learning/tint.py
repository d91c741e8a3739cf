"""Tint: a model that learns inside its own forward pass."""

from __future__ import annotations

from typing import Any, Unpack

import torch

from tintformer.errors import InputError, TintError
from tintformer.execution.arrays import Array, as_tensor
from tintformer.execution.batch import Batch, LearningMasks
from tintformer.execution.engine import Adapts, Engine
from tintformer.execution.hooks import Hooks, Watchable
from tintformer.execution.output import Logits, TintOutput, positions_of
from tintformer.learning.engine_registry import make_engine
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
        self.rule, self.engine_name = rule, engine
        # Too many layers are refused here, before an engine is built, which takes the simulator a while.
        require_rule(rule).num_trained(len(self.auxiliary.blocks))
        self.engine: Engine = make_engine(engine, self.auxiliary, rule, **options)

    def __repr__(self) -> str:
        return f"<Tint {self.auxiliary.name}, engine {self.engine_name}, {self.rule}>"

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
        says which logits to return: "all", "evaluation" (of the tokens that are evaluated) or "none".

        `masks`, all `[batch, tokens]` and optional: `attention_mask` is 0 at padding, on either side. `loss_mask`
        restricts the training targets further (label loss). `segment_ids` packs independent examples; -1 marks leading
        tokens that all of them see. `position_ids` are positions of your own.
        """
        batch = Batch.of(self.auxiliary, input_ids, train_mask=train_mask, **masks)
        checked("before", before, bool, InputError)
        return TintOutput.of(batch, self.engine.run(batch, logits_at=positions_of(logits, batch), before=before))

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
        return Tuned(self.auxiliary, self.rule, self.engine.adapt(batch))
