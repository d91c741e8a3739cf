# pyright: basic
"""All settings in one figure: which points it has, and what is drawn of them."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from tintlab.data.scoring import Answers
from tintlab.kinds.icl import InContextLearning, InContextResult
from tintlab.kinds.icl_figures import _formats_figure, draw_formats, format_points, panel_titles
from tintlab.kinds.recipes import table_settings

TESTS = 4


def result(method: str, number: int) -> InContextResult:
    """Three seeds, each right about other examples."""
    answers = tuple(
        Answers(
            seed=seed,
            labels=(0,) * TESTS,
            scores=tuple((-1.0, float((at + seed + number) % 3 - 2)) for at in range(TESTS)),
            calibration=(-1.0, -1.5),
            num_tokens=(1, 1),
            demonstrations=32.0,
            cut=0,
        )
        for seed in range(3)
    )
    return InContextResult(method=method, rates=(1e-4,) * 3, curves=((),), answers=answers)


@pytest.fixture(scope="module")
def done() -> Any:
    base = InContextLearning(model="", task="praise", methods=("auxiliary", "tint"), rates=(1e-4,))
    experiments = table_settings(base, ["nano-llama"])
    return [(each, [result("auxiliary", 0), result("tint", at)]) for at, each in enumerate(experiments)]


def test_all_twelve_settings_stand_side_by_side(done: Any) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    from matplotlib.figure import Figure

    points = format_points(done)
    assert len({(point.format, point.budget) for point in points}) == 12 and len(points) == 2 * 12
    assert panel_titles(points) == ["nano-llama, TinT, plain", "nano-llama, TinT, calibrated"]
    order = [(point.format, point.budget) for point in points[:12]]
    assert order[0] == ("32-shot single, label loss", "all x 1")
    assert order[4] == ("32-shot multi, label loss", "3 x 2") and order[-1] == ("32-shot multi, full loss", "1 x 4")
    panels = list(Figure(layout="constrained").subplots(2, 1))
    draw_formats(panels, points)
    assert len(panels[0].get_xticks()) == 12 and len(panels[0].containers) == 4  # an average for each format
    drawn = [y for container in panels[0].containers for y in container.lines[0].get_ydata()]
    expected = [fmean(point.seeds) for point in points[:12]]  # of one task the average is the task
    assert all(math.isclose(one, other) for one, other in zip(drawn, expected, strict=True))


def test_several_formats_are_needed(done: Any) -> None:
    """One format by layers and steps is what the figure of settings shows."""
    assert not format_points(done[:3]) and not _formats_figure([])
    zero = [(replace(each, shots=0, loss="full"), results) for each, results in done]
    assert not format_points(zero)
