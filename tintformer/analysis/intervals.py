"""How sure a number is: standard errors, and bootstrap intervals of whatever is computed from paired samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

RESAMPLES = 10_000
"""Fewer make the ends of an interval jump with the seed."""
LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and the interval that it lies in by the sample's own evidence."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        spec = spec or ".3f"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; no number for a single value, which says nothing about its spread."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def bootstrap(
    samples: Sequence[Sequence[float]],
    statistic: Callable[..., Any] | None = None,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """A percentile interval of a statistic of means; by default the mean itself, and of two samples their difference.

    `samples` are paired: entry i of each belongs to the same unit (a segment, an example), and units are drawn with
    what belongs to them. `statistic` takes one mean a sample, or an array of them.
    """
    import numpy as np

    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(f"paired samples of one length are needed; the shape is {values.shape}")
    statistic = statistic or (lambda first, second=0.0: first - second)
    count = values.shape[1]
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(statistic(*(values @ drawn.T / count)), [tail, 100 - tail])
    return Estimate(value=float(statistic(*(fmean(row) for row in samples))), low=float(low), high=float(high))
