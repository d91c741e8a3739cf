# pyright: basic
"""Standard errors and intervals, against values that are known otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tintlab.show.intervals import bootstrap, crossed_bootstrap, standard_error


def test_the_interval_of_a_mean_is_the_normal_one_for_many_values() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, size=400).tolist()
    found = bootstrap([values])
    error = standard_error(values)
    assert found.value == pytest.approx(np.mean(values))
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.1 * error)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    random = np.random.default_rng(2)
    intervals = [bootstrap([random.normal(size=40).tolist()], resamples=500, seed=seed) for seed in range(300)]
    covered = sum(found.low <= 0 <= found.high for found in intervals) / len(intervals)
    assert 0.90 < covered < 0.98


def test_pairs_stay_together() -> None:
    random = np.random.default_rng(3)
    before = random.normal(4.0, 1.0, size=50)
    found = bootstrap([before.tolist(), (before - 0.1).tolist()])
    assert found.low == pytest.approx(0.1) and found.high == pytest.approx(0.1)


def test_a_ratio_of_means_is_not_a_mean_of_ratios() -> None:
    found = bootstrap([[1.0, 3.0], [2.0, 2.0]], lambda first, second: first / second)
    assert (found.value, found.low, found.high) == (1.0, 0.5, 1.5)
    assert f"{found:.0%}" == "100% [50%, 150%]"


def test_one_value_has_no_error() -> None:
    assert math.isnan(standard_error([1.0]))
    assert standard_error([1.0, 3.0]) == pytest.approx(1.0)


@pytest.mark.parametrize("samples", [[], [[]], [[1.0, 2.0], [1.0]]])
def test_samples_that_are_no_pairs_are_refused(samples: list[list[float]]) -> None:
    with pytest.raises(ValueError, match=r"paired|inhomogeneous"):
        bootstrap(samples)


def test_a_crossed_interval_knows_both_rows_and_columns() -> None:
    random = np.random.default_rng(3)
    rows, columns = random.normal(0, 2.0, size=(60, 1)), random.normal(0, 1.0, size=(1, 80))
    table = 1.0 + rows + columns
    error = math.sqrt(rows.var(ddof=1) / 60 + columns.var(ddof=1) / 80)
    found = crossed_bootstrap(table.tolist())
    assert found.value == pytest.approx(table.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    # Columns that a control shares cancel; its rows do not.
    control = 3.0 + random.normal(0, 2.0, size=(50, 1)) + columns
    difference = crossed_bootstrap(table.tolist(), control.tolist())
    error = math.sqrt(rows.var(ddof=1) / 60 + control.mean(1).var(ddof=1) / 50)
    assert difference.value == pytest.approx(table.mean() - control.mean())
    assert difference.high - difference.low == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_a_crossed_interval_of_one_row_is_that_of_its_columns() -> None:
    values = np.random.default_rng(4).normal(size=100).tolist()
    one, plain = crossed_bootstrap([values]), bootstrap([values])
    assert one.value == pytest.approx(plain.value)
    assert (one.low, one.high) == pytest.approx((plain.low, plain.high), abs=0.02)
    assert crossed_bootstrap([[2.0]]).low == 2.0
    with pytest.raises(ValueError, match="rows and columns"):
        crossed_bootstrap([[]])
