"""Doing in-context learning: rates on examples of their own, then every method on the test examples of every seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from tintformer.experiments.choosing import chosen_rates
from tintformer.experiments.classification import AT_ONCE, ClassificationUnit, InContextLearning, open_classification
from tintformer.experiments.work import Workers
from tintformer.learning.rate_selection import RatePoint


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


def _cross_entropy(scores: tuple[float, ...], label: int) -> float:
    best = max(scores)
    if not math.isfinite(best):
        return math.inf
    return best + math.log(sum(math.exp(score - best) for score in scores)) - scores[label]


@dataclass(frozen=True, kw_only=True)
class ClassificationResult:
    """One method in one setting."""

    method: str
    rates: tuple[float, ...]
    """One a seed; the same for all of them unless each chose its own."""
    curves: tuple[tuple[RatePoint, ...], ...]
    """What rates were chosen from: label cross-entropy on tuning examples, or the share of wrong answers to test
    examples, by rate; one curve for all seeds, or one a seed."""
    answers: tuple[Answers, ...]
    """One a seed."""


def run_classification(experiment: InContextLearning, crew: Workers) -> list[ClassificationResult]:
    """Every method in the experiment's setting."""
    if experiment.chosen_on == "tuning":
        return _run(experiment, crew)
    by_seed = [_run(replace(experiment, seeds=(seed,)), crew) for seed in _seeds(experiment)]
    return [
        ClassificationResult(
            method=parts[0].method,
            rates=tuple(rate for part in parts for rate in part.rates),
            curves=tuple(curve for part in parts for curve in part.curves),
            answers=tuple(answers for part in parts for answers in part.answers),
        )
        for parts in zip(*by_seed, strict=True)
    ]


def _run(experiment: InContextLearning, crew: Workers) -> list[ClassificationResult]:
    """Every method at one rate for all seeds."""
    part, measure = ("tuning", Answers.cross_entropy) if experiment.chosen_on == "tuning" else ("test", Answers.wrong)

    def trial(name: str, rate: float) -> float:
        answers = _answers(experiment, name, rate, part, crew)
        return fmean(value for each in answers for value in measure(each))

    return [
        ClassificationResult(
            method=name,
            rates=(rate,) * len(_seeds(experiment)),
            curves=(curve,),
            answers=_answers(experiment, name, rate, "test", crew),
        )
        for name, rate, curve in chosen_rates(experiment, trial, max(1, experiment.shots))
    ]


def _seeds(experiment: InContextLearning) -> tuple[int, ...]:
    """Without demonstrations seeds differ in nothing but their tuning examples, and one is enough."""
    return experiment.seeds if experiment.shots else experiment.seeds[:1]


def _answers(
    experiment: InContextLearning, name: str, rate: float, part: Literal["test", "tuning"], crew: Workers
) -> tuple[Answers, ...]:
    seeds = _seeds(experiment)
    count = open_classification(experiment).count(part)
    units = [
        ClassificationUnit(method=name, rate=rate, seed=seed, part=part, start=start, stop=min(start + AT_ONCE, count))
        for seed in seeds
        for start in range(0, count, AT_ONCE)
    ]
    results = crew.complete(experiment, units)
    return tuple(
        _gather(seed, [result for unit, result in zip(units, results, strict=True) if unit.seed == seed])
        for seed in seeds
    )


def _gather(seed: int, parts: list[dict[str, Any]]) -> Answers:
    return Answers(
        seed=seed,
        labels=tuple(label for part in parts for label in part["labels"]),
        scores=tuple(tuple(scores) for part in parts for scores in part["scores"]),
        calibration=tuple(parts[0]["calibration"]),
        num_tokens=tuple(parts[0]["tokens"]),
        demonstrations=fmean(count for part in parts for count in part["demonstrations"]),
        cut=sum(part["cut"] for part in parts),
    )
