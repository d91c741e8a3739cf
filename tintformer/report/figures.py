"""The figures of a report: drawn once, as SVG that takes its colours from the page and as PNG on white."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tintformer.analysis.plot_style import STYLE, VARIABLES
from tintformer.errors import TintError
from tintformer.report.collect import Report
from tintformer.report.panels import cosine_panel, loss_panel, rate_panel, update_panel, update_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("loss", "updates", "cosines", "rates")
WIDTH, HEIGHT = 4.1, 2.75
"""Inches. Narrow, so that its letters can be read on a phone; on a desk two stand side by side."""
ROW = 0.21
"""Inches of a row of the table of updates."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One figure in both forms."""

    svg: str
    """An element for the page."""
    png: bytes


def draw(report: Report) -> dict[str, Drawing]:
    """All figures for which the report has numbers, by name; the same bytes on every run."""
    try:
        import matplotlib
    except ImportError as error:
        raise TintError("the figures of a report need matplotlib; install it with pip install matplotlib") from error
    drawings: dict[str, Drawing] = {}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        for name in NAMES:
            figure = _figure(name, report)
            if figure is not None:
                drawings[name] = Drawing(svg=_svg(figure, name), png=_png(figure))
    return drawings


def _figure(name: str, report: Report) -> Figure | None:
    from matplotlib.figure import Figure

    height = HEIGHT if name != "updates" else 0.75 + ROW * max(6, len(update_rows(report)))
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panel: Any = figure.subplots()
    if name == "loss":
        loss_panel(panel, report)
    elif name == "updates" and update_rows(report):
        update_panel(panel, report)
    elif name == "cosines" and report.cosines:
        cosine_panel(panel, report)
    elif name == "rates" and report.choice is not None:
        rate_panel(panel, report.choice)
    else:
        return None
    return figure


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    return file.getvalue()


def _svg(figure: Figure, name: str) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return themed(file.getvalue().decode(), name)


def themed(svg: str, name: str) -> str:
    """An SVG file of matplotlib as an element: sized and coloured by the page, with names of its own."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'^<svg\b.*?viewBox="([^"]*)".*?>', r'<svg viewBox="\1" aria-hidden="true">', svg, count=1, flags=re.S)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg).replace("xlink:href", "href")
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour.lower(), f"var(--{variable})")
    return _without_blank(svg.split("\n"))


def _without_blank(lines: Sequence[str]) -> str:
    return "\n".join(line.strip() for line in lines if line.strip())
