"""Figures of in-context learning: accuracy by task, by layers x steps, and by how demonstrations are packed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from tintformer.storage.foreign_markup import to_label
from tintlab.data.models import short_name
from tintlab.data.scoring import by_seed
from tintlab.kinds.icl import InContextLearning, InContextResult
from tintlab.kinds.icl_tables import (
    InContextResults,
    budget,
    chosen,
    format_of,
    pooled,
    setting,
    task_title,
)
from tintlab.methods.methods import METHODS
from tintlab.show.figures import COLOURS, LOOKS, png_of, rate_curves
from tintlab.show.intervals import standard_error


def in_context_figures(done: InContextResults) -> dict[str, bytes]:
    """PNGs by name."""
    curves = [
        (f"{task_title(experiment)}, {setting(experiment)}", result.method, curve)
        for experiment, results in done
        for result in results
        for curve in result.curves
    ]
    chosen_by = "label cross-entropy, tuning examples" if done[0][0].chosen_on == "tuning" else "wrong answers, tests"
    return {
        "accuracy": _panels(done, lambda experiment: _named(experiment, setting(experiment)), _accuracies),
        "settings": settings_figure(
            [
                AccuracyPoint(
                    panel=_named(experiment, format_of(experiment) + chosen(experiment)),
                    task=task_title(experiment),
                    budget=budget(experiment),
                    method=result.method,
                    value=100 * fmean(_right(result)),
                    error=100 * standard_error(_right(result)),
                )
                for experiment, results in sorted(_with_several_budgets(done), key=_from_all_layers_to_few)
                for result in results
            ]
        ),
        "formats": _formats_figure(format_points(done)),
        "rates": rate_curves(curves, chosen_by),
    }


def _formats_figure(points: Sequence[FormatPoint]) -> bytes:
    return png_of(
        len(panel_titles(points)), lambda panels: draw_formats(panels, points), columns=1, width=11, height=3.4
    )


def _named(experiment: InContextLearning, what: str) -> str:
    return f"{short_name(experiment.model)}: {what}"


def _panels(
    done: InContextResults, title: Callable[[InContextLearning], str], draw_one: Callable[[Any, InContextResults], None]
) -> bytes:
    """A panel for each title, with the experiments that it names."""
    titles = list(dict.fromkeys(title(experiment) for experiment, _ in done))

    def draw(panels: Sequence[Any]) -> None:
        for panel, name in zip(panels, titles, strict=True):
            draw_one(panel, [each for each in done if title(each[0]) == name])
            panel.set_title(to_label(name), fontsize=8)

    return png_of(len(titles), draw)


def _with_several_budgets(done: InContextResults) -> InContextResults:
    """Experiments that differ from another in nothing but layers and steps."""
    groups: dict[tuple[str, str, str], set[str]] = {}
    for experiment, _ in done:
        groups.setdefault(_but_for_budget(experiment), set()).add(budget(experiment))
    return [each for each in done if len(groups[_but_for_budget(each[0])]) > 1]


def _but_for_budget(experiment: InContextLearning) -> tuple[str, str, str]:
    return experiment.model, task_title(experiment), format_of(experiment) + chosen(experiment)


def _from_all_layers_to_few(done: tuple[InContextLearning, Any]) -> tuple[float, int]:
    experiment, _ = done
    return -(experiment.layers or math.inf), experiment.steps


@dataclass(frozen=True, kw_only=True)
class AccuracyPoint:
    """What one method reaches on one task with one budget, in percent."""

    panel: str
    task: str
    budget: str
    """Layers x steps; of no matter for the model as it is."""
    method: str
    value: float
    error: float
    """Standard error."""


def settings_figure(points: Sequence[AccuracyPoint]) -> bytes:
    """Accuracy by task, method and budget: a panel for each format, one above the other, with one legend for all."""
    titles = list(dict.fromkeys(point.panel for point in points))

    def draw(panels: Sequence[Any]) -> None:
        for panel, title in zip(panels, titles, strict=True):
            _by_task(panel, [point for point in points if point.panel == title])
            panel.set_title(to_label(title), loc="left", fontsize=11)
        limits = [limit for panel in panels for limit in panel.get_ylim()]
        shown: dict[str, Any] = {}
        for panel in panels:
            panel.set_ylim(min(limits), max(limits))  # the same for all, so that heights can be compared
            handles, labels = panel.get_legend_handles_labels()
            shown |= dict(zip(labels, handles, strict=True))
        labels = [method.title for method in METHODS.values() if method.title in shown]
        handles = [shown[label] for label in labels]
        panels[0].figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)

    return png_of(len(titles), draw, columns=1, width=11, height=3.6)


def _by_task(axes: Any, points: Sequence[AccuracyPoint]) -> None:
    """Tasks side by side, in each the same columns: every method with every budget that it was run with."""
    tasks = sorted({point.task for point in points})
    learning = [point for point in points if point.method != "auxiliary"]
    columns = list(dict.fromkeys((point.method, point.budget) for point in learning))
    columns.sort(key=lambda column: list(METHODS).index(column[0]))
    width = 0.84 / max(1, len(columns))
    places = {column: (at - (len(columns) - 1) / 2) * width for at, column in enumerate(columns)}
    for point in points:
        if point.method == "auxiliary":  # the same for every budget: a line across the task, and its error around it
            left, right = tasks.index(point.task) - 0.46, tasks.index(point.task) + 0.46
            look = {"color": COLOURS["auxiliary"], "lw": 0}
            axes.fill_between((left, right), point.value - point.error, point.value + point.error, alpha=0.12, **look)
            axes.plot((left, right), (point.value,) * 2, color=look["color"], label=METHODS["auxiliary"].title)
    for method in dict.fromkeys(method for method, _ in columns):
        mine = [point for point in learning if point.method == method]
        at = [tasks.index(point.task) + places[method, point.budget] for point in mine]
        look = {"label": METHODS[method].title, "ls": "", "ms": 7, "capsize": 2, **LOOKS[method]}
        axes.errorbar(at, [point.value for point in mine], yerr=[point.error for point in mine], **look)
    # The budgets stand under their columns, where every method has its own place.
    axes.set_xticks(
        [at + place for at, _ in enumerate(tasks) for place in places.values()],
        [to_label(each) for _ in tasks for _, each in columns],
        rotation=90,
        fontsize=7,
    )
    for at, task in enumerate(tasks):
        axes.text(at, 1.0, to_label(task), ha="center", va="top", transform=axes.get_xaxis_transform(), weight="bold")
    axes.set(ylabel="accuracy, %", xlim=(-0.55, len(tasks) - 0.45))
    axes.margins(y=0.15)


def _accuracies(axes: Any, done: InContextResults) -> None:
    """Bars by task, one a method."""
    names = list(dict.fromkeys(result.method for _, results in done for result in results))
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        shift = (number - (len(names) - 1) / 2) * width
        found = [(at, _right(each)) for at, (_, results) in enumerate(done) for each in results if each.method == name]
        places = [at + shift for at, _ in found]
        values = [100 * fmean(right) for _, right in found]
        errors = [100 * standard_error(right) for _, right in found]
        axes.bar(places, values, width, yerr=errors, label=METHODS[name].title, color=LOOKS[name]["color"], alpha=0.85)
    axes.set_xticks(range(len(done)), [to_label(task_title(experiment)) for experiment, _ in done], rotation=20)
    axes.set(ylabel="accuracy, %", ylim=(0, 100))
    axes.legend(fontsize=7)


def _right(result: InContextResult) -> list[float]:
    return pooled(result, calibrated=False, by_length=False, measure="right")


TASK_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#5e3c99", "#66a61e", "#b2182b")
GAP = 0.8
"""Between one loss and format and the next."""


@dataclass(frozen=True, kw_only=True)
class FormatPoint:
    """The accuracy of a task in one setting, for each seed, in percent."""

    panel: str
    """Model, method, and whether scores are calibrated."""
    task: str
    format: str
    """Loss and mode."""
    budget: str
    """Layers x steps."""
    seeds: tuple[float, ...]


def format_points(done: InContextResults) -> list[FormatPoint]:
    """Those of methods that learn from demonstrations in several losses or modes."""
    found = [
        _point(experiment, result, calibrated)
        for calibrated in (False, True)
        for experiment, results in sorted(done, key=_order)
        for result in results
        if experiment.shots and METHODS[result.method].preset is not None
    ]
    formats: dict[str, set[str]] = {}
    for point in found:
        formats.setdefault(point.panel, set()).add(point.format)
    return [point for point in found if len(formats[point.panel]) > 1]


def _order(done: tuple[InContextLearning, Any]) -> tuple[str, bool, bool, float, int]:
    """As in the paper's tables: label loss first, single before multi, all layers before few."""
    experiment, _ = done
    layers = math.inf if experiment.layers is None else experiment.layers
    return experiment.model, experiment.loss != "label", experiment.mode != "single", -layers, experiment.steps


