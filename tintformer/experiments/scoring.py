"""Scoring label words, after learning as a unit of in-context learning says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from tintformer.errors import DivergenceError
from tintformer.experiments.classification import ClassificationUnit, InContextLearning, open_classification
from tintformer.experiments.learning import learn_each, learn_once
from tintformer.experiments.packing import (
    Packed,
    Prompted,
    after_shared,
    dense,
    loss_by_segment,
    separate,
    to_learn,
    to_score,
)
from tintformer.rule.learning_rule import LearningRule

if TYPE_CHECKING:
    from torch import Tensor

    from tintformer.learning.tuned import Tuned

ROWS = 8
"""Sequences that run together. More want more memory, fewer are slower."""
TOGETHER = 2048
"""Tokens of inputs that share one computation of the demonstrations before them. Attention over a sequence grows with
the square of its length, so that more would cost more than the demonstrations save."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Scorer:
    """Learns as a unit says, and scores label words."""

    experiment: InContextLearning
    unit: ClassificationUnit

    def scores(self, asked: Sequence[Prompted]) -> list[list[float]]:
        """The log-probability of every label word, for each input."""
        order = sorted(range(len(asked)), key=lambda at: len(asked[at].sequences[0]))  # little padding
        found: dict[int, list[float]] = {}
        for group in self._groups(asked, order):
            found.update(zip(group, self._batch([asked[at] for at in group]), strict=True))
        return [found[at] for at in range(len(asked))]

    def _groups(self, asked: Sequence[Prompted], order: list[int]) -> Iterator[list[int]]:
        """Inputs that run together; behind one context, as many as `TOGETHER` has room for."""
        if not self._one_context:
            yield from (order[start : start + ROWS] for start in range(0, len(order), ROWS))
            return
        group, size = list[int](), 0
        for at in order:
            tokens = sum(sum(role >= role.TEST for role in sequence.roles) for sequence in asked[at].sequences)
            if group and size + tokens > TOGETHER:
                yield group
                group, size = [], 0
            group, size = [*group, at], size + tokens
        yield group

    def _batch(self, asked: Sequence[Prompted]) -> list[list[float]]:
        """One sequence an input where every label word is one token: their logits stand in one place."""
        import torch

        words = len(asked[0].answers)
        short = all(len(answer) == 1 for each in asked for answer in each.answers)
        sequences = [sequence for each in asked for sequence in (each.sequences[:1] if short else each.sequences)]
        try:
            losses, logits = self._predict(sequences, logits=short)
        except DivergenceError:
            return [[-math.inf] * words for _ in asked]
        if not short:
            return (-losses).view(len(asked), words).tolist()
        assert logits is not None
        ids = torch.tensor([[answer[0] for answer in each.answers] for each in asked])
        return logits.double().log_softmax(-1).gather(1, ids).tolist()

    def _predict(self, sequences: Sequence[Packed], *, logits: bool) -> tuple[Tensor, Tensor | None]:
        """The loss of the answer of each sequence, and the logits that predict its first token."""
        experiment, auxiliary = self.experiment, open_classification(self.experiment).auxiliary
        how = experiment.how(self.unit)
        wanted: Literal["evaluation", "none"] = "evaluation" if logits else "none"
        if how is not None and not self._learns_once:
            test_text = experiment.test_text or experiment.shots == 0
            learning = to_learn(sequences, loss=experiment.loss, test_text=test_text)
            out = learn_each(auxiliary, how, experiment.engine, logits=wanted, **learning)
            return out.token_loss.double().sum(1), out.logits
        rows = self._visible(sequences)
        out = self._tuned().score(**to_score(rows), logits=wanted)
        return loss_by_segment(rows, out.token_loss), out.logits

    @property
    def _learns_once(self) -> bool:
        """Whether demonstrations alone are learnt from, so that one update serves all inputs."""
        experiment = self.experiment
        return experiment.shots > 0 and not experiment.test_text and experiment.engine == "fast"

    @property
    def _one_context(self) -> bool:
        """Whether all inputs stand behind the same demonstrations, and nothing is learnt from any of them."""
        experiment = self.experiment
        scored_only = self._learns_once or experiment.how(self.unit) is None
        return experiment.shots > 0 and experiment.mode == "multi" and scored_only

    def _visible(self, sequences: Sequence[Packed]) -> Sequence[Packed]:
        """What the answers can see: segments of demonstrations are invisible to the test input's."""
        if self._one_context:
            return after_shared(sequences)
        packed = self.experiment.shots > 0 and self.experiment.mode == "single"
        return [sequence.alone() for sequence in sequences] if packed else sequences

    def _tuned(self) -> Tuned:
        unit = self.unit
        return _learn_once(self.experiment, unit.method, unit.rate, unit.seed)


@lru_cache(maxsize=1)
def _learn_once(experiment: InContextLearning, method: str, rate: float, seed: int) -> Tuned:
    """The model after the demonstrations of a seed; of "multi", as many as fit into the context by themselves."""
    opened = open_classification(experiment)
    how = experiment.method_at(method, rate)
    if how is None:
        return learn_once(opened.auxiliary, None)
    if experiment.mode == "single":
        pack = separate if isinstance(how, LearningRule) and how.takes_differences() else dense
        rows = pack(opened.encoder, opened.demonstrations(seed))
    else:
        rows = (opened.prompted(seed, None).sequences[0].training(),)
    return learn_once(opened.auxiliary, how, **to_learn(rows, loss=experiment.loss))
