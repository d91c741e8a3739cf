# pyright: basic
"""The figures: what they are drawn from, and how large they are for deep models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tintlab.reports import Report
from tintlab.reports.drawing import HEIGHT, ROW, cumulative, draw_figure


def test_the_gain_is_the_sum_of_what_each_token_gained(report: Report) -> None:
    line = cumulative(report, [token.loss for token in report.scored])
    assert line[0] == 0 and len(line) == len(report.scored) + 1
    assert line[3] == pytest.approx(sum(token.loss_before - token.loss for token in report.scored[:3]))
    assert line[-1] == pytest.approx(-len(report.scored) * report.change)


def test_figures_by_layer_stay_small_for_a_deep_model(report: Report) -> None:
    def drawn(layers: int) -> tuple[float, int, int]:
        updates = [replace(each, layer=layer) for layer in range(layers) for each in report.updates if each.layer == 1]
        figure = draw_figure("updates", replace(report, updates=tuple(updates)))
        panel = figure.axes[0]
        return float(figure.get_size_inches()[1]), len(panel.texts), len(panel.get_yticks())

    matrices = sum(update.layer == 1 for update in report.updates)
    assert drawn(12) == (pytest.approx(0.75 + 12 * ROW), 12 * matrices, 12)
    assert drawn(13) == (drawn(12)[0], 0, 7), "above twelve layers no number would find room"
    assert drawn(126) == (drawn(12)[0], 0, 7) and drawn(2)[0] < drawn(12)[0] < 1.3 * HEIGHT
