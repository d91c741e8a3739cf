"""The figures of a report: what each shows, drawn once, as SVG with the page's colours and as PNG on white."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tintformer.learning.rate_search import CLEARLY_WORSE
from tintlab.reports.collect import Report, UpdateNorm
from tintlab.show.plot_style import BETTER, FAINT, INK, MUTED, STYLE, VARIABLES, WORSE, import_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("loss", "gain", "updates", "cosines", "rates")
WIDTH, HEIGHT = 4.1, 2.75
"""Inches. Narrow, so that its letters can be read on a phone; on a desk two stand side by side."""
ROW = 0.21
"""Inches of a row of the table of updates."""
NUMBERED = 12
"""Layers up to which that table has a number in each cell. With more of them its height stays, and the shades alone
tell: at full height it would leave half a page empty beside it."""
MARKED = 24
"""Layers up to which each has a mark on the line of cosines."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One figure in both forms."""

    svg: str
    """An element for the page."""
    png: bytes


def draw(report: Report) -> dict[str, Drawing]:
    """All figures for which the report has numbers, by name; the same bytes on every run."""
    matplotlib = import_matplotlib("the figures of a report")
    drawings: dict[str, Drawing] = {}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        for name in drawable(report):
            figure = draw_figure(name, report)
            drawings[name] = Drawing(svg=_svg(figure, name), png=_png(figure))
    return drawings


def drawable(report: Report) -> list[str]:
    """The figures for which the report has numbers."""
    there = {
        "loss": True,
        "gain": True,
        "updates": bool(update_rows(report)),
        "cosines": bool(report.cosines),
        "rates": report.choice is not None and bool(report.choice.curve),
    }
    return [name for name in NAMES if there[name]]


def draw_figure(name: str, report: Report) -> Figure:
    """One of them, as matplotlib has it."""
    from matplotlib.figure import Figure

    panels = {
        "loss": loss_panel,
        "gain": gain_panel,
        "updates": update_panel,
        "cosines": cosine_panel,
        "rates": rate_panel,
    }
    height = HEIGHT if name != "updates" else 0.75 + ROW * min(max(6, len(update_rows(report))), NUMBERED)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels[name](figure.subplots(), report)
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
    return "\n".join(line.strip() for line in svg.split("\n") if line.strip())


ORDER = tuple(
    ["attention_norm", "query", "query_norm", "key", "key_norm", "value", "output", "mlp_norm", "gate", "up", "down"]
)
"""Columns of the table of updates; others follow."""
DARKEST = 0.6
"""Opacity of the largest update's cell. More, and the number in it cannot be read."""


def loss_panel(panel: Any, report: Report) -> None:
    """Loss by position, smoothed, before and after; the gap between them is coloured by who is lower."""
    positions = [token.position for token in report.scored]
    window = smoothing_window(len(positions))
    before = smooth([token.loss_before for token in report.scored], window)
    after = smooth([token.loss for token in report.scored], window)
    for colour, where in ((BETTER, _less(after, before)), (WORSE, _less(before, after))):
        panel.fill_between(positions, before, after, where=where, interpolate=True, color=colour, alpha=0.22, lw=0)
    panel.plot(positions, before, color=MUTED, lw=1.4, ls=(0, (4, 1.5)), label="before")
    panel.plot(positions, after, color=BETTER, lw=1.8, label="after")
    panel.set_xlabel("position in the text (tokens)")
    panel.set_ylabel("nats per token")
    panel.grid(axis="y", color=FAINT, lw=0.6)
    panel.margins(x=0.01)
    _legend_above(panel)


def gain_panel(panel: Any, report: Report) -> None:
    """Nats gained from the first evaluated token to each, as a sum; beside it the baseline, if there is one."""
    positions = [report.scored[0].position - 1, *(token.position for token in report.scored)]
    ours = cumulative(report, [token.loss for token in report.scored])
    zeros = [0.0] * len(ours)
    for colour, where in ((BETTER, _less(zeros, ours)), (WORSE, _less(ours, zeros))):
        panel.fill_between(positions, zeros, ours, where=where, interpolate=True, color=colour, alpha=0.22, lw=0)
    panel.axhline(0, color=MUTED, lw=0.8)
    if report.baseline is not None and math.isfinite(report.baseline.loss):
        theirs = cumulative(report, report.baseline.losses)
        panel.plot(positions, theirs, color=MUTED, lw=1.4, ls=(0, (4, 1.5)), label="explicit fine-tuning")
    panel.plot(positions, ours, color=BETTER, lw=1.8, label="inside the pass")
    panel.set_xlabel("position in the text (tokens)")
    panel.set_ylabel("nats gained so far")
    panel.grid(axis="y", color=FAINT, lw=0.6)
    panel.margins(x=0.01)
    _legend_above(panel)


