# pyright: basic
"""Standard errors and intervals, against values that are known otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tintformer.analysis.intervals import bootstrap, standard_error


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
