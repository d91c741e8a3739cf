"""Results of in-context regression as tables and figures; nothing here decides a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from tintformer.storage.foreign_markup import to_label
from tintlab.kinds.regression import (
    MARGIN,
    REGRESSION_METHODS,
    TEACHER,
    InContextRegression,
    RegressionResult,
)
from tintlab.show.figures import png_of, rate_curves
from tintlab.show.intervals import bootstrap, standard_error
from tintlab.show.tables import ResultTable

RegressionResults = Sequence[tuple[InContextRegression, Sequence[RegressionResult]]]
"""Experiments with their results, one a kind of function."""
_LOOKS: dict[str, dict[str, Any]] = {
    "auxiliary": {"color": "#6b7280", "ls": "--"},
    "one-step": {"color": "#0072b2", "marker": "o"},
    "many-steps": {"color": "#d55e00", "marker": "s"},
    "least-squares": {"color": "#1f2329", "marker": "D", "ls": ":"},
    "perceptron-one-step": {"color": "#cc79a7", "marker": "^"},
    "perceptron": {"color": "#009e73", "marker": "v"},
}
SMALLEST = 1e-8
"""Errors below are drawn here: exact solutions err by round-off, whose size says nothing."""


def mean_error(result: RegressionResult) -> float:
    """Over functions; infinite if the rate diverged."""
    return math.inf if result.errors is None else fmean(result.errors)


def regression_tables(done: RegressionResults) -> list[ResultTable]:
    """Error by method and size of the context, then everything that is known about each entry."""
    return [_by_examples(done), _details(done)]


def _by_examples(done: RegressionResults) -> ResultTable:
    rows = [
        {"functions": experiment.model, "method": _title(experiment, name)}
        | {str(each.examples): f"{mean_error(each):.3g}" for each in results if each.method == name}
        for experiment, results in done
        for name in experiment.compared()
    ]
    return ResultTable(
        title="In-context regression: mean squared error after so many examples",
        note=" ".join(dict.fromkeys(_note(experiment) for experiment, _ in done)),
        rows=_named(_filled(rows)),
    )


def _filled(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """All with the same columns: experiments may have other sizes of the context."""
    sizes = sorted({int(key) for row in rows for key in row if key.isdecimal()})
    return [{key: row.get(key, "") for key in ("functions", "method", *map(str, sizes))} for row in rows]


def _details(done: RegressionResults) -> ResultTable:
    rows = [
        {
            "functions": experiment.model,
            "method": _title(experiment, result.method),
            "examples": str(result.examples),
            "rate": f"{result.rate:g}" if result.rate else "",
            "n": "" if result.errors is None else str(len(result.errors)),
            "squared error": "diverged" if result.errors is None else _interval(result.errors),
        }
        for experiment, results in done
        for result in results
    ]
    note = "Mean over functions of the mean squared error of their queries. Intervals: 95%, bootstrap over functions."
    return ResultTable(title="In-context regression: rates and intervals", note=note, rows=_named(rows))


def _named(rows: Sequence[dict[str, str]]) -> tuple[dict[str, str], ...]:
    """Rows of one kind of function need not say which: the note does."""
    lone = len({row["functions"] for row in rows}) == 1
    return tuple({key: value for key, value in row.items() if not (lone and key == "functions")} for row in rows)


def _interval(errors: Sequence[float]) -> str:
    return f"{bootstrap([errors]):.3g}" if len(errors) > 1 else f"{errors[0]:.3g}"


def _title(experiment: InContextRegression, name: str) -> str:
    return REGRESSION_METHODS[name].title.replace("many steps", f"{experiment.steps} steps")


def _note(experiment: InContextRegression) -> str:
    kind = "linear functions" if experiment.model == "linear" else f"perceptrons of {TEACHER} hidden units"
    noise = f", noise {experiment.noise:g} in the examples" if experiment.noise else ""
    said = (
        f"{experiment.functions} {kind} of {experiment.inputs} inputs and unit variance (seed {experiment.seed})"
        f"{noise}, {experiment.queries} queries each; all methods see the same examples, and a longer context holds a "
        "shorter one."
    )
    if "perceptron" in experiment.methods or "perceptron-one-step" in experiment.methods:
        said += f" The perceptron that learns has {experiment.hidden} hidden units."
    if not any(method.chooses_rate for method in experiment.compared().values()):
        return said
    if experiment.has_one_rate and experiment.rates is not None:
        return f"{said} Learning rate {experiment.rates[0]:g}, as given."
    return (
        f"{said} Learning rates: for each entry the best of the grid on {experiment.tuning} other functions; those of "
        f"many steps are judged by the larger error of the rate itself and of {MARGIN:g} times it."
    )


def regression_figures(done: RegressionResults) -> dict[str, bytes]:
    """PNGs by name."""
    curves = [
        (f"{experiment.model}, {result.examples} examples", result.method, result.curve)
        for experiment, results in done
        for result in results
    ]

    def draw(panels: Sequence[Any]) -> None:
        for panel, (experiment, results) in zip(panels, done, strict=True):
            for name in experiment.compared():
                _line(panel, experiment, [result for result in results if result.method == name])
            panel.set(yscale="log", xlabel="examples in the context", ylabel="squared error, queries")
            panel.set_title(to_label(f"{experiment.model} functions, {experiment.inputs} inputs"))
            panel.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)  # not over the points

    looks = {name: {"color": look["color"], "marker": look.get("marker", ".")} for name, look in _LOOKS.items()}
    return {
        "examples": png_of(len(done), draw, width=5.6, height=4.4),
        "rates": rate_curves(curves, "squared error, tuning functions", REGRESSION_METHODS, looks),
    }


def _line(panel: Any, experiment: InContextRegression, results: Sequence[RegressionResult]) -> None:
    shown = [result for result in results if result.errors is not None]
    means = [max(SMALLEST, mean_error(result)) for result in shown]
    spread = [standard_error(result.errors or ()) for result in shown]
    errors = None if any(map(math.isnan, spread)) else spread
    label = _title(experiment, results[0].method)
    look = {"label": label, "lw": 1.3, "ms": 4, "capsize": 2, **_LOOKS[results[0].method]}
    panel.errorbar([result.examples for result in shown], means, yerr=errors, **look)
