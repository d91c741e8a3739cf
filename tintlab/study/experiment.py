"""What every experiment is: a model, methods with their rates, and the units of work that it is made of.

An experiment lists its units and knows how to run one of them. `runner.py` runs units and keeps their results;
`tuning.py` stands above both and chooses the rates. An experiment is sent to other processes, so it holds descriptions
and no tensors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tintformer.errors import InputError, brief
from tintformer.learning.engine_registry import ENGINES
from tintformer.typed_fields import check_fields
from tintlab.methods.methods import METHODS, Adaptation, Method, find_methods
from tintlab.study.store import UnitResult

if TYPE_CHECKING:
    from tintformer.learning.rate_search import RatePoint

ChosenOn = Literal["tuning", "test"]
"""The data that rates are chosen on: `test` is optimistic, because what is reported is what was chosen."""


MAX_STEPS = 1_000_000
"""Gradient steps of a unit: more would never end."""
MAX_COUNT = 2**31
"""Of anything else that is counted."""


def require_within(name: str, value: int | None, least: int, most: int = MAX_COUNT) -> None:
    """Refuse a number, if one is given, that no experiment can be made of."""
    if value is not None and not least <= value <= most:
        raise InputError(f"{name}={brief(value)} must be a whole number from {least} to {most}")


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """One model by several methods, each at the rate that is best on data of its own."""

    kind: ClassVar[str]
    version: ClassVar[int]
    """Raised by hand when a number changes, see `RunsUnits`."""
    table: ClassVar[Mapping[str, Method]] = METHODS
    """All methods that it can compare, by name."""

    model: str
    location: Path | None = None
    """Where the data are, instead of where the description says."""
    methods: tuple[str, ...] = ("auxiliary", "fine-tuning", "tint")
    rates: tuple[float, ...] | None = None
    """To choose from, or the one to use; None: a grid that finds its own range."""
    chosen_on: ChosenOn = "tuning"
    """Where rates are chosen: `test`, what is scored itself, as the authors do, makes every gain optimistic."""
    layers: int | None = None
    steps: int = 1
    engine: str = "fast"
    dtype: str = "float32"
    device: str | None = None
    """Where it computes, the CPU if nothing is said."""
    threads: int = 1
    """Of each process. Recorded, because the last digits of a sum depend on it."""

    def __post_init__(self) -> None:
        check_fields(self, InputError)
        self.compared()
        for name, given in (("methods", self.methods), ("rates", self.rates)):
            if given is not None and not given:
                raise InputError(f"there are no {name}; give one at least")
        for rate in self.rates or ():  # also where no method learns: a table says at which rates
            if not 0 <= rate < math.inf:
                raise InputError(f"learning_rate={rate:g} must be a finite number at least 0")
        require_within("steps", self.steps, 1, MAX_STEPS)
        if self.engine not in ENGINES:
            raise InputError(f"engine={brief(self.engine)} is unknown; choose one of {', '.join(ENGINES)}")

    def compared(self) -> dict[str, Method]:
        """The methods that it compares, in the order in which they are done."""
        return find_methods(self.methods, self.table)

    @property
    def device_type(self) -> str:
        """Recorded, because kinds of devices add up in orders of their own."""
        return (self.device or "cpu").partition(":")[0]

    @property
    def has_one_rate(self) -> bool:
        """Whether the rate is given, so that there is none to choose."""
        return self.rates is not None and len(self.rates) == 1

    def rule(self, method: str, rate: float) -> Adaptation | None:
        """How a method learns in this experiment; None for one that does not."""
        return self.table[method].rule(rate, layers=self.layers, steps=self.steps)

    def shares_gradients(self, method: str) -> bool:
        """Whether rates share work, so that those of a grid are better tried unit by unit than one after the other."""
        return False

    def check_rules(self, num_blocks: int) -> None:
        """Refuse what no rule can be made of, before anything is computed."""
        for method in self.compared():
            if (rule := self.rule(method, 0.0)) is not None:
                rule.num_trained(num_blocks)

    @abstractmethod
    def identity(self, unit: Any) -> dict[str, Any]:
        """What decides the result of a unit, besides what `unit_identity` adds for every kind."""

    @abstractmethod
    def run(self, unit: Any) -> UnitResult:
        """The result of a unit."""

    @abstractmethod
    def settings(self) -> Sequence[Any]:
        """What each method has a rate of its own for."""

    @abstractmethod
    def num_targets(self, setting: Any) -> int:
        """How many targets a training part has, by which a mean over them scales the grid of rates."""

    @abstractmethod
    def units(self, setting: Any, method: str, rate: float, part: ChosenOn) -> Sequence[Any]:
        """The units of a method at a rate, on the data that choose rates or on those that are reported."""

    @abstractmethod
    def tuning_loss(self, setting: Any, results: Sequence[UnitResult]) -> float:
        """What a rate is chosen by, from the results of its units; lower is better."""

    @abstractmethod
    def summary(
        self, setting: Any, method: str, rate: float, curve: tuple[RatePoint, ...], results: Sequence[UnitResult]
    ) -> Any:
        """What is reported of a method, from the results of its units; `curve` is what its rate was chosen from."""

    def combined(self, summaries: Sequence[Sequence[Any]]) -> list[Any]:
        """What is reported of the whole experiment, from the summaries of each setting."""
        return [summary for each in summaries for summary in each]
