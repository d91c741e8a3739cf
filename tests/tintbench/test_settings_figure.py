# pyright: basic
"""The figure that is drawn again from its page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tintbench.settings_figure import read_points
from tintlab.kinds.icl_figures import settings_figure

PAGE = Path(__file__).parents[2] / "docs" / "results" / "in-context-learning.md"


def test_the_published_page_has_all_that_the_figure_shows() -> None:
    points = read_points(PAGE.read_text(encoding="utf-8"))
    panels = Counter(point.panel for point in points)
    # Five tasks; the model as it is, TinT with three budgets, and three or four other methods with one.
    assert panels == {
        "SmolLM2-135M: zero-shot": 5 * 7,
        "SmolLM2-135M: 32-shot single, label loss": 5 * 8,
    }
    (best,) = (
        point
        for point in points
        if (point.task, point.budget, point.method) == ("SST-2", "7 x 4", "tint") and "32-shot" in point.panel
    )
    assert (best.value, best.error) == (76.5, 2.6)
    pytest.importorskip("matplotlib")
    assert settings_figure(points).startswith(b"\x89PNG")
