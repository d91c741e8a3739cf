"""Running an experiment: each method's rate is chosen, by default on data that is not scored, and then used.

This loop asks the experiment for units, the runner for their results, and chooses the next units by them.
"""

from __future__ import annotations

import math
from typing import Any

from tintformer.learning.rate_search import RatePoint, checked_grid, rate_curve
from tintlab.study.experiment import Experiment
from tintlab.study.progress import Part, Workload
from tintlab.study.runner import Runner
from tintlab.study.store import UnitResult

USUAL = 10
"""Rates that a search of its own tries, about."""


def run_experiment(experiment: Experiment, runner: Runner, workload: Workload | None = None) -> list[Any]:
    """The results of every method in every setting; a workload is told of all units that come and go."""
    workload = workload or Workload()
    return experiment.combined(
        [_run_setting(experiment, setting, runner, workload) for setting in experiment.settings()]
    )


def _run_setting(experiment: Experiment, setting: Any, runner: Runner, workload: Workload) -> list[Any]:
    rates: dict[str, float] = {}
    summaries: list[Any] = []
    # A method that takes the rate of another comes after it, see `find_methods`.
    for name, method in experiment.compared().items():
        curve: list[RatePoint] = []
        if method.preset is None:
            rates[name] = 0.0
        elif method.rate_of:
            rates[name] = rates[method.rate_of]
        else:
            curve = _curve(experiment, setting, name, runner, workload)
            # The first point of a curve is the untrained model, which is no candidate.
            rates[name] = min(curve[-1:] if len(curve) == 1 else curve[1:], key=lambda point: point.loss).rate
        units = experiment.units(setting, name, rates[name], "test")
        workload.begin(Part(experiment=experiment, setting=setting, method=name), len(units))
        results = runner.complete(experiment, units)
        summaries.append(experiment.summary(setting, name, rates[name], tuple(curve), results))
    return summaries


def _curve(experiment: Experiment, setting: Any, name: str, runner: Runner, workload: Workload) -> list[RatePoint]:
    """Losses by rate, the untrained one first; a single rate is taken as it is given, and not tried."""
    if experiment.rates is not None and experiment.has_one_rate:
        return [RatePoint(rate=experiment.rates[0], loss=math.nan)]
    part = Part(experiment=experiment, setting=setting, method=name, chooses=True)

    known = _tried_together(experiment, part, runner, workload)

    def attempt(rate: float) -> RatePoint:
        # Rate 0 learns nothing whatever the method: all of them share the units of the model as it is.
        method = name if rate else "auxiliary"
        if (results := known.get(rate)) is None:
            units = experiment.units(setting, method, rate, experiment.chosen_on)
            workload.begin(part, len(units), method=method)
            results = runner.complete(experiment, units)
        return RatePoint(rate=rate, loss=experiment.tuning_loss(setting, results))

    rule = experiment.rule(name, 0.0)
    assert rule is not None, f"{name} learns nothing"
    curve = rate_curve(attempt, rule.reduction, experiment.num_targets(setting), grid=experiment.rates)
    workload.settle(part)
    return curve


def _tried_together(
    experiment: Experiment, part: Part, runner: Runner, workload: Workload
) -> dict[float, list[UnitResult]]:
    """The results of all rates of a given grid, unit by unit and not rate by rate, where a method's rates share work.

    A search in turn would leave out the rates behind the first that clearly harms; shared, they cost less than that
    saves. What is chosen from is the same.
    """
    if experiment.rates is None or not experiment.shares_gradients(part.method):
        return {}
    rates = checked_grid(experiment.rates)
    by_rate = [experiment.units(part.setting, part.method, rate, experiment.chosen_on) for rate in rates]
    units = [unit for of_all_rates in zip(*by_rate, strict=True) for unit in of_all_rates]
    workload.begin(part, len(units))
    results = runner.complete(experiment, units)
    return {rate: results[at :: len(rates)] for at, rate in enumerate(rates)}


def expect_units(experiment: Experiment, workload: Workload) -> None:
    """Foresee the units of an experiment; how many rates a search tries is known only afterwards."""
    for setting in experiment.settings():
        for name, method in experiment.compared().items():
            if method.chooses_rate and not experiment.has_one_rate:
                # The model as it is comes on top of the rates.
                tried = 1 + (USUAL if experiment.rates is None else len(set(experiment.rates)))
                units = experiment.units(setting, name, 0.0, experiment.chosen_on)
                part = Part(experiment=experiment, setting=setting, method=name, chooses=True)
                workload.expect(part, tried * len(units), certain=False)
            units = experiment.units(setting, name, 0.0, "test")
            workload.expect(Part(experiment=experiment, setting=setting, method=name), len(units))
