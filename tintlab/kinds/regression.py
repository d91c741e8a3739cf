"""In-context regression: functions that are drawn at random, each learnt from the examples in its context.

The classic experiment of in-context learning: what one step of descent makes of k examples, what many steps do, what
least squares has in closed form, and what a two-layer perceptron gains where the function is no line.
"""

# B functions, K examples in a context, Q queries, d inputs

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tintformer.errors import DivergenceError, InputError
from tintformer.rule.learning_rule import LearningRule
from tintlab.methods.methods import Adaptation, Method
from tintlab.study.experiment import MAX_STEPS, ChosenOn, Experiment, require_within
from tintlab.study.store import UnitResult

if TYPE_CHECKING:
    from torch import Tensor

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.learning.rate_search import RatePoint

MARGIN = 1.5
"""Many steps must also do at so many times their rate: where a rate diverges on few functions, others have more."""


def stretched(rate: float) -> float:
    """A rate times the margin, in three digits."""
    return float(f"{MARGIN * rate:.3g}")


def _grid(lowest: float, highest: float) -> tuple[float, ...]:
    """Each the next one's margin, so that most trials serve twice."""
    return (lowest, *_grid(stretched(lowest), highest)) if lowest < highest else (lowest,)


RATES = _grid(0.004, 1.4)
"""Tried unless others are given: a mean loss on inputs of unit variance wants rates of about 1 and less."""
TEACHER = 32
"""Hidden units of the perceptrons that are drawn as functions."""
MAX_SEED = 2**62
"""The largest that torch takes, less what is added to it."""
MAX_NUMBERS = 2**28
"""In the inputs of all functions, which are all in memory: 2 GB."""
Function = Literal["linear", "perceptron"]


@dataclass(frozen=True, kw_only=True)
class RegressionMethod(Method):
    """A way to predict the queries of a function from its examples."""

    learner: Literal["regression", "perceptron"] | None = None
    """The auxiliary that learns; None where none does."""
    one_step: bool = False
    """One step of descent, however many the others make."""
    solves: bool = False
    """Least squares in closed form."""


def _mean(**knobs: Any) -> LearningRule:
    # A mean, so that one rate suits contexts of any length about as well.
    return LearningRule(reduction="mean", **knobs)


REGRESSION_METHODS: dict[str, RegressionMethod] = {
    "auxiliary": RegressionMethod(title="the model as it is, which says 0"),
    "one-step": RegressionMethod(title="regression, one step", preset=_mean, learner="regression", one_step=True),
    "many-steps": RegressionMethod(title="regression, many steps", preset=_mean, learner="regression"),
    "least-squares": RegressionMethod(title="least squares", solves=True),
    "perceptron-one-step": RegressionMethod(
        title="two-layer perceptron, one step", preset=_mean, learner="perceptron", one_step=True
    ),
    "perceptron": RegressionMethod(title="two-layer perceptron, many steps", preset=_mean, learner="perceptron"),
}
"""By name. Least squares is the solution of the smallest norm where there are fewer examples than inputs."""


