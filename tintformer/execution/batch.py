"""Masks and positions, once and for all: what the user passes, checked, and what every engine derives from it.

B batch, T tokens. Padding may stand on either side. Segments are independent examples packed in one sequence; the
id -1 marks leading tokens that every segment sees (a shared BOS).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypedDict, Unpack

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import InputError, TintWarning
from tintformer.execution.inputs import SHARED, Array, ids_of, mask_of, mask_or_all, token_ids
from tintformer.rule.learning_rule import LearningRule


class Masks(TypedDict, total=False):
    """What may be said of any sequences, token by token: `[batch, tokens]` each; None is as good as leaving it out."""

    attention_mask: Array | None
    """1 for tokens, 0 for padding, on either side; without it there is no padding."""
    segment_ids: Array | None
    """Packs independent examples into one sequence, each with its id; -1 marks leading tokens that all of them see."""
    position_ids: Array | None
    """Positions of one's own; by default each token's number in its segment, padding left out."""


class LearningMasks(Masks, total=False):
    """What may be said of sequences that are learnt from, besides `train_mask`."""

    loss_mask: Array | None
    """Restricts the training targets further: to the labels of demonstrations, say."""
    step_ids: Array | None
    """The number of the step that trains on each target, from 1; 0, as without them: every step does."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """Sequences with their training parts; build it with `Batch.of`, which checks everything."""

    input_ids: Int[Tensor, "B T"]
    attention_mask: Bool[Tensor, "B T"]
    segment_ids: Int[Tensor, "B T"]
    train_mask: Bool[Tensor, "B T"]
    """Tokens of the training part (padding excluded)."""
    loss_mask: Bool[Tensor, "B T"]
    """Tokens that may be training targets."""
    score_mask: Bool[Tensor, "B T"]
    """Tokens that may be evaluated (padding excluded)."""
    position_ids: Int[Tensor, "B T"] | None = None
    """As the user gave them; `positions` are those that count."""
    rates: Float[Tensor, " B"] | None = None
    """The learning rate of each sequence where it was chosen for each on its own; None: that of the rule."""
    step_ids: Int[Tensor, "B T"] | None = None
    """The step that trains on each target; 0: every step."""

    @classmethod
    def of(
        cls,
        auxiliary: Auxiliary,
        input_ids: Array,
        *,
        train_mask: Array,
        loss_mask: Array | None = None,
        step_ids: Array | None = None,
        **masks: Unpack[Masks],
    ) -> Batch:
        """Sequences to learn from and to predict: the user's tensors, checked, on the auxiliary's device."""
        ids = token_ids(input_ids, auxiliary)
        train = mask_of("train_mask", train_mask, ids)
        _check_names(masks, LearningMasks)
        batch = cls._checked(auxiliary, ids, train, mask_or_all("loss_mask", loss_mask, ids), ~train, **masks)
        if step_ids is not None:
            batch = replace(batch, step_ids=ids_of("step_ids", step_ids, ids))
        check_training(batch)
        return batch

    @classmethod
    def to_score(
        cls,
        auxiliary: Auxiliary,
        input_ids: Array,
        *,
        score_mask: Array | None = None,
        **masks: Unpack[Masks],
    ) -> Batch:
        """Sequences to predict only."""
        ids = token_ids(input_ids, auxiliary)
        _check_names(masks, Masks)
        nothing = torch.zeros_like(ids, dtype=torch.bool)
        # An empty training part, which `of` refuses, is meant here: with no target there is no step.
        score = mask_or_all("score_mask", score_mask, ids)
        return cls._checked(auxiliary, ids, nothing, nothing, score, **masks)

    @classmethod
    def _checked(
        cls,
        auxiliary: Auxiliary,
        ids: Tensor,
        train: Tensor,
        loss: Tensor,
        score: Tensor,
        attention_mask: Array | None = None,
        segment_ids: Array | None = None,
        position_ids: Array | None = None,
    ) -> Batch:
        attended = mask_or_all("attention_mask", attention_mask, ids)
        batch = cls(
            input_ids=ids,
            attention_mask=attended,
            segment_ids=torch.zeros_like(ids) if segment_ids is None else ids_of("segment_ids", segment_ids, ids),
            # `loss_mask` stays as it was given: it never makes a target by itself, it only takes some away.
            train_mask=train & attended,
            loss_mask=loss,
            score_mask=score & attended,
            position_ids=None if position_ids is None else ids_of("position_ids", position_ids, ids),
        )
        _check_rows(batch)
        _check_positions(batch, auxiliary)
        return batch

    def extended(self, auxiliary: Auxiliary, input_ids: Array, attention_mask: Array | None = None) -> Batch:
        """The same sequences with more tokens behind them, which are neither trained on nor evaluated.

        They belong to the last segment of their sequence. `attention_mask` is that of all tokens, old and new.
        """
        ids = token_ids(input_ids, auxiliary)
        if len(ids) != len(self.input_ids):
            raise InputError(f"{len(ids)} sequences cannot continue {len(self.input_ids)}")
        old, new = self.input_ids.shape[1], ids.shape[1]
        nothing = torch.zeros_like(ids, dtype=torch.bool)
        together = torch.cat((self.input_ids, ids), dim=1)
        attended = torch.cat((self.attention_mask, ~nothing), dim=1)
        if attention_mask is not None:
            attended = mask_of("attention_mask", attention_mask, together)
            # Keys and values of those tokens were computed under the old mask, and are not computed again.
            if not torch.equal(attended[:, :old], self.attention_mask):
                raise InputError("attention_mask says otherwise of tokens that have been read; give the same for them")
        positions = self.position_ids
        if positions is not None:
            # The user's own positions go on in steps of 1; those derived from the masks are derived anew.
            following = torch.arange(1, new + 1, device=ids.device)
            positions = torch.cat((positions, positions[:, -1:] + following), dim=1)
        batch = Batch(
            input_ids=together,
            attention_mask=attended,
            segment_ids=torch.cat((self.segment_ids, self.segment_ids[:, -1:].expand(-1, new)), dim=1),
            train_mask=torch.cat((self.train_mask, nothing), dim=1),
            loss_mask=torch.cat((self.loss_mask, nothing), dim=1),
            score_mask=torch.cat((self.score_mask, nothing), dim=1),
            position_ids=positions,
            rates=self.rates,
        )
        _check_positions(batch, auxiliary)
        return batch

    def select(self, rows: Tensor | None = None, *, tokens: int | None = None) -> Batch:
        """Some of the sequences, in any order, and the first tokens of them."""

        def part(value: Tensor) -> Tensor:
            return value[:, :tokens] if rows is None else value[:, :tokens].index_select(0, rows.to(value.device))

        rates = self.rates if rows is None or self.rates is None else self.rates[rows.to(self.rates.device)]
        return replace(self, rates=None)._with(part, rates)

    def columns(self, part: slice) -> Batch:
        """The same sequences, of which only these tokens are there."""
        return self._with(lambda value: value[:, part])

    def joined(self, others: Sequence[Batch]) -> Batch:
        """These sequences and then those of the others, all of the same length and with the same fields."""

        def rows(name: str) -> Tensor | None:
            parts = [getattr(batch, name) for batch in (self, *others)]
            return None if parts[0] is None else torch.cat(parts)

        return replace(self, **{field.name: rows(field.name) for field in fields(self)})

    def padded(self, num_tokens: int) -> Batch:
        """The same sequences with padding behind them, up to so many tokens."""
        missing = num_tokens - self.input_ids.shape[1]
        if missing == 0:
            return self
        return self._with(lambda value: functional.pad(value, (*(0, 0) * (value.dim() - 2), 0, missing)))

    def on(self, device: torch.device) -> Batch:
        """The same sequences on another device; copied there once."""
        if device == self.input_ids.device or device.type == "meta":  # nothing is computed there, only foreseen
            return self
        if device not in self._copies:
            self._copies[device] = self._with(lambda value: value.to(device))
        return self._copies[device]

    def _with(self, change: Callable[[Tensor], Tensor], rates: Tensor | None = None) -> Batch:
        """The batch with each of its tensors `[B, T, ...]` changed alike, and with other rates if there are any."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "rates"}
        changed = {name: change(tensor) for name, tensor in given.items() if tensor is not None}
        return replace(self, **changed, rates=self.rates if rates is None else rates)

    def largest_rate(self, rule: LearningRule) -> float:
        """The rate of all sequences, or the largest of theirs."""
        return rule.rate if self.rates is None else float(self.rates.max())

    @cached_property
    def _copies(self) -> dict[torch.device, Batch]:
        return {}

    @cached_property
    def inputs(self) -> Shaped[Tensor, "B T *vector"]:
        """What enters at each position: a token by its number, or a vector."""
        return self.input_ids

    @cached_property
    def placed_targets(self) -> Shaped[Tensor, "B T *vector"]:
        """Targets where they stand, for whoever has to find them: a token is the target of the one before."""
        return self.input_ids

    @cached_property
    def targets(self) -> Shaped[Tensor, "B T *vector"]:
        """The token that each position predicts; the last position predicts none, and its entry is not used."""
        # Rolled, not cut, so that every tensor keeps the shape [B, T];
        # `predicts` is False where the roll wraps around.
        return self.input_ids.roll(-1, dims=1)

    @cached_property
    def predicts(self) -> Bool[Tensor, "B T"]:
        """Positions t whose next token stands in the same segment, both attended."""
        # Both attended, since padding may stand anywhere; the same segment,
        # since packed examples do not predict each other.
        following = (
            self.attention_mask
            & self.attention_mask.roll(-1, dims=1)
            & (self.segment_ids == self.segment_ids.roll(-1, dims=1))
        )
        following[:, -1] = False
        return following

    @cached_property
    def train_positions(self) -> Bool[Tensor, "B T"]:
        """Positions t whose next token is a training target."""
        # Masks are of targets, gradients start at predictors, one to the left. The token before the training part may
        # be one. `train_mask` is nowhere in `visible`: it restricts the loss, and attention sees the whole sequence.
        return self.predicts & (self.train_mask & self.loss_mask).roll(-1, dims=1)

    def train_positions_at(self, step: int | None) -> Bool[Tensor, "B T"]:
        """Positions whose next token is a target of this step."""
        if self.step_ids is None or step is None:
            return self.train_positions
        of_target = self.step_ids.roll(-1, dims=1)
        return self.train_positions & ((of_target == 0) | (of_target == step))

    def require_steps(self, rule: LearningRule) -> None:
        """Refuse a target of a step that the rule does not make: nothing would be learnt from it, without a word."""
        step, row, token = self.last_step
        if step > rule.steps:
            raise InputError(
                f"step_ids of row {row} has step {step} for token {token} but the rule makes steps={rule.steps}, so "
                f"nothing would be learnt from it; use steps={step}, or step_ids up to {rule.steps} (0: every step)"
            )

    @cached_property
    def last_step(self) -> tuple[int, int, int]:
        """The last step that a target is for, and the first of its targets: row and token; 0 where there is none."""
        if self.step_ids is None:
            return 0, 0, 0
        steps = self.step_ids.roll(-1, dims=1) * self.train_positions
        row, position = divmod(int(steps.argmax()), steps.shape[1])
        return int(steps[row, position]), row, position + 1

    @cached_property
    def evaluation_positions(self) -> Bool[Tensor, "B T"]:
        """Positions t whose next token is evaluated."""
        return self.predicts & self.score_mask.roll(-1, dims=1)

    @cached_property
    def evaluation_mask(self) -> Bool[Tensor, "B T"]:
        """The evaluated tokens themselves, one to the right of `evaluation_positions`."""
        # Not `score_mask`: a token without a predecessor in its segment is asked for but cannot be predicted.
        return self.evaluation_positions.roll(1, dims=1)

    @cached_property
    def distances(self) -> Int[Tensor, "B T"]:
        """Each token's number among the tokens of its segment and the shared ones before it; padding counts nothing."""
        # Every segment counts on from the shared tokens, as if it were alone behind them.
        shared = self.attention_mask & (self.segment_ids == SHARED)
        result = (shared.cumsum(1) - 1) * shared
        num_shared = shared.sum(1, keepdim=True)
        # One segment at a time: their tokens may be mixed, and a single running count would number across them.
        for segment in self.segment_ids.unique().tolist():
            if segment != SHARED:
                own = self.attention_mask & (self.segment_ids == segment)
                result = torch.where(own, num_shared + own.cumsum(1) - 1, result)
        return result

    @cached_property
    def segment_ranks(self) -> Int[Tensor, "B T"]:
        """Segments by the order of their ids, from 0: small numbers, whatever the user's are."""
        return torch.unique(self.segment_ids, return_inverse=True)[1]

    @cached_property
    def num_reached(self) -> int:
        """Tokens up to the last that a training target is predicted from: the loss depends on no later one."""
        reached = self.train_positions.any(0).nonzero()
        # One token where there is no target: the steps run all the same, with a gradient of zero.
        return int(reached[-1]) + 1 if len(reached) else 1

    @cached_property
    def positions(self) -> Int[Tensor, "B T"]:
        """Position ids: the user's, or the distances; 0 for padding."""
        return self.distances if self.position_ids is None else self.position_ids * self.attention_mask

    def is_plain(self) -> bool:
        """Whether causality alone says who sees whom: one segment, and padding at most on the right.

        Padding on the right then sees tokens that it should not, but nothing sees it, and its outputs are not used.
        """
        # Worth asking: a kernel that knows causality alone is fast, and reads no mask of T x T.
        one_segment = bool((self.segment_ids == self.segment_ids[:, :1]).all())
        return one_segment and bool((self.attention_mask[:, :-1] >= self.attention_mask[:, 1:]).all())

    def visible(self, window: int | None = None, *, first: int = 0) -> Bool[Tensor, "B Q T"]:
        """visible[b, t, j]: token t (from `first` on) sees token j. Padding sees itself alone: no softmax is empty."""
        tokens = torch.arange(self.input_ids.shape[1], device=self.input_ids.device)
        asking = tokens[first:, None]
        query_segments, key_segments = self.segment_ids[:, first:, None], self.segment_ids[:, None, :]
        # A shared token itself sees shared ones only: else segments would be visible to each other through it.
        seen = (asking >= tokens) & ((query_segments == key_segments) | (key_segments == SHARED))
        seen = seen & self.attention_mask[:, first:, None] & self.attention_mask[:, None, :]
        if window is not None:
            # Windows are counted in tokens of one's own segment: neither
            # padding nor another example between may fill them.
            seen = seen & (self.distances[:, first:, None] - self.distances[:, None, :] < window)
        return seen | (asking == tokens)

    def additive_mask(self, dtype: torch.dtype, window: int | None = None, *, first: int = 0) -> Float[Tensor, "B Q T"]:
        """Added to scores: 0 where visible, the smallest finite number elsewhere."""
        # The smallest finite number, not -inf: next to any visible score its exponential is exactly 0
        # all the same, while a row of -inf is NaN, and so is 0 * -inf wherever a mask is multiplied. One
        # NaN at padding would spread by sums over tokens.
        hidden = ~self.visible(window, first=first)
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min)


