"""A unit of a comparison: a few test inputs, read behind demonstrations, and answered after learning from these."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeVar

from tintformer.errors import DivergenceError
from tintformer.rule.learning_rule import LearningRule
from tintlab.data.models import open_untrained
from tintlab.data.packing import Prompted, dense, multi, separate, single, to_learn
from tintlab.data.scoring import LabelScorer
from tintlab.kinds.arrangements import Labels, arranged, fitting
from tintlab.kinds.compare_measures import SIMILARITIES, SIZES
from tintlab.kinds.icl import PromptUnit
from tintlab.methods.methods import learn_once
from tintlab.study.experiment import ChosenOn
from tintlab.study.store import UnitResult

if TYPE_CHECKING:
    from torch import Tensor

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.learning.tuned import Tuned
    from tintlab.data.tasks import Example
    from tintlab.kinds.comparison import Comparison

Weights = Literal["pretrained", "untrained"]
TRACED = 16
"""Inputs that are traced together. More want more memory, fewer are slower."""
Y = TypeVar("Y")


@dataclass(frozen=True, kw_only=True)
class ComparisonUnit:
    """A few inputs, at one rate, after the demonstrations of one seed with one kind of labels."""

    method: str
    rate: float
    weights: Weights
    shots: int
    labels: Labels
    seed: int
    part: ChosenOn
    start: int
    stop: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Asked:
    """A test input before which demonstrations fit."""

    number: int
    example: Example
    count: int
    """Demonstrations that are read before it, and learnt from for it."""
    read: tuple[Prompted, ...]
    """After the demonstrations in each order."""
    alone: Prompted


class UnitRun:
    """One unit as it is run."""

    def __init__(self, experiment: Comparison, unit: ComparisonUnit):
        self.experiment, self.unit, self.opened = experiment, unit, experiment.opened()
        self.model = self._model()
        self.plain = learn_once(self.model, None)

    def result(self) -> UnitResult:
        """For tests all there is to know; for tuning the scores after learning alone."""
        asked = list(self._asked())
        tested = self.unit.part == "test"
        orders = range(self.experiment.orders if tested else 1)
        learnt = [self._learnt_scores(asked, order) for order in orders]
        found: UnitResult = {
            "asked": self.unit.stop - self.unit.start,
            "inputs": [each.number for each in asked],
            "labels": [each.example.label for each in asked],
            "demonstrations": [each.count for each in asked],
            "learnt": learnt if tested else learnt[0],
        }
        if tested:
            found["zero"] = self._scores(self.plain, [each.alone for each in asked], alone=True)
            found["read"] = [self._read_scores(asked, order) for order in orders]
            found["blocks"] = self._similarities(asked)
        return found

    def _model(self) -> Auxiliary:
        if self.unit.weights == "pretrained":
            return self.opened.model.auxiliary
        return open_untrained(self.experiment.model, self.experiment.dtype, self.experiment.device, self.unit.seed)

    def _examples(self) -> tuple[Example, ...]:
        unit = self.unit
        return self.opened.examples(
            PromptUnit(
                method=unit.method, rate=unit.rate, seed=unit.seed, part=unit.part, start=unit.start, stop=unit.stop
            )
        )

    def shown(self, count: int, order: int, labels: Labels) -> tuple[Example, ...]:
        """The first demonstrations of the seed, in one of their orders."""
        first = self.opened.demonstrations(self.unit.seed)[:count]
        return arranged(first, self.unit.seed, order, labels, len(self.opened.task.labels))

    def _asked(self) -> Iterator[Asked]:
        """The inputs of the unit that leave room for demonstrations."""
        unit, encoder = self.unit, self.opened.encoder
        kinds, orders = self.experiment.kinds("pretrained"), range(self.experiment.orders)

        def every(count: int) -> Iterator[tuple[Example, ...]]:
            return (self.shown(count, order, labels) for labels in kinds for order in orders)

        for number, example in enumerate(self._examples(), unit.start):
            count = fitting(encoder, unit.shots, example.text, every)
            if count is None:
                continue
            shown = [self.shown(count, order, unit.labels) for order in orders]
            yield Asked(
                number=number,
                example=example,
                count=count,
                read=tuple(multi(encoder, each, example.text) for each in shown),
                alone=single(encoder, (), example.text),
            )

    def _learnt_scores(self, asked: Sequence[Asked], order: int) -> list[list[float]]:
        """Log-probabilities of the label words after learning from the demonstrations, for each input."""

        def score(group: Sequence[Asked]) -> list[list[float]]:
            try:
                tuned = self._learnt(group[0].count, order)
            except DivergenceError:
                return [[-math.inf] * len(each.alone.answers) for each in group]
            return self._scores(tuned, [each.alone for each in group], alone=True)

        return _by_count(asked, score)

    def _read_scores(self, asked: Sequence[Asked], order: int) -> list[list[float]]:
        return _by_count(
            asked, lambda group: self._scores(self.plain, [each.read[order] for each in group], alone=False)
        )

    def _scores(self, model: Tuned, prompts: Sequence[Prompted], *, alone: bool) -> list[list[float]]:
        if not prompts:
            return []
        return LabelScorer(model=model, one_context=not alone, own_segment=alone).scores(prompts)

    def _learnt(self, count: int, order: int) -> Tuned:
        return _learn(self.experiment, replace(self.unit, start=0, stop=0), count, order)

    def _similarities(self, asked: Sequence[Asked]) -> dict[str, list[list[float]]]:
        """What is compared block by block, for each input; NaN where learning diverged."""
        import torch

        num_blocks = len(self.model.blocks)

        def trace(group: Sequence[Asked]) -> list[Tensor]:
            parts = [group[start : start + TRACED] for start in range(0, len(group), TRACED)]
            return [each for part in parts for each in self._traced(part)]

        names = (*SIMILARITIES, *SIZES)
        by_input = _by_count(asked, trace)
        stacked = torch.stack(by_input, -1) if by_input else torch.zeros(len(names), num_blocks, 0)
        # Five digits are more than an interval over inputs can tell apart, and a record holds thousands of them.
        rounded = stacked.double().tolist()
        return {
            name: [[round(value, 5) if math.isfinite(value) else math.nan for value in block] for block in blocks]
            for name, blocks in zip(names, rounded, strict=True)
        }

    def _traced(self, group: Sequence[Asked]) -> list[Tensor]:
        """All that is compared, `[measures, blocks]` for each of a few inputs behind the same demonstrations."""
        import torch

        from tintlab.kinds.compare_traces import similarities, trace_alone, trace_reading

        prompts = [each.read[0] for each in group]
        try:
            tuned = self._learnt(group[0].count, 0)
            learnt = trace_alone(tuned, prompts)
        except DivergenceError:
            nothing = torch.full((len(SIMILARITIES) + len(SIZES), len(self.model.blocks)), torch.nan)
            return [nothing for _ in group]
        plain, read = trace_alone(self.plain, prompts), trace_reading(self.plain, prompts)
        found = similarities(self.model, plain, read, learnt, tuned.update_views())
        return list(torch.stack([found[name] for name in (*SIMILARITIES, *SIZES)]).unbind(-1))


def _by_count(asked: Sequence[Asked], do: Callable[[Sequence[Asked]], list[Y]]) -> list[Y]:
    """What is done with the inputs behind each number of demonstrations, in the order of the inputs."""
    found: dict[int, Y] = {}
    for count in sorted({each.count for each in asked}):
        group = [each for each in asked if each.count == count]
        found.update(zip((each.number for each in group), do(group), strict=True))
    return [found[each.number] for each in asked]


@lru_cache(maxsize=1)
def _learn(experiment: Comparison, unit: ComparisonUnit, count: int, order: int) -> Tuned:
    """The model after the first demonstrations of a seed, in one of their orders, each in a segment of its own."""
    run = UnitRun(experiment, unit)
    rule = experiment.rule(unit.method, unit.rate)
    if rule is None:
        return run.plain
    pack = separate if isinstance(rule, LearningRule) and rule.takes_differences() else dense
    rows = pack(run.opened.encoder, run.shown(count, order, unit.labels))
    return learn_once(run.model, rule, **to_learn(rows, loss=experiment.loss))
