"""Scoring label words: what a model says to test inputs, learning from each of them or not, and how right that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tintformer.errors import DivergenceError
from tintlab.data.packing import (
    Packed,
    Prompted,
    TrainedTokens,
    after_shared,
    loss_by_segment,
    to_learn,
    to_score,
)
from tintlab.methods.methods import Adaptation, learn_each

if TYPE_CHECKING:
    from torch import Tensor

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.learning.tuned import Tuned

ROWS = 8
"""Sequences that run together. More want more memory, fewer are slower."""
SHARED_TOKENS = 2048
"""Tokens of inputs that share one computation of the demonstrations before them. Attention over a sequence grows with
the square of its length, so that more would cost more than the demonstrations save."""


@dataclass(frozen=True, eq=False, kw_only=True)
class InputLearning:
    """How every input is learnt from by itself, in one pass with its prediction."""

    auxiliary: Auxiliary
    rule: Adaptation
    engine: str
    loss: TrainedTokens
    test_text: bool
    """Whether the test input is learnt from as well, up to its answer."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelScorer:
    """Scores label words by a model that learns from every input, or by one that serves all of them."""

    model: InputLearning | Tuned
    one_context: bool
    """Whether all inputs stand behind the same demonstrations, and nothing is learnt from any of them."""
    own_segment: bool
    """Whether demonstrations stand in segments that are invisible to the test input's."""

    def scores(self, asked: Sequence[Prompted]) -> list[list[float]]:
        """The log-probability of every label word, for each input."""
        # Sorted by length, rows of a batch need little padding; results go back to the order of the inputs.
        order = sorted(range(len(asked)), key=lambda at: len(asked[at].sequences[0]))  # little padding
        found: dict[int, list[float]] = {}
        for group in self._groups(asked, order):
            found.update(zip(group, self._batch([asked[at] for at in group]), strict=True))
        return [found[at] for at in range(len(asked))]

    def _groups(self, asked: Sequence[Prompted], order: list[int]) -> Iterator[list[int]]:
        """Inputs that run together; behind one context, as many as `SHARED_TOKENS` has room for."""
        if not self.one_context:
            yield from (order[start : start + ROWS] for start in range(0, len(order), ROWS))
            return
        group, size = list[int](), 0
        for at in order:
            tokens = sum(sum(role >= role.TEST for role in sequence.roles) for sequence in asked[at].sequences)
            if group and size + tokens > SHARED_TOKENS:
                yield group
                group, size = [], 0
            group, size = [*group, at], size + tokens
        yield group

    def _batch(self, asked: Sequence[Prompted]) -> list[list[float]]:
        import torch

        words = len(asked[0].answers)
        sequences, short = to_run(asked)
        try:
            losses, logits = self.predict(sequences, logits=short)
        except DivergenceError:
            return [[-math.inf] * words for _ in asked]
        if not short:
            return (-losses).view(len(asked), words).tolist()
        assert logits is not None
        # One row of logits holds the log-probability of every label word, so one pass serves all of them.
        ids = torch.tensor([[answer[0] for answer in each.answers] for each in asked])
        return logits.double().log_softmax(-1).gather(1, ids.to(logits.device)).tolist()

    def predict(self, sequences: Sequence[Packed], *, logits: bool) -> tuple[Tensor, Tensor | None]:
        """The loss of the answer of each sequence, and the logits that predict the tokens of all answers, in order."""
        wanted: Literal["evaluation", "none"] = "evaluation" if logits else "none"
        if isinstance(self.model, InputLearning):
            model = self.model
            learning = to_learn(sequences, loss=model.loss, test_text=model.test_text)
            out = learn_each(model.auxiliary, model.rule, model.engine, logits=wanted, **learning)
            return out.token_loss.double().sum(1), out.logits
        rows = self._visible(sequences)
        out = self.model.score(**to_score(rows), logits=wanted)
        return loss_by_segment(rows, out.token_loss), out.logits

    def _visible(self, sequences: Sequence[Packed]) -> Sequence[Packed]:
        """What the answers can see."""
        if self.one_context:
            return after_shared(sequences)
        return [sequence.alone() for sequence in sequences] if self.own_segment else sequences


def to_run(asked: Sequence[Prompted]) -> tuple[list[Packed], bool]:
    """The sequences that score all label words, and whether one an input is enough.

    It is where every label word is one token: the logits of all of them stand in one place.
    """
    short = all(len(answer) == 1 for each in asked for answer in each.answers)
    return [sequence for each in asked for sequence in (each.sequences[:1] if short else each.sequences)], short


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a method said to the test examples of one seed."""

    seed: int
    labels: tuple[int, ...]
    scores: tuple[tuple[float, ...], ...]
    """Log-probabilities of the label words, for each example."""
    calibration: tuple[float, ...]
    """Those of the calibration prompt."""
    num_tokens: tuple[int, ...]
    """Tokens of each label word."""
    demonstrations: float
    """How many were in the prompt, on average: "multi" takes as many as fit."""
    cut: int
    """Texts that lost their end."""

    # Appendix "Experiments", paragraph "Calibration": Pr[word | input, prompt] / Pr[word | prompt], here in logarithms.
    def calibrated(self) -> Answers:
        """Scores above what the prompt alone makes of the label words."""
        return replace(
            self,
            scores=tuple(
                tuple(score - empty for score, empty in zip(scores, self.calibration, strict=True))
                for scores in self.scores
            ),
        )

    def by_length(self) -> Answers:
        """Scores as a mean over the tokens of each label word, for words of different lengths."""
        counts = self.num_tokens
        return replace(
            self,
            scores=tuple(tuple(s / n for s, n in zip(each, counts, strict=True)) for each in self.scores),
            calibration=tuple(s / n for s, n in zip(self.calibration, counts, strict=True)),
        )

    def right(self) -> list[float]:
        """1 where the best label word is the right one, else 0; a diverged model is right nowhere."""
        return [
            float(math.isfinite(max(scores)) and scores.index(max(scores)) == label)
            for scores, label in zip(self.scores, self.labels, strict=True)
        ]

    def wrong(self) -> list[float]:
        """1 where the best label word is not the right one, else 0."""
        return [1 - value for value in self.right()]

    def cross_entropy(self) -> list[float]:
        """Of the right label among the label words, in nats."""
        return [_cross_entropy(scores, label) for scores, label in zip(self.scores, self.labels, strict=True)]


def by_seed(answers: Sequence[Answers], calibrated: bool, by_length: bool, measure: str) -> list[list[float]]:
    """One number a test example, for each seed."""
    values: list[list[float]] = []
    for each in answers:
        each = each.by_length() if by_length else each
        each = each.calibrated() if calibrated else each
        values.append(getattr(each, measure)())
    return values


def _cross_entropy(scores: tuple[float, ...], label: int) -> float:
    best = max(scores)
    if not math.isfinite(best):
        return math.inf
    return best + math.log(sum(math.exp(score - best) for score in scores)) - scores[label]
