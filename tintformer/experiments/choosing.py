"""Choosing rates: each method's own, on data that is neither trained on nor scored, unless that is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, Protocol, get_args

from tintformer.errors import InputError
from tintformer.experiments.methods import METHODS, Method, find_methods
from tintformer.learning.rate_selection import RatePoint, rate_curve

USUAL = 10
"""Rates that a search of its own tries, about."""
ChosenOn = Literal["tuning", "test"]
"""The data that rates are chosen on: `test` is optimistic, because what is reported is what was chosen."""


def check_chosen_on(value: str) -> None:
    """Refuse what rates cannot be chosen on."""
    if value not in get_args(ChosenOn):
        raise InputError(f"chosen_on={value!r} is unknown; choose one of {', '.join(get_args(ChosenOn))}")


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
"""The loss of a method at a rate on the data that rates are chosen on; rate 0 is the model as it is."""


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


def rates_tried(experiment: Learns, name: str) -> int:
    """About how many rates a method will be tried at."""
    method = METHODS[name]
    if method.preset is None or method.rate_of or (experiment.rates is not None and len(experiment.rates) == 1):
        return 0
    return USUAL if experiment.rates is None else len(experiment.rates)


def _curve(experiment: Learns, name: str, method: Method, trial: Trial, num_targets: int) -> list[RatePoint]:
    """Losses by rate, the untrained one first; a single rate is taken as it is given, and not tried."""
    if experiment.rates is not None and len(experiment.rates) == 1:
        return [RatePoint(rate=experiment.rates[0], loss=math.nan)]

    def attempt(rate: float) -> RatePoint:
        return RatePoint(rate=rate, loss=trial(name if rate else "auxiliary", rate))

    rule = method.how(0.0, layers=experiment.layers, steps=experiment.steps)
    assert rule is not None, f"{method.title} learns nothing"
    return rate_curve(attempt, rule.reduction, num_targets, grid=experiment.rates)
