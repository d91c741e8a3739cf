"""What figures of all kinds share: how methods look, panels side by side as a PNG, and the curves of the rates."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tintformer.errors import TintWarning
from tintformer.learning.rate_search import CLEARLY_WORSE, RatePoint
from tintformer.storage.foreign_markup import to_label
from tintlab.methods.methods import METHODS, Method
from tintlab.show.plot_style import INSTALL, STYLE, has_matplotlib

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
LOOKS = {name: {"color": COLOURS[name], "marker": MARKERS[at]} for at, name in enumerate(METHODS)}


def rate_curves(
    curves: Sequence[tuple[str, str, Sequence[RatePoint]]],
    label: str,
    methods: Mapping[str, Method] = METHODS,
    looks: Mapping[str, dict[str, Any]] = LOOKS,
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
