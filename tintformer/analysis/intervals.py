"""How sure a number is: standard errors, and bootstrap intervals of whatever is computed from paired samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
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


def crossed_bootstrap(
    table: Sequence[Sequence[float]],
    control: Sequence[Sequence[float]] | None = None,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> Estimate:
    """A percentile interval of a table's mean where both rows and columns are samples: contexts and prompts, say.

    With a control of the same columns, of the difference of the two means: rows of each are drawn on their own, columns
    together. Few rows make an interval too narrow, as always with a bootstrap.
    """
    import numpy as np

    values = np.asarray(table, dtype=np.float64)
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"a table with rows and columns is needed; the shape is {values.shape}")
    columns = _drawn(values.shape[1], resamples, 0)
    # Two sets of rows are two samples: with one seed the same rows of both would be drawn, as if they were pairs.
    means = (_drawn(values.shape[0], resamples, 1) @ values * columns).sum(1)
    mean = float(values.mean())
    if control is not None:
        others = np.asarray(control, dtype=np.float64)
        means = means - (_drawn(others.shape[0], resamples, 2) @ others * columns).sum(1)
        mean -= float(others.mean())
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return Estimate(value=mean, low=float(low), high=float(high))


@lru_cache(maxsize=32)
def _drawn(count: int, resamples: int, seed: int) -> Any:
    """The share of each of `count` things in every resample; drawn once for all tables of a size."""
    import numpy as np

    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples) / count
