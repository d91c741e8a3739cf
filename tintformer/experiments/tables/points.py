"""What a tracker is told about results: the curves of the rates and the figures of the tables, under stable names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import fmean

from tintformer.experiments.classification import InContextLearning
from tintformer.experiments.classification_run import ClassificationResult
from tintformer.experiments.language import LanguageModelling, LanguageResult
from tintformer.experiments.models import short_name
from tintformer.experiments.tables.classification import pooled, setting, task_title
from tintformer.experiments.tables.language import perplexity
from tintformer.learning.rate_selection import RatePoint

Point = dict[str, float]
"""Values of one moment, by name; what stands before the first slash is the chart."""


def language_points(experiment: LanguageModelling, results: Sequence[LanguageResult]) -> Iterator[Point]:
    """`perplexity/MODEL/METHOD/SHARE`, after the curve of its rates."""
    for result in results:
        name = f"{short_name(experiment.model)}/{result.method}/{result.share:g}"
        yield from _curve(name, result.curve)
        yield {f"perplexity/{name}": perplexity(result)}


def classification_points(
    experiment: InContextLearning, results: Sequence[ClassificationResult], *, by_length: bool
) -> Iterator[Point]:
    """`accuracy/MODEL/TASK/SETTING/METHOD/SCORES` in percent and `cross-entropy/...` in nats, after the curves."""
    where = [short_name(experiment.model), _word(task_title(experiment)), _word(setting(experiment))]
    for result in results:
        name = "/".join([*where, result.method])
        for answers, curve in zip(result.answers, result.curves, strict=False):
            yield from _curve(f"{name}/seed-{answers.seed}" if len(result.curves) > 1 else name, curve)
        for scores in ("plain", "calibrated"):
            right, nats = (
                fmean(pooled(result, calibrated=scores == "calibrated", by_length=by_length, measure=measure))
                for measure in ("right", "cross_entropy")
            )
            yield {f"accuracy/{name}/{scores}": 100 * right, f"cross-entropy/{name}/{scores}": nats}


def _curve(name: str, curve: Sequence[RatePoint]) -> Iterator[Point]:
    """`rate/...` and, at the same step, the `loss/...` that it gave."""
    for point in curve:
        yield {f"rate/{name}": point.rate, f"loss/{name}": point.loss}


def _word(text: str) -> str:
    """Trackers allow little else in names."""
    return re.sub(r"[^\w.]+", "-", text).strip("-")