def _point(experiment: InContextLearning, result: InContextResult, calibrated: bool) -> FormatPoint:
    scores = "calibrated" if calibrated else "plain"
    rights = by_seed(result.answers, calibrated, by_length=False, measure="right")
    return FormatPoint(
        panel=f"{short_name(experiment.model)}, {METHODS[result.method].title}{chosen(experiment)}, {scores}",
        task=task_title(experiment),
        format=format_of(experiment),
        budget=budget(experiment),
        seeds=tuple(100 * fmean(right) for right in rights),
    )


def draw_formats(panels: Sequence[Any], points: Sequence[FormatPoint]) -> None:
    """A panel for each model, method and kind of scores, all on one scale."""
    titles = panel_titles(points)
    for panel, title in zip(panels, titles, strict=True):
        _draw_panel(panel, [point for point in points if point.panel == title])
        panel.set_title(to_label(title), loc="left", fontsize=10)
    limits = [limit for panel in panels for limit in panel.get_ylim()]
    for panel in panels:
        panel.set_ylim(min(limits), max(limits))
    handles, labels = panels[0].get_legend_handles_labels()
    panels[0].figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)


def panel_titles(points: Sequence[FormatPoint]) -> list[str]:
    """In the order in which they are drawn."""
    return list(dict.fromkeys(point.panel for point in points))


