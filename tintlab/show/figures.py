"""Results as figures: perplexity by share, accuracy by task and by layers x steps, and the curves of the rates."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tintformer.errors import TintWarning
from tintformer.learning.rate_search import CLEARLY_WORSE, RatePoint
from tintformer.storage.foreign_markup import to_label
from tintlab.data.models import short_name
from tintlab.kinds.format_figure import FormatPoint, draw_formats, format_points, panel_titles
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
from tintlab.kinds.lm import LanguageResult
from tintlab.methods.methods import METHODS, Method
from tintlab.show.intervals import bootstrap, standard_error
from tintlab.show.plot_style import INSTALL, STYLE, has_matplotlib
from tintlab.show.tables import LanguageResults, per_token

COLOURS = {
    "auxiliary": "#6b7280",
    "fine-tuning": "#d55e00",
    "linears": "#5e3c99",
    "moved": "#cc79a7",
    "moved-same-rate": "#e69f00",
    "tint": "#0072b2",
    "tint-paper": "#1f2329",
    "mse": "#3b4cc0",
    "quad": "#b2182b",
    "lora": "#009e73",
    "ia3": "#66a61e",
}
"""By method. Most are Okabe and Ito's, for colour-blind eyes too, without their yellow."""
MARKERS = "osD^vPX<>*p"
_LOOKS = {name: {"color": COLOURS[name], "marker": MARKERS[at]} for at, name in enumerate(METHODS)}


def language_figures(done: LanguageResults) -> dict[str, bytes]:
    """PNGs by name."""
    curves = [
        (f"{short_name(experiment.model)}, {result.share:.0%} trained", result.method, result.curve)
        for experiment, results in done
        for result in results
    ]

    gained = [each for each in done if len({result.method for result in each[1]} | {"auxiliary"}) > 1]

    def draw(panels: Sequence[Any], shown: LanguageResults, draw_one: Callable[..., None]) -> None:
        for panel, (experiment, results) in zip(panels, shown, strict=True):
            draw_one(panel, results)
            panel.set(xlabel="share of the block trained on, %", title=to_label(short_name(experiment.model)))
            panel.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)  # not over the points

    blocks = "tuning blocks" if done[0][0].tunes else "scored blocks"
    return {
        "perplexity": png_of(len(done), lambda panels: draw(panels, done, _by_share), height=4.0),
        "gain": png_of(len(gained), lambda panels: draw(panels, gained, _gains), height=4.0),
        "rates": rate_curves(curves, f"nats per token, {blocks}"),
    }


def _by_share(axes: Any, results: Sequence[LanguageResult]) -> None:
    for name in dict.fromkeys(result.method for result in results):
        mine = [result for result in results if result.method == name]
        shares = [100 * result.share for result in mine]
        perplexities = [math.exp(min(fmean(per_token(result)), 700)) for result in mine]
        errors = [p * standard_error(per_token(result)) for p, result in zip(perplexities, mine, strict=True)]
        axes.errorbar(
            shares, perplexities, yerr=errors, label=METHODS[name].title, capsize=2, lw=1.3, ms=4, **_LOOKS[name]
        )
    axes.set_ylabel("perplexity of the rest")


def _gains(axes: Any, results: Sequence[LanguageResult]) -> None:
    """What each method gains on the same blocks, which differ much more from each other than methods do."""
    plain = {result.share: per_token(result) for result in results if result.method == "auxiliary"}
    names = [name for name in dict.fromkeys(result.method for result in results) if name != "auxiliary"]
    for number, name in enumerate(names):
        mine = [result for result in results if result.method == name and result.share in plain]
        gains = [bootstrap([plain[result.share], per_token(result)]) for result in mine]
        places = [100 * result.share + 1.5 * (number - (len(names) - 1) / 2) for result in mine]
        errors = [[gain.value - gain.low for gain in gains], [gain.high - gain.value for gain in gains]]
        look = {"label": METHODS[name].title, "capsize": 2, "ls": "", "ms": 4, **_LOOKS[name]}
        axes.errorbar(places, [gain.value for gain in gains], yerr=errors, **look)
    axes.axhline(0, color="0.5", lw=0.8, ls="--")
    axes.set_ylabel("gain, nats per token, 95% interval")


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
        look = {"label": METHODS[method].title, "ls": "", "ms": 7, "capsize": 2, **_LOOKS[method]}
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
        axes.bar(places, values, width, yerr=errors, label=METHODS[name].title, color=_LOOKS[name]["color"], alpha=0.85)
    axes.set_xticks(range(len(done)), [to_label(task_title(experiment)) for experiment, _ in done], rotation=20)
    axes.set(ylabel="accuracy, %", ylim=(0, 100))
    axes.legend(fontsize=7)


def _right(result: InContextResult) -> list[float]:
    return pooled(result, calibrated=False, by_length=False, measure="right")


def rate_curves(
    curves: Sequence[tuple[str, str, Sequence[RatePoint]]],
    label: str,
    methods: Mapping[str, Method] = METHODS,
    looks: Mapping[str, dict[str, Any]] = _LOOKS,
) -> bytes:
    """Loss by rate, a panel for each setting; what is far above the untrained loss is left out."""
    titles = list(dict.fromkeys(title for title, _, curve in curves if len(curve) > 1))

    def draw(panels: Sequence[Any]) -> None:
        for panel, title in zip(panels, titles, strict=True):
            for where, method, (*points,) in curves:
                if where == title and len(points) > 1:
                    _curve(panel, points, {"label": methods[method].title, **looks[method]})
            panel.set(xscale="log", xlabel="learning rate", ylabel=label)
            panel.set_title(to_label(title), fontsize=8)
            panel.legend(fontsize=6)

    return png_of(len(titles), draw)


def _curve(axes: Any, points: Sequence[RatePoint], look: dict[str, Any]) -> None:
    untrained, *tried = points
    axes.axhline(untrained.loss, color="0.5", lw=0.8, ls="--")
    shown = [point for point in tried if point.loss < untrained.loss + CLEARLY_WORSE]
    axes.plot([point.rate for point in shown], [point.loss for point in shown], lw=1.2, ms=3, **look)


def png_of(
    count: int,
    draw: Callable[[Sequence[Any]], None],
    *,
    columns: int = 4,
    width: float = 4.4,
    height: float = 3.2,
) -> bytes:
    """Panels side by side, so many a row; nothing where there is nothing to show."""
    if count == 0:
        return b""
    if not has_matplotlib():  # not an error: the tables took hours and can be written
        warnings.warn(f"no figures: they need matplotlib; install it with {INSTALL}", TintWarning, stacklevel=2)
        return b""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(count, columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * columns, height * -(-count // columns)), layout="constrained")
        grid = figure.subplots(-(-count // columns), columns, squeeze=False).flatten()
        draw(list(grid[:count]))
        for empty in grid[count:]:
            empty.set_visible(False)
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return png.getvalue()