@dataclass(frozen=True, eq=False, kw_only=True)
class Chunk(Batch):
    """A part of longer sequences: what its last token predicts comes later, so that targets are given."""

    following: Int[Tensor, "B T"]
    """The token that each position predicts."""
    predicting: Bool[Tensor, "B T"]
    """Positions whose next token is scored."""

    @cached_property
    def targets(self) -> Int[Tensor, "B T"]:
        return self.following

    @cached_property
    def predicts(self) -> Bool[Tensor, "B T"]:
        return self.predicting

    @cached_property
    def train_positions(self) -> Bool[Tensor, "B T"]:
        # Masks of a chunk are of its predictors: the target itself may stand beyond its end.
        return self.predicting & self.train_mask & self.loss_mask

    @cached_property
    def evaluation_positions(self) -> Bool[Tensor, "B T"]:
        return self.predicting


class TracedBatch(Batch):
    """A batch whose numbers are unknown while its pass is traced: every shape is the same whatever they are.

    One segment a sequence, with padding anywhere; nothing is checked.
    """

    @classmethod
    def of_masks(cls, input_ids: Tensor, attention_mask: Tensor, train_mask: Tensor) -> TracedBatch:
        """From masks of 0 and 1."""
        attended = attention_mask != 0
        train = attended & (train_mask != 0)
        return cls(
            # Padding may hold any number, and a table has no row for most of them.
            input_ids=torch.where(attended, input_ids, 0),
            attention_mask=attended,
            segment_ids=torch.zeros_like(input_ids),
            train_mask=train,
            loss_mask=attended,
            score_mask=attended & ~train,
        )

    @cached_property
    def predicts(self) -> Bool[Tensor, "B T"]:
        return self.attention_mask & functional.pad(self.attention_mask[:, 1:], (0, 1))

    @cached_property
    def distances(self) -> Int[Tensor, "B T"]:
        attended = self.attention_mask.long()
        return (attended.cumsum(1) - 1) * attended

    @cached_property
    def segment_ranks(self) -> Int[Tensor, "B T"]:
        return self.segment_ids

    @cached_property
    def num_reached(self) -> int:
        return self.input_ids.shape[1]

    def is_plain(self) -> bool:
        return False