@dataclass(frozen=True, kw_only=True)
class InContextRegression(Experiment):
    """Functions of one kind, by several methods, each at the rate that is best on other functions."""

    kind: ClassVar[str] = "regression"
    version: ClassVar[int] = 1
    """Raised by hand when a number of these units changes."""
    table: ClassVar[Mapping[str, Method]] = REGRESSION_METHODS

    model: Function = "linear"  # pyright: ignore[reportIncompatibleVariableOverride]
    """What functions are drawn: linear ones, or perceptrons of one hidden layer; both of unit variance."""
    methods: tuple[str, ...] = tuple(REGRESSION_METHODS)
    rates: tuple[float, ...] | None = RATES
    steps: int = 100
    """Of the methods that make many."""
    inputs: int = 8
    """Numbers in an input, each from a standard normal distribution."""
    noise: float = 0.0
    """Standard deviation of what is added to the targets of examples; queries are scored without it."""
    examples: tuple[int, ...] = (1, 2, 4, 6, 8, 10, 12, 16, 24, 32)
    """Sizes of the context, all of the same functions: the first examples of each."""
    queries: int = 16
    """Of each function, whose mean squared error is its score."""
    functions: int = 256
    """That are scored."""
    tuning: int = 64
    """Functions that choose the rates; they are not scored."""
    hidden: int = 64
    """Hidden units of the perceptron that learns."""
    seed: int = 0
    """Draws the functions and the perceptron's initial weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in (("inputs", 4096), ("queries", 4096), ("functions", 2**20), ("hidden", 2**16)):
            require_within(name, getattr(self, name), 1, most)
        require_within("tuning", self.tuning, 0, 2**20)
        require_within("steps", self.steps, 1, MAX_STEPS)
        require_within("seed", self.seed, 0, MAX_SEED)
        if not 0 <= self.noise < 1e6:
            raise InputError(f"noise={self.noise:g} must be a number from 0 to 1e6")
        if not self.examples:
            raise InputError("there are no sizes of the context; give one at least, such as 1,2,4,8")
        for count in self.examples:
            require_within("examples", count, 1, 65536)
        numbers = max(self.functions, self.tuning) * (max(self.examples) + self.queries) * self.inputs
        if numbers > MAX_NUMBERS:
            raise InputError(f"the inputs of all functions are {numbers:,} numbers; use at most {MAX_NUMBERS:,}")
        if self.tuning < 1 and not self.has_one_rate and any(each.chooses_rate for each in self.compared().values()):
            raise InputError("rates are chosen on functions of their own; give --tuning at least 1, or one rate")

    def rule(self, method: str, rate: float) -> Adaptation | None:
        found = REGRESSION_METHODS[method]
        return found.rule(rate, layers=self.layers, steps=1 if found.one_step else self.steps)

    def settings(self) -> list[int]:
        """Sizes of the context, rising."""
        return sorted(set(self.examples))

    def num_targets(self, setting: int) -> int:
        return setting

    def units(self, setting: int, method: str, rate: float, part: ChosenOn) -> list[RegressionUnit]:
        """One, since all functions of a part learn in one batch, each on its own; to choose a rate, also its margin."""
        has_margin = part == "tuning" and rate and not REGRESSION_METHODS[method].one_step
        rates = (rate, stretched(rate)) if has_margin else (rate,)
        return [RegressionUnit(method=method, rate=each, examples=setting, part=part) for each in rates]

    def identity(self, unit: RegressionUnit) -> dict[str, Any]:
        method, rule = REGRESSION_METHODS[unit.method], self.rule(unit.method, unit.rate)
        drawn = draw(self, unit.part)
        return {
            "functions": drawn.digest,
            "examples": unit.examples,
            "learner": method.learner and {"kind": method.learner, "hidden": self.hidden, "seed": self.seed},
            "solves": method.solves,
            "rule": rule and asdict(rule),
            "engine": rule and self.engine,
        }

    def run(self, unit: RegressionUnit) -> UnitResult:
        """The mean squared error of each function's queries; null if the rate diverges, which is a result too."""
        import torch

        torch.set_num_threads(self.threads)
        try:
            errors = self._errors(unit)
        except DivergenceError:
            return {"errors": None}
        # The square of a number that is still finite may not be.
        return {"errors": errors.double().tolist() if bool(torch.isfinite(errors).all()) else None}

    def _errors(self, unit: RegressionUnit) -> Tensor:
        import torch

        from tintformer.execution.examples import Examples
        from tintformer.learning.tint import Tint

        method, drawn, count = REGRESSION_METHODS[unit.method], draw(self, unit.part), unit.examples
        known_x, known_y = drawn.x[:, :count], drawn.y[:, :count]
        rule = self.rule(unit.method, unit.rate)
        if method.solves:
            weights = torch.linalg.pinv(known_x) @ known_y
            return (drawn.query_x @ weights - drawn.query_y).square().mean((1, 2))
        if not isinstance(rule, LearningRule):
            return drawn.query_y.square().mean((1, 2))
        x = torch.cat((known_x, drawn.query_x), dim=1)
        trained = torch.arange(x.shape[1])[None] < count
        examples = Examples(x, torch.cat((known_y, drawn.query_y), dim=1), trained.expand(len(x), -1))
        out = Tint(self.learner(unit.method), rule, engine=self.engine)(examples, logits="none")
        return out.token_loss[:, count:].mean(1)

    def learner(self, method: str) -> Auxiliary:
        """The auxiliary of a method."""
        import torch

        from tintformer.auxiliary.perceptrons import mlp, regression

        dtype = getattr(torch, self.dtype)
        if REGRESSION_METHODS[method].learner == "regression":
            return regression(self.inputs, dtype=dtype)
        return mlp([self.inputs, self.hidden, 1], seed=self.seed, dtype=dtype)

    def tuning_loss(self, setting: int, results: Sequence[UnitResult]) -> float:
        """The mean squared error; of many steps the larger of those at the rate and at its margin."""
        found = [each["errors"] for each in results]
        return max(math.inf if each is None else math.fsum(each) / len(each) for each in found)

    def summary(
        self, setting: int, method: str, rate: float, curve: tuple[RatePoint, ...], results: Sequence[UnitResult]
    ) -> RegressionResult:
        (found,) = results
        errors = None if found["errors"] is None else tuple(found["errors"])
        return RegressionResult(method=method, examples=setting, rate=rate, curve=curve, errors=errors)


