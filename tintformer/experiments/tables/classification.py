"""What in-context learning shows: accuracy and label cross-entropy by task and method, with and without calibration."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from tintformer.experiments.classification import InContextLearning, open_classification
from tintformer.experiments.classification_run import Answers, ClassificationResult
from tintformer.experiments.methods import METHODS
from tintformer.experiments.models import short_name
from tintformer.experiments.tables.table import Table
from tintformer.statistics import bootstrap, standard_error

Done = Sequence[tuple[InContextLearning, Sequence[ClassificationResult]]]
"""Experiments with their results."""


def classification_tables(done: Done, *, by_length: bool = False) -> list[Table]:
    """Accuracy in the shape of the paper's table, then everything that is known about each entry."""
    return [_accuracies(done, by_length), _details(done, by_length)]


def task_title(experiment: InContextLearning) -> str:
    """What tables call the task, and its prompt if that is not its own."""
    task = open_classification(experiment).task
    return task.title if task.variant is None else f"{task.title} ({task.variant})"


def setting(experiment: InContextLearning) -> str:
    """What distinguishes experiments on one task: shots, how they are shown, and what learns from them."""
    layers = "all" if experiment.layers is None else str(experiment.layers)
    if experiment.shots == 0:
        return f"zero-shot, {layers} x {experiment.steps}"
    text = " and test text" if experiment.test_text else ""
    return f"{experiment.shots}-shot {experiment.mode}, {experiment.loss} loss{text}, {layers} x {experiment.steps}"


def _accuracies(done: Done, by_length: bool) -> Table:
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for experiment, results in done:
        for result in results:
            for calibrated in (False, True):
                how = "calibrated" if calibrated else "plain"
                row = rows.setdefault(
                    (setting(experiment), METHODS[result.method].title, how),
                    {"setting": setting(experiment), "method": METHODS[result.method].title, "scores": how},
                )
                right = pooled(result, calibrated=calibrated, by_length=by_length, measure="right")
                row[task_title(experiment)] = f"{100 * fmean(right):.1f} ± {100 * standard_error(right):.1f}"
    note = (
        "Accuracy in percent, with the standard error over test examples (each averaged over seeds). Settings name the "
        "blocks of the model that learn and the steps. Calibrated: label words are scored against the prompt alone."
    )
    title = f"In-context learning, {short_name(done[0][0].model)}: accuracy"
    return Table(title=title, note=note, rows=tuple(rows.values()))


def pooled(result: ClassificationResult, *, calibrated: bool, by_length: bool, measure: str) -> list[float]:
    """One number a test example, the mean over seeds: examples are the sample, seeds repeat the measurement."""
    values: list[list[float]] = []
    for answers in result.answers:
        answers = answers.by_length() if by_length else answers
        answers = answers.calibrated() if calibrated else answers
        values.append(getattr(answers, measure)())
    return [fmean(each) for each in zip(*values, strict=True)]


def _details(done: Done, by_length: bool) -> Table:
    rows = [
        _detail(experiment, results, result, calibrated, by_length)
        for experiment, results in done
        for result in results
        for calibrated in (False, True)
    ]
    note = (
        "Differences to the model as it is, on the same test examples, with 95% intervals (bootstrap over examples). "
        "Cross-entropy: of the right label among the label words, in nats. n: test examples x seeds. Shown: "
        "demonstrations in the prompt on average. Cut: texts that lost their end."
    )
    return Table(title=f"In-context learning, {short_name(done[0][0].model)}: details", note=note, rows=tuple(rows))


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
    answers: Sequence[Answers] = result.answers
    return {
        "task": task_title(experiment),
        "setting": setting(experiment),
        "method": METHODS[result.method].title,
        "scores": "calibrated" if calibrated else "plain",
        "rate": f"{result.rate:.3g}" if result.rate else "",
        "n": f"{len(answers[0].labels)} x {len(answers)}",
        "accuracy": f"{100 * fmean(measures['right']):.1f} ± {100 * standard_error(measures['right']):.1f}",
        "change of accuracy": changes["right"],
        "cross-entropy": f"{fmean(measures['cross_entropy']):.3f} ± {standard_error(measures['cross_entropy']):.3f}",
        "change of cross-entropy": changes["cross_entropy"],
        "shown": f"{fmean(each.demonstrations for each in answers):.1f}",
        "cut": str(sum(each.cut for each in answers)),
    }