def _check_names(masks: Mapping[str, Any], known: Any) -> None:
    if unknown := sorted(masks.keys() - known.__annotations__.keys()):
        raise InputError(f"{', '.join(unknown)}: unknown here; known are {', '.join(known.__annotations__)}")


def _first_row(rows: Tensor) -> int:
    return int(rows.nonzero()[0])


def _check_rows(batch: Batch) -> None:
    empty = ~batch.attention_mask.any(1)
    if empty.any():
        raise InputError(f"row {_first_row(empty)} is all padding: its attention_mask is 0 everywhere")
    shared = batch.attention_mask & (batch.segment_ids == SHARED)
    # Attention is causal: what stands before a shared token could not see it, and would not share it.
    late = shared & ((batch.attention_mask & ~shared).cumsum(1) > 0)
    if late.any():
        row, token = late.nonzero()[0].tolist()
        raise InputError(f"token {token} of row {row} is shared (segment id -1) but stands after a segment's token")


def check_training(batch: Batch) -> None:
    """Refuse a row without a training part, and say so of one without a target."""
    untrained = ~batch.train_mask.any(1)
    if untrained.any():
        raise InputError(f"row {_first_row(untrained)} has an empty training part: its train_mask is 0 everywhere")
    # A warning, not an error: in a large batch one row without a target is no reason to stop.
    unscored = ~batch.train_positions.any(1)
    if unscored.any():
        warnings.warn(
            f"row {_first_row(unscored)} has no training target (a target is a token of train_mask and loss_mask "
            "whose predecessor is in the same segment), so nothing is learnt from it",
            TintWarning,
            stacklevel=4,
        )


def _check_positions(batch: Batch, auxiliary: Auxiliary) -> None:
    if batch.position_ids is not None and not auxiliary.takes_position_ids():
        raise InputError(f"position_ids cannot be given to {auxiliary.family}: ALiBi counts the visible tokens itself")
    if auxiliary.max_positions is None:
        return
    longest = int(batch.positions[batch.attention_mask].max()) + 1
    if longest <= auxiliary.max_positions:
        return
    message = f"a sequence reaches {longest} positions but {auxiliary.name} was built for {auxiliary.max_positions}"
    # A table has no row there; rotary angles and ALiBi's slopes go on, but the model was never trained so far out.
    if auxiliary.learned_positions:
        raise InputError(f"{message} and has learned positions; shorten it or split it into segments")
    warnings.warn(f"{message}; its predictions beyond are extrapolation", TintWarning, stacklevel=4)
