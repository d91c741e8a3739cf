"""All settings of a table in one figure: loss, format, layers x steps, by task and on average.

The paper's tables of settings have twelve: label or full-context loss, single or multi, and three budgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from tintformer.storage.foreign_markup import to_label
from tintlab.data.models import short_name
from tintlab.data.scoring import by_seed
from tintlab.kinds.icl import InContextLearning, InContextResult
from tintlab.kinds.icl_tables import InContextResults, budget, chosen, format_of, task_title
from tintlab.methods.methods import METHODS

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
