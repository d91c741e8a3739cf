"""What a pass returns: predictions and updates by an engine, and what the user gets of them."""

# B batch, T tokens, D width, V vocabulary

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tintformer.errors import InputError, TintError, warn
from tintformer.execution.batch import Batch
from tintformer.rule.head import token_loss
from tintformer.typed_fields import checked, explained

Logits = Literal["all", "evaluation", "none"]
RUINOUS = 1.5
"""A perplexity that is so many times what it was before learning is worth a warning."""


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a model says of a batch: the loss of every evaluation token, and logits where they were asked for."""

    losses: Float[Tensor, " evaluated"]
    """Negative log-likelihoods in nats, or squared errors of vectors, in row-major order of
    `Batch.evaluation_positions`."""
    logits: Float[Tensor, "positions V"] | None
    """In row-major order of the positions asked for."""


@dataclass(frozen=True, kw_only=True)
class EngineResult:
    """Predictions after (and before) learning, and the update of each sequence."""

    after: Predictions
    before: Predictions | None
    updates: Callable[[int], dict[str, Tensor]]
    """The update of every trainable parameter in one row, by Hugging Face name, shape and orientation."""


def predict(
    batch: Batch,
    x: Float[Tensor, "B T D"],
    logits_at: Bool[Tensor, "B T"] | None,
    head: Callable[[Tensor], Tensor],
) -> Predictions:
    """Predictions from the stream at the head's input; `head` turns rows of it into logits."""
    home, batch = batch.input_ids.device, batch.on(x.device)
    evaluated = batch.evaluation_positions
    # With a large vocabulary the head is the dearest product of a small model: it runs only where it is asked for.
    at = evaluated if logits_at is None else logits_at.to(evaluated.device)
    logits = head(x[at])
    losses = token_loss(logits[evaluated[at]], batch.targets[evaluated])
    return Predictions(losses=losses.to(home), logits=None if logits_at is None else logits.to(home))


def positions_of(logits: Logits, batch: Batch) -> Bool[Tensor, "B T"] | None:
    """The positions whose logits are asked for; None for none."""
    checked("logits", logits, Logits, InputError)
    return {"all": torch.ones_like(batch.evaluation_positions), "evaluation": batch.evaluation_positions, "none": None}[
        logits
    ]


@dataclass(frozen=True, eq=False)
class RowUpdates:
    """Forms the update of a row from what the pass has left behind, which holds the model and is not pickled."""

    form: Callable[[int], dict[str, Tensor]] | None

    def __call__(self, row: int) -> dict[str, Tensor]:
        if self.form is None:
            raise TintError(
                "this output was pickled, and updates stay where the pass was run: they are as large as the model; "
                "call updates() there, or keep one with adapt() and save()"
            )
        return self.form(row)

    def __deepcopy__(self, memo: Any) -> RowUpdates:
        return self  # it is never changed

    def __reduce__(self) -> Any:
        return RowUpdates, (None,)


