"""A curve of losses by learning rate: which rates are tried, from where the search starts and where it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from tintformer.errors import RuleError
from tintformer.typed_fields import FLOAT32_MAX, Range, checked

START = 12
"""Number of the rate in `default_grid` from which the search goes up: 1e-6, below what any model known wants."""
FACTOR = math.sqrt(10)
"""Ratio of neighbouring rates. Much larger and the grid jumps over the rates that help, so close is divergence."""
CLEARLY_WORSE = 0.5
"""Nats above the untrained loss at which the search stops going up. Too small and a bump on a short text ends it."""
WORSE = 0.05
"""Nats above the untrained loss at which the search starts lower. Too small and it goes down where no rate helps."""
LARGEST = FLOAT32_MAX / 1e6
"""The largest rate of a grid: a trial may stretch it by the number of targets that it lacks."""
NOISE = 1e-4
"""Gains below this many nats do not count as help: float32 makes them out of nothing."""


@dataclass(frozen=True, kw_only=True)
class RatePoint:
    """One rate that was tried."""

    rate: float
    """The learning rate; 0 for the model as it is."""
    loss: float
    """Mean loss in nats over the scored tokens; infinite if the rate diverged."""


def rate_curve(
    attempt: Callable[[float], RatePoint], reduction: str, num_targets: int, *, grid: Iterable[float] | None = None
) -> list[RatePoint]:
    """Rates by `attempt`, rising, the model as it is first; without a `grid` the best is surrounded more closely."""
    once = cache(attempt)
    if grid is not None:
        return _search(once, checked_grid(grid))
    return _refine(once, _search(once, default_grid(reduction, num_targets), start=START))


def climb(height: Callable[[int], float], *, start: int, count: int) -> int:
    """Which of `count` numbers is a peak, no lower than both its neighbours: uphill from `start`, one by one."""
    once, at = cache(height), start
    # Of equal heights the first counts, so that it goes down a plateau, to smaller rates, and ends.
    while (best := max((number for number in (at - 1, at, at + 1) if 0 <= number < count), key=once)) != at:
        at = best
    return at


def default_grid(reduction: str, num_targets: int) -> tuple[float, ...]:
    """Rates from 1e-12 to 1 for a summed loss; a mean over `num_targets` wants them larger by that number.

    The search starts in the middle: rates below 1e-6 are for the losses without a softmax, whose gradients are huge.
    """
    scale = num_targets if reduction == "mean" else 1
    return tuple(rounded(scale * FACTOR**exponent) for exponent in range(-24, 1))


def _search(attempt: Callable[[float], RatePoint], rates: tuple[float, ...], *, start: int = 0) -> list[RatePoint]:
    """The model as it is, then rates from number `start` up; if that one already harms, from further down."""
    untrained = attempt(0.0)
    tried: dict[float, RatePoint] = {}
    while start > 0 and _harms(attempt(rates[start]), untrained, by=WORSE):
        tried[rates[start]] = attempt(rates[start])
        # Two at a time, a factor of 10: how far down is not known, and the way up then fills the gap.
        start = max(0, start - 2)
    for rate in rates[start:]:
        tried[rate] = attempt(rate)
        if _harms(tried[rate], untrained, by=CLEARLY_WORSE):
            break
    return [untrained, *_sorted(tried.values())]


def _refine(attempt: Callable[[float], RatePoint], curve: list[RatePoint]) -> list[RatePoint]:
    """Two more rates around the best, half a step of the grid away, if any rate helps at all."""
    untrained, *points = curve
    best = min(points, key=lambda point: point.loss)
    if not _helps(best, untrained):
        return curve
    around = [attempt(rounded(best.rate * factor)) for factor in (FACTOR**-0.5, FACTOR**0.5)]
    return [untrained, *_sorted([*points, *around])]


def _helps(point: RatePoint, untrained: RatePoint) -> bool:
    return point.loss < untrained.loss - NOISE


def _harms(point: RatePoint, untrained: RatePoint, *, by: float) -> bool:
    return point.loss > untrained.loss + by


def _sorted(points: Iterable[RatePoint]) -> list[RatePoint]:
    return sorted(points, key=lambda point: point.rate)


def rounded(rate: float) -> float:
    """A rate in three digits."""
    return float(f"{rate:.3g}")


def checked_grid(grid: Iterable[float]) -> tuple[float, ...]:
    """A user's rates, rising, or one line that says what is wrong with them."""
    given = list(grid) if isinstance(grid, Iterable) else grid  # pyright: ignore[reportUnnecessaryIsInstance]
    rates = checked("grid", given, tuple[Annotated[float, Range(above=0, at_most=LARGEST)], ...], RuleError)
    if not rates:
        raise RuleError("grid=[] must hold finite rates above 0, at least one")
    return tuple(sorted(set(rates)))