@dataclass(frozen=True, kw_only=True)
class RegressionUnit:
    """All functions of a part by one method at one rate, from so many examples."""

    method: str
    rate: float
    examples: int
    part: ChosenOn


@dataclass(frozen=True, kw_only=True)
class RegressionResult:
    """One method with one size of the context."""

    method: str
    examples: int
    rate: float
    curve: tuple[RatePoint, ...]
    """What the rate was chosen from."""
    errors: tuple[float, ...] | None
    """Of every function, the mean squared error of its queries; None if the rate diverged on one."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DrawnFunctions:
    """Functions as their values: examples to learn from, with noise, and queries, without."""

    x: Tensor
    y: Tensor
    query_x: Tensor
    query_y: Tensor
    digest: str
    """Of all numbers: generators may differ from version to version, and numbers are what counts."""


@lru_cache(maxsize=4)
def draw(experiment: InContextRegression, part: ChosenOn) -> DrawnFunctions:
    """The functions of a part; those of other sizes of the context, and of other methods, are the same."""
    import torch

    tunes = part == "tuning"
    # The two parts have seeds of their own: more functions of one change none of the other.
    generator = torch.Generator().manual_seed(2 * experiment.seed + tunes)
    number, width = experiment.tuning if tunes else experiment.functions, experiment.inputs

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if experiment.model == "linear":
        weights = (normal(number, width, 1) / math.sqrt(width),)
    else:
        weights = normal(number, width, TEACHER) / math.sqrt(width), normal(number, TEACHER, 1) * math.sqrt(2 / TEACHER)
    query_x = normal(number, experiment.queries, width)
    # Examples last and one by one: a longer context begins with the examples of a shorter one.
    pairs = [(normal(number, 1, width), normal(number, 1, 1)) for _ in range(max(experiment.examples))]
    x, noise = (torch.cat(each, dim=1) for each in zip(*pairs, strict=True))

    def values(inputs: Tensor) -> Tensor:
        first, *second = weights
        return (inputs @ first).relu() @ second[0] if second else inputs @ first

    y, query_y = values(x) + experiment.noise * noise, values(query_x)
    digest = hashlib.sha256()
    for each in (x, y, query_x, query_y):
        digest.update(each.contiguous().numpy().tobytes())
    return DrawnFunctions(x=x, y=y, query_x=query_x, query_y=query_y, digest=digest.hexdigest())
