"""Choosing rates: each method's own, on data that is neither trained on nor scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

from tintformer.experiments.methods import Method, find_methods
from tintformer.rates import RatePoint, rate_curve


class Learns(Protocol):
    """What every experiment says about learning."""

    @property
    def methods(self) -> tuple[str, ...]: ...
    @property
    def rates(self) -> tuple[float, ...] | None: ...
    @property
    def layers(self) -> int | None: ...
    @property
    def steps(self) -> int: ...


Trial = Callable[[str, float], float]
"""The loss of a method at a rate on the tuning data; rate 0 is the model as it is."""


def chosen_rates(
    experiment: Learns, trial: Trial, num_targets: int
) -> Iterator[tuple[str, float, tuple[RatePoint, ...]]]:
    """Every method with its rate and the curve that it was chosen from; 0 and nothing where nothing is learnt.

    `num_targets` is how many targets a training part has, by which a mean over them scales the grid.
    """
    rates: dict[str, float] = {}
    for name, method in find_methods(experiment.methods).items():
        curve: list[RatePoint] = []
        if method.preset is None:
            rates[name] = 0.0
        elif method.rate_of:
            rates[name] = rates[method.rate_of]
        else:
            curve = _curve(experiment, name, method, trial, num_targets)
            rates[name] = min(curve[-1:] if len(curve) == 1 else curve[1:], key=lambda point: point.loss).rate
        yield name, rates[name], tuple(curve)


def _curve(experiment: Learns, name: str, method: Method, trial: Trial, num_targets: int) -> list[RatePoint]:
    """Losses by rate, the untrained one first; a single rate is taken as it is given, and not tried."""
    if experiment.rates is not None and len(experiment.rates) == 1:
        return [RatePoint(rate=experiment.rates[0], loss=math.nan)]

    def attempt(rate: float) -> RatePoint:
        return RatePoint(rate=rate, loss=trial(name if rate else "auxiliary", rate))

    rule = method.rule(0.0, layers=experiment.layers, steps=experiment.steps)
    return rate_curve(attempt, rule, num_targets, grid=experiment.rates)
