"""Results as figures: perplexity by share, accuracy by task and method, and the curves that rates were chosen from."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from tintformer.experiments.classification_run import ClassificationResult
from tintformer.experiments.language import LanguageModelling, LanguageResult
from tintformer.experiments.methods import METHODS
from tintformer.experiments.models import short_name
from tintformer.experiments.tables.classification import Done, pooled, setting, task_title
from tintformer.experiments.tables.language import per_token
from tintformer.rates import CLEARLY_WORSE, RatePoint
from tintformer.report.figures import STYLE
from tintformer.statistics import standard_error

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1f2329")
"""Of Okabe and Ito, for colour-blind eyes too; each method keeps its own."""
MARKERS = "osD^vPX"
_LOOKS = {name: {"color": COLOURS[at], "marker": MARKERS[at]} for at, name in enumerate(METHODS)}


def language_figures(experiment: LanguageModelling, results: Sequence[LanguageResult]) -> dict[str, bytes]:
    """PNGs by name."""
    curves = [(f"{result.share:.0%} trained", result.method, result.curve) for result in results]
    return {
        "perplexity": _png(1, lambda axes: _by_share(axes[0], experiment, results)),
        "rates": _curves(curves, "nats per token, tuning blocks"),
    }


def _by_share(axes: Any, experiment: LanguageModelling, results: Sequence[LanguageResult]) -> None:
    for name in dict.fromkeys(result.method for result in results):
        mine = [result for result in results if result.method == name]
        shares = [100 * result.share for result in mine]
        perplexities = [math.exp(min(fmean(per_token(result)), 700)) for result in mine]
        errors = [p * standard_error(per_token(result)) for p, result in zip(perplexities, mine, strict=True)]
        axes.errorbar(
            shares, perplexities, yerr=errors, label=METHODS[name].title, capsize=2, lw=1.3, ms=4, **_LOOKS[name]
        )
    axes.set(
        xlabel="share of the block trained on, %", ylabel="perplexity of the rest", title=short_name(experiment.model)
    )
    axes.legend(fontsize=7)


def classification_figures(done: Done) -> dict[str, bytes]:
    """PNGs by name."""
    curves = [
        (f"{task_title(experiment)}, {setting(experiment)}", result.method, result.curve)
        for experiment, results in done
        for result in results
    ]
    settings = list(dict.fromkeys(setting(experiment) for experiment, _ in done))

    def draw(panels: Sequence[Any]) -> None:
        for panel, name in zip(panels, settings, strict=True):
            _accuracies(panel, [each for each in done if setting(each[0]) == name])
            panel.set_title(name, fontsize=8)

    return {"accuracy": _png(len(settings), draw), "rates": _curves(curves, "label cross-entropy, tuning examples")}


def _accuracies(axes: Any, done: Done) -> None:
    names = list(dict.fromkeys(result.method for _, results in done for result in results))
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        found: list[tuple[float, float]] = []
        for _, results in done:
            right = _right(next(result for result in results if result.method == name))
            found.append((100 * fmean(right), 100 * standard_error(right)))
        places = [at + (number - (len(names) - 1) / 2) * width for at in range(len(done))]
        values, errors = zip(*found, strict=True)
        axes.bar(places, values, width, yerr=errors, label=METHODS[name].title, color=_LOOKS[name]["color"], alpha=0.85)
    axes.set_xticks(range(len(done)), [task_title(experiment) for experiment, _ in done], rotation=20)
    axes.set(ylabel="accuracy, %", ylim=(0, 100))
    axes.legend(fontsize=7)


def _right(result: ClassificationResult) -> list[float]:
    return pooled(result, calibrated=False, by_length=False, measure="right")


def _curves(curves: Sequence[tuple[str, str, Sequence[RatePoint]]], label: str) -> bytes:
    """Loss by rate, a panel for each setting; what is far above the untrained loss is left out."""
    titles = list(dict.fromkeys(title for title, _, curve in curves if len(curve) > 1))

    def draw(panels: Sequence[Any]) -> None:
        for panel, title in zip(panels, titles, strict=True):
            for where, method, (*points,) in curves:
                if where == title and len(points) > 1:
                    _curve(panel, method, points)
            panel.set(xscale="log", xlabel="learning rate", ylabel=label)
            panel.set_title(title, fontsize=8)
            panel.legend(fontsize=6)

    return _png(len(titles), draw)


def _curve(axes: Any, method: str, points: Sequence[RatePoint]) -> None:
    untrained, *tried = points
    axes.axhline(untrained.loss, color="0.5", lw=0.8, ls="--")
    shown = [point for point in tried if point.loss < untrained.loss + CLEARLY_WORSE]
    look = {"label": METHODS[method].title, "lw": 1.2, "ms": 3, **_LOOKS[method]}
    axes.plot([point.rate for point in shown], [point.loss for point in shown], **look)


def _png(count: int, draw: Callable[[Sequence[Any]], None]) -> bytes:
    """Panels side by side, four a row; nothing where there is nothing to show."""
    if count == 0:
        return b""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(count, 4)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.4 * columns, 3.2 * -(-count // columns)), layout="constrained")
        grid = figure.subplots(-(-count // columns), columns, squeeze=False).flatten()
        draw(list(grid[:count]))
        for empty in grid[count:]:
            empty.set_visible(False)
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return png.getvalue()