@explained
@dataclass(frozen=True, eq=False, kw_only=True)
class TintOutput:
    """What a pass predicts after learning (and before, if asked), and what it learnt."""

    loss: Float[Tensor, ""] | None
    """Mean of `token_loss` over the evaluation tokens of the batch; None if there are none."""
    token_loss: Float[Tensor, "batch tokens"]
    """Negative log-likelihood of every evaluation token, in nats, or the squared error of every evaluated example; 0
    elsewhere."""
    evaluation_mask: Bool[Tensor, "batch tokens"]
    """Tokens outside of the training part whose predecessor is attended and in the same segment; of examples, all
    outside of the training part."""
    logits: Tensor | None
    """`[batch, tokens, vocabulary]` with logits="all"; `[evaluation tokens, vocabulary]`, those that predict
    `input_ids[evaluation_mask]`, with "evaluation"; None with "none". For examples they are the outputs."""
    logits_before: Tensor | None = None
    """`logits` of the model before learning; None unless `before=True` asked for it."""
    token_loss_before: Float[Tensor, "batch tokens"] | None = None
    """`token_loss` of the model before learning; None unless asked for."""
    loss_before: Float[Tensor, ""] | None = None
    """`loss` of the model before learning; None unless asked for."""
    learning_rates: Float[Tensor, " batch"] | None = None
    """The rate of each row where the rule's is `auto`, and was chosen for each; None where the rule has a number."""
    of_examples: bool = False
    """Whether losses are squared errors of examples, and not nats of tokens."""
    _updates: RowUpdates = field(repr=False)

    def __repr__(self) -> str:
        rows, tokens = self.token_loss.shape
        losses = [loss for loss in (self.loss_before, self.loss) if loss is not None]
        if self.of_examples:
            error = " -> ".join(f"{float(loss):.4g}" for loss in losses)
            found = f": squared error {error}" if losses else ""
            return f"<TintOutput of {rows} x {tokens} examples, {int(self.evaluation_mask.sum())} evaluated{found}>"
        nats = " -> ".join(f"{float(loss):.4f}" for loss in losses)
        perplexity = " -> ".join(f"{float(loss.exp()):.2f}" for loss in losses)
        found = f": loss {nats} nats per token, perplexity {perplexity}" if losses else ""
        logits = "no logits" if self.logits is None else f"logits {list(self.logits.shape)}"
        return f"<TintOutput of {rows} x {tokens} tokens, {int(self.evaluation_mask.sum())} evaluated{found}; {logits}>"

    @classmethod
    def of(cls, batch: Batch, result: EngineResult) -> TintOutput:
        """Bring an engine's result into the batch's shape.

        Args:
            batch: The sequences.
            result: What an engine made of them.
        """

        def losses(predictions: Predictions | None) -> tuple[Tensor | None, Tensor | None]:
            if predictions is None:
                return None, None
            token_loss = predictions.losses.new_zeros(batch.input_ids.shape)
            # Computed at the token before, shown at the token itself, which is what a reader looks for.
            token_loss[batch.evaluation_mask] = predictions.losses
            return (predictions.losses.mean() if len(predictions.losses) else None), token_loss

        def logits(predictions: Predictions | None) -> Tensor | None:
            if predictions is None or predictions.logits is None:
                return None
            everywhere = len(predictions.logits) == batch.input_ids.numel()
            return predictions.logits.view(*batch.input_ids.shape, -1) if everywhere else predictions.logits

        loss, token_loss = losses(result.after)
        loss_before, token_loss_before = losses(result.before)
        assert token_loss is not None
        return cls(
            loss=loss,
            token_loss=token_loss,
            evaluation_mask=batch.evaluation_mask,
            logits=logits(result.after),
            logits_before=logits(result.before),
            loss_before=loss_before,
            token_loss_before=token_loss_before,
            learning_rates=batch.rates,
            of_examples=batch.targets.is_floating_point(),
            _updates=RowUpdates(result.updates),
        )

    def updates(self, row: int | None = None) -> dict[str, Tensor]:
        """The update of every trainable parameter: Hugging Face's names, shapes and orientation.

        Every sequence learns on its own.

        Args:
            row: Whose update, from 0; a batch of several sequences needs it.
        """
        num_rows = len(self.token_loss)
        if row is None and num_rows > 1:
            raise InputError(f"this batch holds {num_rows} sequences, each with its own update: give row=")
        number: int = 0 if row is None else checked("row", row, int, InputError)
        if not 0 <= number < num_rows:
            raise InputError(f"row={number} but the batch holds {num_rows} sequences, numbered from 0")
        return self._updates(number)

    def ruined_rows(self) -> list[int]:
        """The rows whose perplexity went up by more than half, as far as `before` tells; squared errors have none."""
        if self.token_loss_before is None or self.of_examples:
            return []
        worse = (self.token_loss - self.token_loss_before).double().sum(1)
        return (worse > math.log(RUINOUS) * self.evaluation_mask.sum(1)).nonzero().flatten().tolist()

    @property
    def log_probability(self) -> Float[Tensor, " batch"]:
        """Log-probability of each row's evaluation tokens together: of a label, say, given its prompt."""
        return -self.token_loss.sum(-1)


def warn_of_ruin(out: TintOutput, *, auto: bool = False) -> None:
    """Say so if learning has made the predictions of a row much worse."""
    if not (rows := out.ruined_rows()) or out.token_loss_before is None:
        return
    evaluated = out.evaluation_mask[rows[0]]
    before, after = (
        float(loss[rows[0]][evaluated].double().mean()) for loss in (out.token_loss_before, out.token_loss)
    )
    warn_of_perplexities(before, after, where=f"row {rows[0]}: " if len(out.token_loss) > 1 else "", auto=auto)


def warn_of_perplexities(before: float, after: float, *, where: str = "", auto: bool = False) -> None:
    """Warn if a loss has gone up by so much that learning has ruined the model for its text.

    `auto` says that the rate was chosen, and not given: that remedy is used up.
    """
    remedy = (
        "the rate that was chosen is too large for this text; train on more of it, measure rates on texts like it with "
        "`tint rates`, or give a quarter of the rate as a number"
        if auto
        else "the rate is too large for this text; take a quarter of it, or leave it to learning_rate='auto'"
    )
    if after - before > math.log(RUINOUS):
        warn(
            f"{where}learning has made the predictions much worse (loss {before:.2f} before, {after:.2f} after): "
            f"{remedy}"
        )
