"""Tint: a model that learns inside its own forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tintformer.auxiliary.load import load
from tintformer.batch import Batch
from tintformer.engines.engine import Engine
from tintformer.errors import InputError, TintError
from tintformer.rule import head
from tintformer.rule.learning_rule import LearningRule

Logits = Literal["all", "evaluation", "none"]

ENGINES = {
    "reference": ("tintformer.engines.reference", "ReferenceEngine"),
    "oracle": ("tintformer.engines.oracle", "OracleEngine"),
}
"""Engines by name, imported when asked for."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TintOutput:
    """What a pass predicts after learning (and before, if asked), and what it learnt."""

    loss: Float[Tensor, ""] | None
    """Mean of `token_loss` over the evaluation tokens of the batch; None if there are none."""
    token_loss: Float[Tensor, "batch tokens"]
    """Negative log-likelihood of every evaluation token, in nats; 0 elsewhere."""
    evaluation_mask: Bool[Tensor, "batch tokens"]
    """Tokens outside of the training part whose predecessor is attended and in the same segment."""
    logits: Tensor | None
    """`[batch, tokens, vocabulary]` with logits="all"; `[evaluation tokens, vocabulary]`, those that predict
    `input_ids[evaluation_mask]`, with "evaluation"; None with "none"."""
    logits_before: Tensor | None = None
    token_loss_before: Float[Tensor, "batch tokens"] | None = None
    loss_before: Float[Tensor, ""] | None = None
    _updates: Callable[[int], dict[str, Tensor]] = field(repr=False)

    def updates(self, row: int | None = None) -> dict[str, Tensor]:
        """The change of every movable parameter: Hugging Face's names, shapes and orientation.

        Every sequence learns on its own, so a batch of several needs the `row` whose update is meant.
        """
        num_rows = len(self.token_loss)
        if row is None and num_rows > 1:
            raise InputError(f"this batch holds {num_rows} sequences, each with its own update: give row=")
        row = row or 0
        if not 0 <= row < num_rows:
            raise InputError(f"row={row} but the batch holds {num_rows} sequences, numbered from 0")
        return self._updates(row)


class Tint:
    """An auxiliary model, a learning rule and an engine that runs them in one pass."""

    def __init__(self, model: Any, rule: LearningRule, *, engine: str = "reference"):
        self.auxiliary = load(model)
        self.rule = rule
        rule.num_trained(len(self.auxiliary.blocks))
        if engine not in ENGINES:
            raise TintError(f"engine={engine!r} is unknown; choose one of {', '.join(ENGINES)}")
        module, name = ENGINES[engine]
        self.engine: Engine = getattr(import_module(module), name)(self.auxiliary, rule)

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
        if logits not in get_args(Logits):
            raise InputError(f"logits={logits!r} is unknown; choose one of {', '.join(get_args(Logits))}")
        batch = Batch.of(
            self.auxiliary,
            input_ids,
            train_mask=train_mask,
            attention_mask=attention_mask,
            loss_mask=loss_mask,
            segment_ids=segment_ids,
            position_ids=position_ids,
        )
        at = torch.ones_like(batch.evaluates) if logits == "all" else batch.evaluates
        result = self.engine.run(batch, at, before=before)
        loss, token_loss = _losses(batch, result.logits, at)
        before_losses = (None, None) if result.logits_before is None else _losses(batch, result.logits_before, at)
        return TintOutput(
            loss=loss,
            token_loss=token_loss,
            evaluation_mask=batch.evaluation_mask,
            logits=_returned(result.logits, at, logits),
            logits_before=_returned(result.logits_before, at, logits),
            loss_before=before_losses[0],
            token_loss_before=before_losses[1],
            _updates=result.updates,
        )


def _losses(batch: Batch, logits: Tensor, at: Tensor) -> tuple[Tensor | None, Tensor]:
    evaluated = batch.evaluates
    losses = head.token_loss(logits[evaluated[at]], batch.targets[evaluated])
    token_loss = torch.zeros(batch.input_ids.shape, dtype=losses.dtype, device=losses.device)
    token_loss[batch.evaluation_mask] = losses
    return (losses.mean() if len(losses) else None), token_loss


def _returned(logits: Tensor | None, at: Tensor, which: Logits) -> Tensor | None:
    if logits is None or which == "none":
        return None
    return logits.view(*at.shape, -1) if which == "all" else logits
