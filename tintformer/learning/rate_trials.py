"""Trials of learning rates: parts of a text are learnt from at one rate after the other, and what follows is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.engines.fast import FastEngine
from tintformer.engines.fast.updates import Updates
from tintformer.errors import DivergenceError
from tintformer.execution.batch import Batch
from tintformer.learning.engine_registry import engines_that, make_engine
from tintformer.rule.learning_rule import LearningRule


class Span(NamedTuple):
    """Which part of a training part a fold learns from, and up to where it is scored, as shares of its tokens."""

    trained: Fraction
    scored: Fraction


FOLDS = tuple(Span(Fraction(part, 4), Fraction(part + 1, 4)) for part in (1, 2, 3))
"""Each quarter of a training part but the first is scored once, by what was learnt from all before it."""


FORMED = 2 * 1024**3
"""Bytes that updates may take where they are formed once for all rates; a pass takes as much again. Larger models form
them anew for every rate, one matrix at a time."""


class Trials:
    """Sequences with a part to learn from and a part to score, at one rate after the other.

    A rate is that of the whole training part: with a summed loss, whose gradient grows with its targets, a fold that
    has fewer of them takes a step that is longer by as much.
    """

    def __init__(
        self,
        auxiliary: Auxiliary,
        rule: LearningRule,
        folds: Sequence[Batch],
        targets: Float[Tensor, " B"],
        *,
        engine: str = "fast",
        together: bool = False,
    ):
        """`targets` are those of each sequence's whole training part; `together` makes one update of a whole fold."""
        self.auxiliary, self.together = auxiliary, together
        own = [fold.train_positions.sum(1).double().to(targets.device) for fold in folds]
        if rule.reduction == "mean":
            stretches = [torch.ones_like(each) for each in own]
        elif together:
            stretches = [(targets.sum() / each.sum()).expand(len(each)) for each in own]
        else:
            stretches = [targets / each for each in own]
        # All folds in one pass, unless a fold is one update.
        self.folds = [*folds] if together else [_stacked(folds)]
        self.stretches = stretches if together else [torch.cat(stretches)]
        self.rule = replace(rule, learning_rate="auto")
        # What holds a rate in its weights would be built anew for each; all engines agree.
        self.engine = engine if engine in engines_that("takes_rates") else "fast"

    def losses(self, rate: float) -> Float[Tensor, " scored"] | None:
        """The loss of every scored token after learning at a rate, fold by fold; None if that diverges."""
        try:
            found = [self._losses(number, rate) for number in range(len(self.folds))]
        # Divergence is an answer to the question that is asked here: this rate is too large.
        except DivergenceError:
            return None
        losses = torch.cat(found).double().cpu()
        return losses if bool(torch.isfinite(losses).all()) else None

    def _losses(self, number: int, rate: float) -> Tensor:
        fold, rates = self.folds[number], rate * self.stretches[number]
        fast = FastEngine(self.auxiliary, self.rule)
        if rate == 0:
            return fast.score(fold, Updates(), logits_at=None).after.losses
        if self.rule.steps == 1 and self.engine == "fast":
            # The gradient of a single step knows no rate: it is taken once for all of them.
            return fast.score(fold, self._learnt[number].scaled(rate), logits_at=None).after.losses
        if self.together:
            return fast.score(fold, self._adapted(number, float(rates[0])), logits_at=None).after.losses
        engine = make_engine(self.engine, self.auxiliary, self.rule)
        return engine.run(replace(fold, rates=rates), logits_at=None, before=False).after.losses

    @cached_property
    def _learnt(self) -> list[Updates]:
        """What each fold learns at a rate of 1."""
        if self.together:
            return [self._adapted(number, float(each[0])) for number, each in enumerate(self.stretches)]
        engine = FastEngine(self.auxiliary, self.rule)
        pairs = zip(self.folds, self.stretches, strict=True)
        return [
            engine.learn(replace(fold, rates=each)).to_rescale(fold.input_ids.shape[1], FORMED) for fold, each in pairs
        ]

    def _adapted(self, number: int, rate: float) -> Updates:
        return FastEngine(self.auxiliary, replace(self.rule, learning_rate=rate)).adapt(self.folds[number])


def training_part(batch: Batch) -> Batch:
    """The training parts alone, of which all targets are scored."""
    return replace(fold(batch, Span(Fraction(0), Fraction(1))), rates=None)


def fold(batch: Batch, span: Span) -> Batch:
    """The training parts alone: the first share of their tokens trains, those behind it up to another are scored."""
    count, number = batch.train_mask.sum(1, keepdim=True), batch.train_mask.cumsum(1)
    trained = (count * span.trained.numerator) // span.trained.denominator
    scored = (count * span.scored.numerator) // span.scored.denominator
    # Nothing else is even attended: a rate that was chosen with a view of the evaluation part would be a leak.
    shown = batch.train_mask & (number <= scored)
    train = shown & (number <= trained)
    part = replace(
        batch, attention_mask=shown, train_mask=train, score_mask=shown & ~train & batch.loss_mask, rates=None
    )
    columns = batch.train_mask.any(0).nonzero().flatten()
    return part.columns(slice(int(columns[0]), int(columns[-1]) + 1))


def _stacked(folds: Sequence[Batch]) -> Batch:
    """Folds of the same width as one batch."""
    first = folds[0]
    return first.joined(folds[1:]) if len(folds) > 1 else first