def cumulative(report: Report, losses: Sequence[float]) -> list[float]:
    """By how much these losses are below those of the model as it is, summed from the first token on, 0 first."""
    gains = (token.loss_before - loss for token, loss in zip(report.scored, losses, strict=True))
    return list(accumulate(gains, initial=0.0))


def smoothing_window(count: int) -> int:
    """Tokens in a moving mean: an odd number, about a twelfth of the text."""
    return min(2 * (max(count // 12, 4) // 2) + 1, 2 * ((count + 1) // 2) - 1)


def smooth(values: Sequence[float], window: int) -> list[float]:
    """A centred moving mean, over fewer values near the ends."""
    half = window // 2
    parts = [values[max(0, index - half) : index + half + 1] for index in range(len(values))]
    return [math.fsum(part) / len(part) for part in parts]


def _less(ours: Sequence[float], theirs: Sequence[float]) -> list[bool]:
    return [mine <= other for mine, other in zip(ours, theirs, strict=True)]


def update_rows(report: Report) -> list[int]:
    """The blocks that moved, first to last."""
    return sorted({update.layer for update in report.updates if update.layer is not None})


def update_panel(panel: Any, report: Report) -> None:
    """A table, blocks by matrices: a shade by the logarithm of each update's norm, and the norm where there is room."""
    layers = update_rows(report)
    cells = [update for update in report.updates if update.layer is not None]
    columns = sorted(
        {cell.matrix for cell in cells}, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)
    )
    exponent = unit_exponent(cells)
    norms = [cell.norm for cell in cells if cell.norm > 0]
    low, high = (math.log(min(norms)), math.log(max(norms))) if norms else (0.0, 0.0)
    for cell in cells:
        x, y = columns.index(cell.matrix), layers.index(cell.layer or 0)
        level = (math.log(cell.norm) - low) / max(high - low, 1e-9) if cell.norm > 0 else 0.0
        panel.bar(x, 0.92, 0.96, bottom=y - 0.46, color=BETTER, alpha=_opacity(level), lw=0)
        if numbered(report):
            panel.text(x, y, short(cell.norm / 10**exponent), ha="center", va="center", fontsize=6.8)
    panel.set_xlim(-0.5, len(columns) - 0.5)
    panel.set_ylim(len(layers) - 0.5, -0.5)
    panel.set_xticks(range(len(columns)), [name.replace("attention_norm", "attn_norm") for name in columns])
    panel.tick_params(axis="x", labelrotation=30 if len(columns) > 6 else 0, labelsize=7.5)
    every = next(step for step in (1, 2, 5, 10, 20, 50, len(layers)) if NUMBERED * step >= len(layers))
    panel.set_yticks(range(0, len(layers), every), [str(layer) for layer in layers[::every]], fontsize=7.5)
    panel.tick_params(length=0)
    panel.xaxis.tick_top()
    panel.spines[:].set_visible(False)
    panel.set_ylabel("layer")
    if not numbered(report) and norms:
        _scale_below(panel, *(short(norm / 10**exponent) for norm in (min(norms), max(norms))))


def numbered(report: Report) -> bool:
    """Whether the table of updates has room for its numbers."""
    return len(update_rows(report)) <= NUMBERED


def _opacity(level: float) -> float:
    """Of the cell of an update, from the smallest, 0, to the largest, 1."""
    return round(0.05 + (DARKEST - 0.05) * level, 3)


def _scale_below(panel: Any, smallest: str, largest: str) -> None:
    """The shades from the smallest update to the largest, with these two in numbers."""
    steps = 12
    scale = panel.inset_axes((0.25, -0.09, 0.5, 0.045))
    scale.bar(range(steps), 1, 1, color=[(BETTER, _opacity(step / (steps - 1))) for step in range(steps)], lw=0)
    scale.set_xlim(-0.5, steps - 0.5)
    scale.set_xticks([])
    scale.set_yticks([])
    scale.spines[:].set_visible(False)
    for x, side, text in ((-1, "right", smallest), (steps, "left", largest)):
        scale.text(x, 0.5, text, ha=side, va="center", fontsize=7.5)


def unit_exponent(updates: Sequence[UpdateNorm]) -> int:
    """The power of ten, a multiple of three, in which the largest update is a number from 1 to 1000."""
    largest = max((update.norm for update in updates), default=0.0)
    return 3 * math.floor(math.log10(largest) / 3) if largest > 0 else 0


def short(value: float) -> str:
    """Three digits at most."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def cosine_panel(panel: Any, report: Report) -> None:
    """Cosines by block, over what moves and over everything."""
    blocks = report.cosines[1:]
    layers = [cosine.layer for cosine in blocks]
    every = [_or_nan(cosine.everything) for cosine in blocks]
    moved = [_or_nan(cosine.moved) for cosine in blocks]
    panel.axhline(1, color=FAINT, lw=0.8)
    squares, dots = ("s", "o") if len(layers) <= MARKED else ("", "")
    panel.plot(layers, every, color=MUTED, lw=1.4, ls=(0, (4, 1.5)), marker=squares, ms=3.5, label="all parameters")
    panel.plot(layers, moved, color=BETTER, lw=1.8, marker=dots, ms=4.5, label="parameters that move")
    known = [value for value in (*every, *moved) if not math.isnan(value)]
    panel.set_ylim(min(0.0, *known, 0.0) - (0.05 if min(known, default=0) < 0 else 0), 1.04)
    panel.set_xlabel("layer")
    panel.set_ylabel("cosine")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.grid(axis="y", color=FAINT, lw=0.6)
    _legend_above(panel)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def rate_panel(panel: Any, report: Report) -> None:
    """Held-out loss by rate; what is far above the untrained loss, or diverged, is a mark at the upper edge."""
    choice = report.choice
    assert choice is not None
    untrained, *points = choice.curve
    top = untrained.loss + 1.2 * CLEARLY_WORSE
    inside = [point for point in points if point.loss <= top]
    outside = [point for point in points if point.loss > top]
    lowest = min([untrained.loss, *(point.loss for point in inside)])
    # The height goes to the rates that matter: a rate that is clearly worse is a mark, wherever it would lie.
    top = min(top, max([untrained.loss, *(point.loss for point in inside)]) + 0.1 * (untrained.loss - lowest) + 0.02)
    panel.axhline(untrained.loss, color=MUTED, lw=1.2, ls=(0, (4, 1.5)), label="no training")
    panel.plot(
        [point.rate for point in inside], [point.loss for point in inside], color=BETTER, lw=1.6, marker="o", ms=4
    )
    if outside:
        rates = [point.rate for point in outside]
        panel.plot(rates, [top] * len(rates), color=WORSE, ls="", marker="^", ms=5, label="far worse")
    around: dict[str, Any] = {"ls": "", "marker": "o", "ms": 10, "mfc": "none", "mec": INK, "mew": 1.3}
    for point in points:  # none of them where no training was chosen
        if point.rate == choice.rate:
            panel.plot([point.rate], [min(point.loss, top)], label="chosen", **around)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(lambda rate, _: tidy(rate))
    panel.xaxis.set_minor_formatter(lambda rate, _: "")
    panel.set_ylim(lowest - 0.08 * (top - lowest), top + 0.03 * (top - lowest))
    panel.set_xlabel("learning rate")
    panel.set_ylabel("held-out nats per token")
    panel.grid(axis="y", color=FAINT, lw=0.6)
    _legend_above(panel)


def tidy(rate: float) -> str:
    """A rate in two or three digits: 3.16e-5."""
    digits, exponent = f"{rate:.2e}".split("e")
    return "0" if rate == 0 else f"{float(digits):g}e{int(exponent)}"


def _legend_above(panel: Any) -> None:
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "borderaxespad": 0.2}
    panel.legend(**place, ncols=3, columnspacing=1.2, handlelength=1.6, fontsize=8)
