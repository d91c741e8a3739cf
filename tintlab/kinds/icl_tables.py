"""Tables of in-context learning: accuracy and label cross-entropy by task and method, with and without calibration.

In the shape of the paper's tables, with the rows that take the best of several settings: of one method on one task,
which layers, steps, mode and loss it is reported with. The authors choose rates for each seed on the tests, and entries
of their main table are above all 12 settings of their table of settings (Subj without calibration), so that settings
seem to be chosen alike: for each task and seed, whatever is best on the tests.
The honest row beside it chooses both on examples that are neither trained on nor tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from tintlab.data.models import short_name
from tintlab.data.scoring import Answers, by_seed
from tintlab.kinds.icl import InContextLearning, InContextResult, open_task
from tintlab.methods.methods import METHODS
from tintlab.show.intervals import bootstrap, standard_error
from tintlab.show.tables import OPTIMISTIC, ResultTable, of_models

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


InContextResults = Sequence[tuple[InContextLearning, Sequence[InContextResult]]]
"""Experiments with their results."""
NAMES = ("model", "parameters", "setting", "method", "scores")
AVERAGE = "average"


def in_context_tables(done: InContextResults, *, by_length: bool = False) -> list[ResultTable]:
    """Accuracy and label cross-entropy in the shape of the paper's table, then all that is known about each entry."""
    return [
        _by_task(done, by_length, "right", "accuracy"),
        _by_task(done, by_length, "cross_entropy", "label cross-entropy"),
        _in_context_details(done, by_length),
    ]


def task_title(experiment: InContextLearning) -> str:
    """What tables call the task, and its prompt if that is not its own."""
    task = open_task(experiment).task
    return task.title if task.variant is None else f"{task.title} ({task.variant})"


def budget(experiment: InContextLearning) -> str:
    """Which blocks of the model learn, in how many steps."""
    return f"{'all' if experiment.layers is None else experiment.layers} x {experiment.steps}"


def format_of(experiment: InContextLearning) -> str:
    """Shots, how they are shown, and what of them is learnt."""
    if experiment.shots == 0:
        return "zero-shot"
    text = " and test text" if experiment.test_text else ""
    return f"{experiment.shots}-shot {experiment.mode}, {experiment.loss} loss{text}"


def setting(experiment: InContextLearning) -> str:
    """What distinguishes experiments on one task."""
    return f"{format_of(experiment)}, {budget(experiment)}{chosen(experiment)}"


def chosen(experiment: InContextLearning) -> str:
    """What is said of a rate that was chosen on what is reported."""
    if not optimistic(experiment):
        return ""
    return ", one rate from tests" if experiment.one_rate else ", rates from tests"


def _setting_of(experiment: InContextLearning, result: InContextResult) -> str:
    """Of a model that does not learn, what it is shown is all that matters."""
    if METHODS[result.method].preset is not None:
        return setting(experiment)
    shown = experiment.shots > 0 and experiment.mode == "multi"
    return f"{experiment.shots} in the context" if shown else "zero-shot"


def _place(experiment: InContextLearning, result: InContextResult) -> tuple[float | str, ...]:
    """Where a row stands among those of its model."""
    method = _number(result.method)
    if METHODS[result.method].preset is None:
        shown = experiment.shots > 0 and experiment.mode == "multi"
        return experiment.shots if shown else 0, "", "", 0, 0, method
    layers = math.inf if experiment.layers is None else experiment.layers
    return experiment.shots, experiment.mode, experiment.loss, -layers, experiment.steps, method


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """What a row of the main tables says of one task."""

    experiment: InContextLearning
    setting: str
    place: tuple[float | str, ...]
    """Where its row stands among those of its model."""
    method: str
    calibrated: bool
    answers: tuple[Answers, ...]

    @property
    def row(self) -> tuple[str, ...]:
        """Model, its size, setting, method and kind of scores."""
        model = open_task(self.experiment).model.auxiliary.model
        size = sum(parameter.numel() for parameter in model.parameters())
        scores = "calibrated" if self.calibrated else "plain"
        return short_name(self.experiment.model), _size(size), self.setting, METHODS[self.method].title, scores

    def by_seed(self, by_length: bool, measure: str) -> list[list[float]]:
        """One number a test example for each seed; for one alone, where seeds make no difference."""
        seeds = self.answers if self.experiment.depends_on_seed(self.method) else self.answers[:1]
        return by_seed(seeds, self.calibrated, by_length, measure)


