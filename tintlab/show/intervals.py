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
    value = float(statistic(*(fmean(row) for row in samples)))
    return _between_percentiles(value, statistic(*(values @ drawn.T / count)), level)


def two_way_bootstrap(
    samples: Sequence[Any],
    statistic: Callable[..., Any] | None = None,
    *,
    level: float = LEVEL,
    resamples: int = 2_000,
    seed: int = 0,
) -> Estimate:
    """A percentile interval of a statistic of means that is averaged over seeds: seeds and units are both drawn anew.

    Every sample is `[seeds, units]`; entry (s, i) of each belongs to the same seed and unit. Where one of them is not
    finite, the entry is left out of all. `statistic` takes one mean a sample; by default it is the mean itself.
    """
    import numpy as np

    values = np.stack([np.asarray(sample, dtype=np.float64) for sample in samples])
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(f"samples by seed and unit are needed; the shape is {values.shape}")
    statistic = statistic or (lambda mean: mean)
    known = np.isfinite(values).all(0)
    values = np.where(known, values, 0.0)
    num_seeds, count = values.shape[1:]
    generator = np.random.default_rng(seed)
    units = generator.multinomial(count, np.full(count, 1 / count), size=resamples).T
    seeds = generator.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=resamples).T

    def averaged(unit_weights: Any, seed_weights: Any) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):
            by_seed = statistic(*(values @ unit_weights / (known @ unit_weights)))
        # A seed of which nothing was drawn that is known has no say.
        sound = np.isfinite(by_seed)
        weights = np.where(sound, seed_weights, 0)
        with np.errstate(invalid="ignore"):
            return (np.where(sound, by_seed, 0.0) * weights).sum(0) / weights.sum(0)

    whole = float(averaged(np.ones((count, 1)), np.ones((num_seeds, 1)))[0])
    drawn = averaged(units, seeds)
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return Estimate(value=whole, low=float("nan"), high=float("nan"))
    return _between_percentiles(whole, drawn, level)


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
    return _between_percentiles(mean, means, level)


def _between_percentiles(value: float, drawn: Any, level: float) -> Estimate:
    """A number, and the interval that holds so large a part of what resamples gave, with equal tails."""
    import numpy as np

    tail = 100 * (1 - level) / 2
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return Estimate(value=value, low=float(low), high=float(high))


@lru_cache(maxsize=32)
def _drawn(count: int, resamples: int, seed: int) -> Any:
    """The share of each of `count` things in every resample; drawn once for all tables of a size."""
    import numpy as np

    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples) / count
