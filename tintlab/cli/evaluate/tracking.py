"""`--track`: what a run does and finds, told to any tracker that accelerate knows, under stable names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tintformer.errors import InputError, cause

if TYPE_CHECKING:
    from tintformer.learning.rate_search import RatePoint
    from tintlab.kinds.comparison import ComparedCase
    from tintlab.kinds.document_streams import StreamResult
    from tintlab.kinds.icl import InContextResult
    from tintlab.kinds.lm import LanguageResult
    from tintlab.kinds.regression import RegressionResult
    from tintlab.kinds.runs import Run

PLACE = "tracking"
"""Below the output directory, for trackers that write files."""
TrackedMetrics = dict[str, float]
"""Values of one moment, by name; what stands before the first slash is the chart."""


class Tracking:
    """Trackers of a run, or none; all values go to one row of steps, because some trackers refuse to go back."""

    def __init__(self, trackers: Sequence[Any] = ()):
        self._trackers, self._steps, self._units = trackers, 0, 0

    def log(self, values: TrackedMetrics) -> None:
        """Values of one moment; what is non-finite, as the loss of a rate that diverged, is left out."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        for tracker in self._trackers if finite else ():
            tracker.log(finite, step=self._steps)
        self._steps += 1

    def log_results(self, run: Run, experiment: Any, results: Sequence[Any]) -> None:
        """The curves of the rates of an experiment, and the figures of its tables."""
        for values in METRICS[run.kind](experiment, results, run.by_length):
            self.log(values)

    def count(self, units: int) -> None:
        """So many more units are done."""
        self._units += units
        self.log({"progress/units": self._units})


def check_tracker(name: str | None) -> None:
    """Refuse a tracker that is not there, before any work is done."""
    if name is None:
        return
    try:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    except ImportError as error:
        raise InputError("--track needs the package accelerate; pip install 'tintformer[dist]'") from error
    if name not in LOGGER_TYPE_TO_CLASS:
        raise InputError(f"--track {name!r} is unknown; choose one of {', '.join(sorted(LOGGER_TYPE_TO_CLASS))}")
    if name not in map(str, get_available_trackers()):
        raise InputError(f"--track {name} needs a package that is not installed; pip install {name}")


@contextmanager
def tracking(name: str | None, run: Run, output: Path) -> Generator[Tracking]:
    """The tracker of that name, which knows what is asked for; without a name nothing is tracked."""
    if name is None:
        yield Tracking()
        return
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    try:
        place = ProjectConfiguration(project_dir=str(output), logging_dir=str(output / PLACE))
        accelerator = Accelerator(log_with=name, project_config=place)
        accelerator.init_trackers(run.name, config=_configuration(run))
    except Exception as error:  # whatever a tracker raises that has no account or no connection
        raise InputError(f"--track {name} does not start: {cause(error)}") from error
    try:
        yield Tracking(accelerator.trackers)
    finally:
        for tracker in accelerator.trackers:  # not `end_training`, which also ends the group of processes
            tracker.finish()


def _configuration(run: Run) -> dict[str, Any]:
    """What is asked for, as plain values; those that differ between the experiments of a run with commas."""
    fields = [asdict(experiment) for experiment in run.experiments]
    values = {name: list(dict.fromkeys(_plain(each[name]) for each in fields)) for name in fields[0]}
    common = {name: found[0] if len(found) == 1 else ", ".join(map(str, found)) for name, found in values.items()}
    return {"run": run.name, "kind": run.kind, "version": run.experiments[0].version, **common}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _language_metrics(experiment: Any, results: Sequence[LanguageResult], _: bool) -> Iterator[TrackedMetrics]:
    """`perplexity/MODEL/METHOD/SHARE`, after the curve of its rates."""
    from tintlab.data.models import short_name
    from tintlab.kinds.lm_results import perplexity

    for result in results:
        name = f"{short_name(experiment.model)}/{result.method}/{result.share:g}"
        yield from _curve_metrics(name, result.curve)
        yield {f"perplexity/{name}": perplexity(result)}


def _stream_metrics(experiment: Any, results: Sequence[StreamResult], _: bool) -> Iterator[TrackedMetrics]:
    """`perplexity/MODEL/METHOD`, after the curve of its rates."""
    from tintlab.data.models import short_name
    from tintlab.kinds.stream_results import perplexity

    for result in results:
        name = f"{short_name(experiment.model)}/{result.method}"
        yield from _curve_metrics(name, result.curve)
        yield {f"perplexity/{name}": perplexity(result)}


def _comparison_metrics(experiment: Any, results: Sequence[ComparedCase], _: bool) -> Iterator[TrackedMetrics]:
    """`MEASURE/MODEL/TASK/METHOD/CASE/SHOTS`, after the curve of its rates."""
    from tintlab.data.models import short_name
    from tintlab.kinds.compare_results import task_name

    where = f"{short_name(experiment.model)}/{_word(task_name(experiment))}"
    for result in results:
        name = f"{where}/{result.method}/{_word(result.case)}/{result.shots}"
        yield from _curve_metrics(name, result.curve)
        yield {f"{measure}/{name}": estimate.value for measure, estimate in result.measures.items()}


def _in_context_metrics(
    experiment: Any, results: Sequence[InContextResult], by_length: bool
) -> Iterator[TrackedMetrics]:
    """`accuracy/MODEL/TASK/SETTING/METHOD/SCORES` in percent and `cross-entropy/...` in nats, after the curves."""
    from tintlab.data.models import short_name
    from tintlab.kinds.icl_tables import pooled, setting, task_title

    where = [short_name(experiment.model), _word(task_title(experiment)), _word(setting(experiment))]
    for result in results:
        name = "/".join([*where, result.method])
        for answers, curve in zip(result.answers, result.curves, strict=False):
            yield from _curve_metrics(f"{name}/seed-{answers.seed}" if len(result.curves) > 1 else name, curve)
        for scores in ("plain", "calibrated"):
            right, nats = (
                fmean(pooled(result, calibrated=scores == "calibrated", by_length=by_length, measure=measure))
                for measure in ("right", "cross_entropy")
            )
            yield {f"accuracy/{name}/{scores}": 100 * right, f"cross-entropy/{name}/{scores}": nats}


def _regression_metrics(experiment: Any, results: Sequence[RegressionResult], _: bool) -> Iterator[TrackedMetrics]:
    """`squared-error/FUNCTIONS/METHOD/EXAMPLES`, after the curve of its rates."""
    from tintlab.kinds.regression_results import mean_error

    for result in results:
        name = f"{experiment.model}/{result.method}/{result.examples}"
        yield from _curve_metrics(name, result.curve)
        yield {f"squared-error/{name}": mean_error(result)}


METRICS: dict[str, Callable[[Any, Any, bool], Iterator[TrackedMetrics]]] = {
    "lm": _language_metrics,
    "icl": _in_context_metrics,
    "stream": _stream_metrics,
    "regression": _regression_metrics,
    "compare": _comparison_metrics,
}
"""By kind of run."""


def _curve_metrics(name: str, curve: Sequence[RatePoint]) -> Iterator[TrackedMetrics]:
    """`rate/...` and, at the same step, the `loss/...` that it gave."""
    for point in curve:
        yield {f"rate/{name}": point.rate, f"loss/{name}": point.loss}


def _word(text: str) -> str:
    """Trackers allow little else in names."""
    return re.sub(r"[^\w.]+", "-", text).strip("-")
