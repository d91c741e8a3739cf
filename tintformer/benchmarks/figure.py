"""The figure: how long each contestant takes in terms of the engine, one panel a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLOURS = {
    "forward": "#999999",
    "explicit_rule": "#56B4E9",
    "explicit_block": "#0072B2",
    "explicit_all": "#CC79A7",
    "vmap": "#E69F00",
    "repeat": "#D55E00",
    "fast": "#009E73",
    "fast_dual": "#F0E442",
    "fast_materialised": "#B8A500",
    "fast_float32": "#000000",
}
"""Okabe and Ito's colours, which colour-blind people can tell apart, and two of their shades."""

TOP = 5.0
"""Bars end here; the training repeated for every input is two orders of magnitude away from the rest."""


def draw(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the figure as PNG; what was not measured, or has nothing to be compared with, is left out."""
    from matplotlib.figure import Figure

    shown = [record for record in records if record["ratio_to_fast"] is not None]
    models = list(dict.fromkeys(record["model"] for record in shown)) or [""]
    figure = Figure(figsize=(9, 3.4 * len(models)), layout="constrained")
    panels = figure.subplots(len(models), 1, squeeze=False)[:, 0]
    for panel, model in zip(panels, models, strict=True):
        _panel(panel, [record for record in shown if record["model"] == model])
        panel.set_title(model, loc="left")
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    figure.savefig(path, format="png", dpi=150)


def _panel(panel: Any, records: Sequence[dict[str, Any]]) -> None:
    cases = list(dict.fromkeys(record["case"] for record in records))
    names = [name for name in COLOURS if any(record["contestant"] == name for record in records)]
    left = 0.0
    ticks: list[float] = []
    for case in cases:
        here = {record["contestant"]: record["ratio_to_fast"] for record in records if record["case"] == case}
        present = [name for name in names if name in here]
        for place, name in enumerate(present):
            height = min(here[name], TOP)
            panel.bar(left + place, height, width=0.9, color=COLOURS[name], label=name)
            mark = "" if here[name] <= TOP else " \N{UPWARDS ARROW}"
            panel.text(left + place, height, f"{here[name]:.3g}{mark}", ha="center", va="bottom", fontsize=7)
        ticks.append(left + (len(present) - 1) / 2)
        left += len(present) + 1
    panel.set_xticks(ticks, cases)
    panel.axhline(1, color="black", linewidth=0.8)
    panel.set_ylabel("time / fast")
    panel.margins(y=0.1)
    panel.spines[["top", "right"]].set_visible(False)
