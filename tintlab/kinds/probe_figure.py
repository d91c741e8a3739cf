"""The figure of a probe: shifts by reading and by learning rate, and the first label by demonstrations."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from tintformer.storage.foreign_markup import to_label
from tintlab.data.models import short_name
from tintlab.kinds.probe_result import MOVED, SAME, TEXT, ProbeResult, ProbeRow
from tintlab.show.figures import COLOURS, MARKERS
from tintlab.show.plot_style import STYLE, import_matplotlib

LABELS = {TEXT: "nats per token", MOVED: "probability moved between labels", SAME: "change of the first label"}


def draw(result: ProbeResult) -> bytes:
    """A PNG with a panel for each measure that there is."""
    matplotlib = import_matplotlib("figures of a probe")
    from matplotlib.figure import Figure

    panels = [name for name in (TEXT, MOVED) if any(name in row.shifts for row in result.rows)]
    panels += [SAME for row in result.demonstrations[:1] if SAME in row.shifts]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.7 * len(panels), 3.4), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            axes.axhline(0, color="0.6", lw=0.6)
            if name == SAME:
                _by_demonstrations(axes, result.demonstrations)
            else:
                _by_rate(axes, result.rows, name)
            axes.set_ylabel(LABELS[name])
            axes.legend(fontsize=6.5)
        figure.suptitle(to_label(f"{short_name(result.model)}: shift on unrelated prompts"), fontsize=9)
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return png.getvalue()


def _by_rate(axes: Any, rows: Sequence[ProbeRow], name: str) -> None:
    """What reading does, then what learning does by the rates of the first rule, layers and steps."""
    learnt = [row for row in rows if row.after == "learning"]
    knobs = next((row.rule, row.layers, row.steps) for row in learnt)
    rates = sorted({row.learning_rate or 0.0 for row in learnt})
    for number, contexts in enumerate(dict.fromkeys(row.contexts for row in rows)):
        own = [row for row in rows if row.contexts == contexts and name in row.shifts]
        read = [row for row in own if row.after == "reading"]
        shown = [row for row in own if row.after == "learning" and (row.rule, row.layers, row.steps) == knobs]
        # Side by side: intervals at one place would hide each other.
        places = [1 + rates.index(row.learning_rate or 0.0) + 0.08 * number for row in shown]
        _draw_line(axes, places, shown, name, number, label=to_label(contexts))
        _draw_line(axes, [0.08 * number for _ in read], read, name, number)
    axes.set_xticks(range(len(rates) + 1), ["reading", *(f"{rate:.2g}" for rate in rates)])
    axes.set_xlabel("reading, and learning by rate")


def _by_demonstrations(axes: Any, rows: Sequence[ProbeRow]) -> None:
    """The first label of questions with the demonstrations' labels, a line for reading and each way of learning."""
    sets = list(dict.fromkeys(row.contexts for row in rows))
    ways = dict.fromkeys((row.after, row.learning_rate) for row in rows if row.after != "both")
    knobs = next(((row.rule, row.layers, row.steps) for row in rows if row.rule is not None), None)
    for number, (after, rate) in enumerate(ways):
        shown = [
            row
            for row in rows
            if (row.after, row.learning_rate) == (after, rate)
            and SAME in row.shifts
            and (row.rule is None or (row.rule, row.layers, row.steps) == knobs)
        ]
        label = after if rate is None else f"{after}, {rate:.2g}"
        places = [sets.index(row.contexts) + 0.05 * number for row in shown]
        _draw_line(axes, places, shown, SAME, number, label=label, ls="--" if after == "reading" else "-")
    axes.set_xticks(range(len(sets)), [name.partition(" ")[0] for name in sets])
    axes.set_xlabel(to_label(f"demonstrations with the first label, {sets[0].partition(' ')[2]}"))


def _draw_line(
    axes: Any, places: Sequence[float], rows: Sequence[ProbeRow], name: str, number: int, **look: Any
) -> None:
    """Shifts with their intervals."""
    values = [row.shifts[name].value for row in rows]
    # Of equal values an interval may end a rounding error short of their mean.
    below = [max(0.0, each.value - each.low) for each in values]
    above = [max(0.0, each.high - each.value) for each in values]
    look |= {"color": _colour(number), "marker": MARKERS[number % len(MARKERS)]}
    axes.errorbar(places, [each.value for each in values], [below, above], ms=3.5, lw=1.1, elinewidth=0.7, **look)


def _colour(number: int) -> str:
    return list(COLOURS.values())[number % len(COLOURS)]
