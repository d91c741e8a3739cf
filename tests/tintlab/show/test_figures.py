# pyright: basic
"""Figures that can be read: methods look different, and nothing stands over anything else."""

from __future__ import annotations

from colorsys import rgb_to_hls
from itertools import combinations, pairwise

import pytest

from tintlab.kinds.icl_figures import AccuracyPoint, _by_task
from tintlab.methods.methods import METHODS
from tintlab.show.figures import COLOURS, MARKERS


def test_no_two_methods_look_alike() -> None:
    assert list(COLOURS) == list(METHODS) and len(set(MARKERS)) == len(MARKERS) == len(METHODS)
    looks = {
        name: rgb_to_hls(*(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))) for name, colour in COLOURS.items()
    }
    coloured = {name: 360 * hue for name, (hue, _, saturation) in looks.items() if saturation > 0.2}
    greys = [lightness for name, (_, lightness, _) in looks.items() if name not in coloured]
    for one, other in combinations(coloured, 2):
        turn = abs(coloured[one] - coloured[other])
        assert min(turn, 360 - turn) > 12, f"{one} and {other} have the same hue"
    assert len(greys) == 2 and abs(greys[0] - greys[1]) > 0.25


def test_every_column_has_its_place_and_its_budget_below() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    budgets = {"auxiliary": [""], "fine-tuning": ["7 x 4"], "tint": ["all x 1", "15 x 2", "7 x 4"]}
    points = [
        AccuracyPoint(panel="a", task=task, budget=budget, method=method, value=60.0, error=3.0)
        for task in ("one", "two")
        for method, tried in budgets.items()
        for budget in tried
    ]
    axes = Figure().subplots()
    _by_task(axes, points)
    places, labels = axes.get_xticks(), [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["7 x 4", "all x 1", "15 x 2", "7 x 4"] * 2
    steps = [later - earlier for earlier, later in pairwise(places)]
    assert min(steps) > 0.15, "columns stand apart"
    titles = {METHODS[name].title for name in budgets}
    assert set(axes.get_legend_handles_labels()[1]) == titles
