"""What in-context learning shows: accuracy and label cross-entropy by task and method, with and without calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from tintformer.analysis.intervals import bootstrap, standard_error
from tintformer.experiments.classification import InContextLearning, open_classification
from tintformer.experiments.classification_run import Answers, ClassificationResult
from tintformer.experiments.methods import METHODS
from tintformer.experiments.models import short_name
from tintformer.experiments.tables.table import OPTIMISTIC, Table, of_models

Done = Sequence[tuple[InContextLearning, Sequence[ClassificationResult]]]
"""Experiments with their results."""
NAMES = ("model", "setting", "method", "scores")
AVERAGE = "average"


def classification_tables(done: Done, *, by_length: bool = False) -> list[Table]:
    """Accuracy and label cross-entropy in the shape of the paper's table, then all that is known about each entry."""
    return [
        _by_task(done, by_length, "right", "accuracy"),
        _by_task(done, by_length, "cross_entropy", "label cross-entropy"),
        _details(done, by_length),
    ]


def task_title(experiment: InContextLearning) -> str:
    """What tables call the task, and its prompt if that is not its own."""
    task = open_classification(experiment).task
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
    chosen = ", rates from tests" if optimistic(experiment) else ""
    return f"{format_of(experiment)}, {budget(experiment)}{chosen}"


def optimistic(experiment: InContextLearning) -> bool:
    """Whether what is reported is also what rates were chosen by."""
    return experiment.chosen_on == "test" and (experiment.rates is None or len(experiment.rates) > 1)


def _setting_of(experiment: InContextLearning, result: ClassificationResult) -> str:
    """Of a model that does not learn, what it is shown is all that matters."""
    if METHODS[result.method].preset is not None:
        return setting(experiment)
    shown = experiment.shots > 0 and experiment.mode == "multi"
    return f"{experiment.shots} in the context" if shown else "zero-shot"


def _place(experiment: InContextLearning, result: ClassificationResult) -> tuple[float | str, ...]:
    """Where a row stands among those of its model."""
    method = list(METHODS).index(result.method)
    if METHODS[result.method].preset is None:
        shown = experiment.shots > 0 and experiment.mode == "multi"
        return experiment.shots if shown else 0, "", "", 0, 0, method
    layers = math.inf if experiment.layers is None else experiment.layers
    return experiment.shots, experiment.mode, experiment.loss, -layers, experiment.steps, method


def _by_task(done: Done, by_length: bool, measure: str, shown: str) -> Table:
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    means: dict[tuple[str, ...], dict[str, float]] = {}
    models = list(dict.fromkeys(experiment.model for experiment, _ in done))
    # Experiments of several runs come in any order; rows go from few shots to many and from all blocks to few.
    for experiment, result in sorted(
        ((experiment, result) for experiment, results in done for result in results),
        key=lambda each: (models.index(each[0].model), *_place(*each)),
    ):
        for how in ("plain", "calibrated"):
            names = short_name(experiment.model), _setting_of(experiment, result), METHODS[result.method].title, how
            row = rows.setdefault(names, dict(zip(NAMES, names, strict=True)))
            values = pooled(result, calibrated=how == "calibrated", by_length=by_length, measure=measure)
            row[task_title(experiment)] = _with_error(values, measure)
            means.setdefault(names, {})[task_title(experiment)] = fmean(values)
    tasks = list(dict.fromkeys(task_title(experiment) for experiment, _ in done))
    for names, row in rows.items():
        average = _rounded(fmean(means[names].values()), measure) if set(means[names]) == set(tasks) else ""
        cells = {task: row.get(task, "") for task in tasks} | ({AVERAGE: average} if len(tasks) > 1 else {})
        rows[names] = {name: row[name] for name in NAMES} | cells
    return of_models("In-context learning", shown, _note(done, measure), list(rows.values()))


def _note(done: Done, measure: str) -> str:
    what = {
        "right": "Accuracy in percent",
        "cross_entropy": "Cross-entropy of the right label among the label words, in nats (lower is better)",
    }
    note = (
        f"{what[measure]}, with the standard error over test examples (each averaged over seeds). Settings name the "
        "blocks of the model that learn and the steps. Calibrated: label words are scored against the prompt alone."
    )
    if any(optimistic(experiment) for experiment, _ in done):
        note += " " + OPTIMISTIC.format("test examples")
    return note


def _with_error(values: Sequence[float], measure: str) -> str:
    return f"{_rounded(fmean(values), measure)} ± {_rounded(standard_error(values), measure)}"


def _rounded(value: float, measure: str) -> str:
    return f"{100 * value:.1f}" if measure == "right" else f"{value:.3f}"


def pooled(result: ClassificationResult, *, calibrated: bool, by_length: bool, measure: str) -> list[float]:
    """One number a test example, the mean over seeds: examples are the sample, seeds repeat the measurement."""
    return [fmean(each) for each in zip(*by_seed(result.answers, calibrated, by_length, measure), strict=True)]


def by_seed(answers: Sequence[Answers], calibrated: bool, by_length: bool, measure: str) -> list[list[float]]:
    """One number a test example, for each seed."""
    values: list[list[float]] = []
    for each in answers:
        each = each.by_length() if by_length else each
        each = each.calibrated() if calibrated else each
        values.append(getattr(each, measure)())
    return values


def _details(done: Done, by_length: bool) -> Table:
    rows = [
        _detail(experiment, results, result, calibrated, by_length)
        for experiment, results in done
        for result in results
        for calibrated in (False, True)
    ]
    note = (
        "Differences to the model as it is, on the same test examples, with 95% intervals (bootstrap over examples). "
        "Cross-entropy: of the right label among the label words, in nats. n: test examples x seeds. Seeds: standard "
        "deviation of the accuracy over them. Tokens: of each label word. Demonstrations: learnt from or in "
        "the prompt, on average. Cut: texts that lost their end."
    )
    distinct = {tuple(row.items()): row for row in rows}  # a model that does not learn is the same in every setting
    return of_models("In-context learning", "details", note, list(distinct.values()))


def _detail(
    experiment: InContextLearning,
    results: Sequence[ClassificationResult],
    result: ClassificationResult,
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
        "seeds": f"{stdev(accuracies):.1f}" if len(accuracies) > 1 else "",
        "change of accuracy": changes["right"],
        "cross-entropy": _with_error(measures["cross_entropy"], "cross_entropy"),
        "change of cross-entropy": changes["cross_entropy"],
        "tokens": ", ".join(map(str, answers[0].num_tokens)),
        "demonstrations": f"{fmean(each.demonstrations for each in answers):.1f}"
        if experiment.depends_on_seed(result.method)
        else "",
        "cut": str(sum(each.cut for each in answers)),
    }
