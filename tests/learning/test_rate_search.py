# pyright: basic
"""Which rates are tried: up until the loss is clearly worse, down where the start harms, closely at the best."""

from __future__ import annotations

import math

import pytest

from tintformer.errors import RuleError
from tintformer.learning import rate_search
from tintformer.learning.rate_search import RatePoint, climb, default_grid, rate_curve


def valley(best: float):
    """A loss of 5 that falls by 1 at the best rate and rises above it, as a quadratic does."""
    return lambda rate: RatePoint(rate=rate, loss=5 - 2 * rate / best + (rate / best) ** 2)


@pytest.mark.parametrize("best", [1e-9, 3e-5, 1e-2])
def test_the_best_rate_is_found_and_surrounded(best: float) -> None:
    curve = rate_curve(valley(best), "sum", 100)
    rates = [point.rate for point in curve]
    assert rates == sorted(set(rates)) and rates[0] == 0
    found = min(curve, key=lambda point: point.loss)
    assert 0.5 < found.rate / best < 2
    around = sorted(set(rates) - set(default_grid("sum", 100)) - {0})
    assert around[1] / around[0] == pytest.approx(math.sqrt(10), rel=1e-2)


def test_going_up_stops_where_the_loss_is_clearly_worse() -> None:
    untrained, *points = rate_curve(valley(1e-3), "sum", 100)
    worse = [point for point in points if point.loss > untrained.loss + rate_search.CLEARLY_WORSE]
    assert len(worse) <= 2 and worse[-1] == points[-1]  # the last of the climb, and perhaps a refinement below it


def test_a_mean_loss_takes_larger_rates() -> None:
    assert default_grid("mean", 100)[3] == pytest.approx(100 * default_grid("sum", 100)[3], rel=1e-2)


def test_a_grid_of_ones_own_is_sorted_and_tried_until_it_harms() -> None:
    curve = rate_curve(valley(1e-3), "sum", 100, grid=[1e-1, 1e-4, 1e-3, 1.0])
    assert [point.rate for point in curve] == [0, 1e-4, 1e-3, 1e-1]


@pytest.mark.parametrize("peak", [0, 3, 9])
@pytest.mark.parametrize("start", [0, 4, 9])
def test_a_climb_ends_on_the_peak_and_looks_at_the_way_alone(peak: int, start: int) -> None:
    seen: list[int] = []

    def height(number: int) -> float:
        seen.append(number)
        return -abs(number - peak)

    assert climb(height, start=start, count=10) == peak
    way = range(min(peak, start) - 1, max(peak, start) + 2)
    assert len(seen) == len(set(seen)) and set(seen) <= set(way) & set(range(10))


def test_a_climb_on_a_plateau_goes_down_and_ends() -> None:
    assert climb(lambda number: 0.0, start=5, count=10) == 0


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ([], "must hold finite rates above 0"),
        ([0.0, 1.0], "must be a finite number above 0"),
        ([math.nan], "must be a finite number above 0"),
        ([1e308], "must be a finite number above 0"),
    ],
)
def test_bad_grids(grid: list[float], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        rate_curve(valley(1e-3), "sum", 100, grid=grid)
