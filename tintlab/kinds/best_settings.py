"""The best of several settings: of one method on one task, which layers, steps, mode and loss it is reported with.

The authors choose rates for each seed on the tests, and entries of their main table are above all 12 settings of their
table of settings (Subj without calibration), so that settings seem to be chosen alike: for each task and seed, whatever
is best on the tests.
The honest row beside it chooses both on examples that are neither trained on nor tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from tintlab.data.scoring import Answers, by_seed
from tintlab.kinds.icl import InContextLearning, InContextResult
from tintlab.methods.methods import METHODS

CHOICES = {
    "tuning": "setting and rate from tuning examples",
    "all seeds": "OPTIMISTIC: best setting and rate on the tests, the same for all seeds",
    "each seed": "OPTIMISTIC: best setting and rate on the tests, for each seed",
}
"""What settings and rates are chosen on, and what tables call it."""

_Candidates = Sequence[tuple[InContextLearning, InContextResult]]


@dataclass(frozen=True, kw_only=True)
class Best:
    """The answers of a method on a task in its best setting, or of each seed in its own."""

    choice: str
    """A key of `CHOICES`."""
    experiment: InContextLearning
    """One of those that it was chosen from: model, task and shots are those of all of them."""
    method: str
    settings: int
    """How many there were to choose from."""
    answers: tuple[Answers, ...]


def optimistic(experiment: InContextLearning) -> bool:
    """Whether what is reported is also what rates were chosen by."""
    return experiment.chosen_on == "test" and (experiment.rates is None or len(experiment.rates) > 1)


def choice_of(experiment: InContextLearning) -> str | None:
    """What its rates were chosen on, a key of `CHOICES`; None where they were given."""
    if experiment.has_one_rate:
        return None
    if experiment.chosen_on == "tuning":
        return "tuning"
    return "all seeds" if experiment.one_rate else "each seed"


def best_of(
    done: Sequence[tuple[InContextLearning, Sequence[InContextResult]]],
    title: Callable[[InContextLearning], str],
    *,
    calibrated: bool,
    by_length: bool,
) -> Iterator[Best]:
    """Of every model, task, number of shots, choice and method that has several settings, the best of them."""
    groups: dict[tuple[str, str, int, str, str], dict[InContextLearning, InContextResult]] = {}
    for experiment, results in done:
        for result in results:
            choice = choice_of(experiment)
            if choice is not None and METHODS[result.method].preset is not None:
                key = experiment.model, title(experiment), experiment.shots, choice, result.method
                groups.setdefault(key, {})[experiment] = result
    for (_, _, shots, choice, method), found in groups.items():
        candidates = list(found.items())
        # Without demonstrations there is one seed, and both choices on the tests are the same.
        if len(candidates) < 2 or (choice == "each seed" and shots == 0):
            continue
        if choice == "tuning":
            answers = min(candidates, key=lambda each: _tuning_loss(each[1]))[1].answers
        else:
            answers = _best_on_tests(candidates, calibrated, by_length, each_seed=choice == "each seed")
        yield Best(choice=choice, experiment=candidates[0][0], method=method, settings=len(candidates), answers=answers)


def _tuning_loss(result: InContextResult) -> float:
    """At the rate that was chosen; all settings of a task have the same tuning examples."""
    return min((point.loss for curve in result.curves for point in curve[1:]), default=math.inf)


def _best_on_tests(
    candidates: _Candidates, calibrated: bool, by_length: bool, *, each_seed: bool
) -> tuple[Answers, ...]:
    """By accuracy, with the scores that are shown: rates were chosen by plain ones, as the authors chose theirs."""
    accuracies = [
        [fmean(right) for right in by_seed(result.answers, calibrated, by_length, "right")] for _, result in candidates
    ]
    if not each_seed:
        at = max(range(len(candidates)), key=lambda at: fmean(accuracies[at]))
        return candidates[at][1].answers
    best = [
        max(range(len(candidates)), key=lambda at, seed=seed: accuracies[at][seed])
        for seed in range(len(accuracies[0]))
    ]
    return tuple(candidates[at][1].answers[seed] for seed, at in enumerate(best))