def _size(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"


def _entries(done: InContextResults, by_length: bool) -> Iterator[_Entry]:
    """All results, and those that are the best of several settings."""
    for calibrated in (False, True):
        for experiment, results in done:
            for result in results:
                yield _Entry(
                    experiment=experiment,
                    setting=_setting_of(experiment, result),
                    place=_place(experiment, result),
                    method=result.method,
                    calibrated=calibrated,
                    answers=result.answers,
                )
        for best in best_of(done, task_title, calibrated=calibrated, by_length=by_length):
            shots = f"{best.experiment.shots}-shot" if best.experiment.shots else "zero-shot"
            yield _Entry(
                experiment=best.experiment,
                setting=f"{shots}, {CHOICES[best.choice]} ({best.settings} settings)",
                # Behind all settings that they are the best of.
                place=(best.experiment.shots, "z", "", 0, list(CHOICES).index(best.choice), _number(best.method)),
                method=best.method,
                calibrated=calibrated,
                answers=best.answers,
            )


def _number(method: str) -> int:
    return list(METHODS).index(method)


def _by_task(done: InContextResults, by_length: bool, measure: str, shown: str) -> ResultTable:
    models = list(dict.fromkeys(experiment.model for experiment, _ in done))
    tasks = list(dict.fromkeys(task_title(experiment) for experiment, _ in done))
    rows: dict[tuple[str, ...], dict[str, list[list[float]]]] = {}
    # Experiments of several runs come in any order; rows go from few shots to many and from all blocks to few.
    for entry in sorted(
        _entries(done, by_length),
        key=lambda entry: (models.index(entry.experiment.model), *entry.place, entry.setting, entry.calibrated),
    ):
        rows.setdefault(entry.row, {})[task_title(entry.experiment)] = entry.by_seed(by_length, measure)
    lines: list[dict[str, str]] = []
    for names, found in rows.items():
        cells = {task: _cell(found[task], measure) if task in found else "" for task in tasks}
        if len(tasks) > 1:
            cells[AVERAGE] = _average(list(found.values()), measure) if len(found) == len(tasks) else ""
        lines.append(dict(zip(NAMES, names, strict=True)) | cells)
    if len(models) == 1:
        lines = [{name: cell for name, cell in line.items() if name != "parameters"} for line in lines]
    return of_models("In-context learning", shown, _note(done, measure), lines)


def _cell(values: Sequence[Sequence[float]], measure: str) -> str:
    """The mean, the standard deviation over seeds in parentheses, and the standard error over examples."""
    return _shown([fmean(each) for each in values], standard_error(_over_seeds(values)), measure)


def _average(by_task: Sequence[Sequence[Sequence[float]]], measure: str) -> str:
    """The same of the average over tasks, whose examples are independent of each other."""
    means = [fmean(fmean(each) for each in values) for values in by_task]
    squares = sum(standard_error(_over_seeds(values)) ** 2 for values in by_task)
    if len({len(values) for values in by_task}) > 1:  # not all tasks have the same seeds
        return _shown([fmean(means)], math.sqrt(squares) / len(means), measure)
    seeds = [fmean(fmean(each) for each in seed) for seed in zip(*by_task, strict=True)]
    return _shown(seeds, math.sqrt(squares) / len(means), measure)


def _over_seeds(values: Sequence[Sequence[float]]) -> list[float]:
    """One number a test example, the mean over seeds: examples are the sample, seeds repeat the measurement."""
    return [fmean(each) for each in zip(*values, strict=True)]


def _shown(seeds: Sequence[float], error: float, measure: str) -> str:
    spread = f" ({_rounded(pstdev(seeds), measure)})" if len(seeds) > 1 else ""
    return f"{_rounded(fmean(seeds), measure)}{spread} ± {_rounded(error, measure)}"


def _note(done: InContextResults, measure: str) -> str:
    what = {
        "right": "Accuracy in percent",
        "cross_entropy": "Cross-entropy of the right label among the label words, in nats (lower is better)",
    }
    note = (
        f"{what[measure]}. In parentheses, as in the paper, the standard deviation over seeds, dividing by their "
        "number; after it the standard error over test examples, each averaged over seeds. Settings name the blocks of "
        "the model that learn and the steps. Calibrated: label words are scored against the prompt alone."
    )
    learning = [experiment for experiment, results in done if any(METHODS[each.method].preset for each in results)]
    said = [OPTIMISTIC.format("test examples") for experiment in learning if optimistic(experiment)]
    if said and len(said) < len(learning):
        note += " Of rows that say OPTIMISTIC or that rates are from tests:"
    if said:
        note += f" {said[0]}"
    return note


def _with_error(values: Sequence[float], measure: str) -> str:
    return f"{_rounded(fmean(values), measure)} ± {_rounded(standard_error(values), measure)}"


def _rounded(value: float, measure: str) -> str:
    return f"{100 * value:.1f}" if measure == "right" else f"{value:.3f}"


def pooled(result: InContextResult, *, calibrated: bool, by_length: bool, measure: str) -> list[float]:
    """One number a test example, the mean over seeds: examples are the sample, seeds repeat the measurement."""
    return [fmean(each) for each in zip(*by_seed(result.answers, calibrated, by_length, measure), strict=True)]


def _in_context_details(done: InContextResults, by_length: bool) -> ResultTable:
    rows = [
        _in_context_detail(experiment, results, result, calibrated, by_length)
        for experiment, results in done
        for result in results
        for calibrated in (False, True)
    ]
    note = (
        "Differences to the model as it is, on the same test examples, with 95% intervals (bootstrap over examples). "
        "Cross-entropy: of the right label among the label words, in nats. n: test examples x seeds. Seeds: standard "
        "deviation of the accuracy over them, dividing by their number. Tokens: of each label word. Demonstrations: "
        "learnt from or in the prompt, on average. Cut: texts that lost their end."
    )
    distinct = {tuple(row.items()): row for row in rows}  # a model that does not learn is the same in every setting
    return of_models("In-context learning", "details", note, list(distinct.values()))


def _in_context_detail(
    experiment: InContextLearning,
    results: Sequence[InContextResult],
    result: InContextResult,
    calibrated: bool,
    by_length: bool,
) -> dict[str, str]:
    plain = next((each for each in results if each.method == "auxiliary"), None)
    measures = {
        measure: pooled(result, calibrated=calibrated, by_length=by_length, measure=measure)
        for measure in ("right", "cross_entropy")
    }
    changes = {"right": "", "cross_entropy": ""}
    if plain is not None and result is not plain:
        for measure, values in measures.items():
            before = pooled(plain, calibrated=calibrated, by_length=by_length, measure=measure)
            scale = 100 if measure == "right" else 1
            found = bootstrap([[scale * value for value in values], [scale * value for value in before]])
            changes[measure] = f"{found:+.1f}" if measure == "right" else f"{found:+.3f}"
    # What neither learns nor is shown anything answers the same for every seed.
    answers: Sequence[Answers] = result.answers if experiment.depends_on_seed(result.method) else result.answers[:1]
    accuracies = [100 * fmean(right) for right in by_seed(answers, calibrated, by_length, "right")]
    return {
        "model": short_name(experiment.model),
        "task": task_title(experiment),
        "setting": _setting_of(experiment, result),
        "method": METHODS[result.method].title,
        "scores": "calibrated" if calibrated else "plain",
        "rate": ", ".join(f"{rate:.3g}" for rate in dict.fromkeys(result.rates) if rate),
        "n": f"{len(answers[0].labels)} x {len(answers)}",
        "accuracy": _with_error(measures["right"], "right"),
        "seeds": f"{pstdev(accuracies):.1f}" if len(accuracies) > 1 else "",
        "change of accuracy": changes["right"],
        "cross-entropy": _with_error(measures["cross_entropy"], "cross_entropy"),
        "change of cross-entropy": changes["cross_entropy"],
        "tokens": ", ".join(map(str, answers[0].num_tokens)),
        "demonstrations": f"{fmean(each.demonstrations for each in answers):.1f}"
        if experiment.depends_on_seed(result.method)
        else "",
        "cut": str(sum(each.cut for each in answers)),
    }