def _draw_panel(axes: Any, points: Sequence[FormatPoint]) -> None:
    columns = list(dict.fromkeys((point.format, point.budget) for point in points))
    formats = list(dict.fromkeys(form for form, _ in columns))
    places = {column: at + GAP * formats.index(column[0]) for at, column in enumerate(columns)}
    tasks = list(dict.fromkeys(point.task for point in points))
    for form in formats:
        mine = [column for column in columns if column[0] == form]
        for number, task in enumerate(tasks):
            line = [point for point in points if point.task == task and (point.format, point.budget) in mine]
            at = [places[point.format, point.budget] for point in line]
            look = {"color": TASK_COLOURS[number % len(TASK_COLOURS)], "lw": 0.9, "ms": 3, "marker": "o"}
            label = to_label(task) if form == formats[0] else None
            axes.plot(at, [fmean(point.seeds) for point in line], alpha=0.75, label=label, **look)
        _draw_average(axes, [point for point in points if point.format == form], mine, places, first=form == formats[0])
        centre = fmean(places[column] for column in mine)
        axes.text(centre, 1.0, to_label(form), ha="center", va="top", fontsize=7, transform=axes.get_xaxis_transform())
    axes.set_xticks(list(places.values()), [to_label(each) for _, each in places], rotation=90, fontsize=7)
    axes.set_ylabel("accuracy, %")
    axes.margins(y=0.15)


def _draw_average(
    axes: Any,
    points: Sequence[FormatPoint],
    columns: Sequence[tuple[str, str]],
    places: dict[tuple[str, str], float],
    *,
    first: bool,
) -> None:
    """Over tasks, with the spread of the seeds' averages, as the paper prints it."""
    seeds = [
        [fmean(seed) for seed in zip(*(point.seeds for point in points if point.budget == each), strict=False)]
        for _, each in columns
    ]
    axes.errorbar(
        [places[column] for column in columns],
        [fmean(each) for each in seeds],
        yerr=[pstdev(each) for each in seeds],
        label="average, with the spread of seeds" if first else None,
        color="#1f2329",
        capsize=2,
        lw=2,
        elinewidth=1,
        ms=6,
        marker="s",
    )
