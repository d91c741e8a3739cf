"""Tint: a model that learns inside its own forward pass."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from tintformer.errors import TintError
from tintformer.execution.batch import Batch
from tintformer.execution.engine import Engine
from tintformer.execution.hooks import Hooks
from tintformer.execution.output import Logits, TintOutput, positions_of
from tintformer.execution.watchable import Watchable
from tintformer.learning.tuned import Tuned
from tintformer.rule.learning_rule import LearningRule
from tintformer.storage.loading import load

ENGINES = {
    "fast": ("tintformer.engines.fast", "FastEngine"),
    "reference": ("tintformer.engines.reference", "ReferenceEngine"),
    "oracle": ("tintformer.engines.oracle", "OracleEngine"),
    "simulator": ("tintformer.simulator.simulator", "build"),
}
"""Engines by name, imported when asked for."""


class Tint(Watchable):
    """An auxiliary model, a learning rule and an engine that runs them in one pass.

    `dual` is a knob of the fast engine, `construction` are those of the simulator (layout, stack, tie_blocks, ...).
    """

    def __init__(
        self, model: Any, rule: LearningRule, *, engine: str = "fast", dual: bool | None = None, **construction: Any
    ):
        self.auxiliary = load(model)
        self.rule = rule
        rule.num_trained(len(self.auxiliary.blocks))
        if engine not in ENGINES:
            raise TintError(f"engine={engine!r} is unknown; choose one of {', '.join(ENGINES)}")
        if dual is not None and engine != "fast":
            raise TintError(f"dual={dual} is a knob of the fast engine; leave it out with engine={engine!r}")
        if construction and engine != "simulator":
            names = ", ".join(construction)
            raise TintError(f"{names}: knobs of the simulator; leave them out with engine={engine!r}")
        module, name = ENGINES[engine]
        knobs = {"dual": dual} if engine == "fast" else construction
        self.engine: Engine = getattr(import_module(module), name)(self.auxiliary, rule, **knobs)

    def __call__(
        self,
        input_ids: Tensor,
        *,
        train_mask: Tensor,
        attention_mask: Tensor | None = None,
        loss_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        before: bool = False,
        logits: Logits = "all",
    ) -> TintOutput:
        """Train on the part under `train_mask`, each sequence on its own, and predict the rest.

        `train_mask` restricts the loss, not attention. `loss_mask` restricts the training targets further (label
        loss). `segment_ids` packs independent examples; -1 marks leading tokens that all of them see. `before` adds
        what the model predicted before learning. `logits` says which logits to return.
        """
        batch = Batch.of(
            self.auxiliary,
            input_ids,
            train_mask=train_mask,
            attention_mask=attention_mask,
            loss_mask=loss_mask,
            segment_ids=segment_ids,
            position_ids=position_ids,
        )
        result = self.engine.run(batch, logits_at=positions_of(logits, batch), before=before)
        return TintOutput.of(batch, result.after, result.before, result.updates)

    @property
    def hooks(self) -> Hooks:
        hooks = getattr(self.engine, "hooks", None)
        if hooks is None:
            raise TintError("the oracle has no hook points: autograd runs it, not the walk; choose another engine")
        return hooks

    def adapt(
        self,
        input_ids: Tensor,
        *,
        train_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        loss_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tuned:
        """One update from one or more training sequences, their losses summed, to be used many times.

        Without `train_mask` all attended tokens are the training part.
        """
        from tintformer.engines.fast import FastEngine

        if not isinstance(self.engine, FastEngine):
            raise TintError("adapt() needs engine='fast': the other engines keep no update for later")
        batch = Batch.of(
            self.auxiliary,
            input_ids,
            train_mask=torch.ones_like(input_ids, dtype=torch.bool) if train_mask is None else train_mask,
            attention_mask=attention_mask,
            loss_mask=loss_mask,
            segment_ids=segment_ids,
            position_ids=position_ids,
        )
        return Tuned(self.auxiliary, self.rule, self.engine.adapt(batch))
