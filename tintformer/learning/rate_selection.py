"""`choose_rate`: the learning rate `auto`, from trials inside the training part and from what is known of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import NonFiniteError, RuleError
from tintformer.execution.batch import Batch, LearningMasks
from tintformer.execution.inputs import Array
from tintformer.learning.engine_registry import check_options
from tintformer.learning.rate_prior import WORST, PriorCurve, find_prior, rate_of, untrained_loss
from tintformer.learning.rate_search import RatePoint, checked_grid, climb, rate_curve
from tintformer.learning.rate_trials import FOLDS, Trials, fold
from tintformer.rule.learning_rule import LearningRule, require_rule
from tintformer.storage.loading import load

Source = Literal["text", "prior", "nothing"]
FEWEST = 16
"""Training targets below which no trial is made: a handful of tokens says nothing."""
CERTAINTY = 1.0
"""Standard deviations from a gain to the ends of its interval. Too few and texts are harmed, too many and few learn."""
INFLATION = 2.5
"""How much larger than the standard error over tokens an error of trials is: texts change as they go on."""
CAUTION = 0.3
"""Standard deviations that the gain of the prior's own rate must be above 0, where a text cannot tell."""
WORTH = 0.005
"""Nats per token that are worth learning for."""
MOST = 2.0
"""How many times more than its trials a text may gain: they learn from less than all of it."""


@dataclass(frozen=True, kw_only=True)
class RateChoice:
    """The rate to use, and what it was chosen from."""

    rate: float
    """The rate to use; 0, no learning, where nothing is known to help."""
    curve: tuple[RatePoint, ...]
    """Everything that was tried, by rising rate; the first point has rate 0, which is the model as it is."""
    helps: bool
    """Whether it is known that the rate lowers the loss: the whole `interval` lies above 0."""
    train_tokens: int
    """Tokens of the training part."""
    evaluation_tokens: int
    """Tokens of it that scored the rates, each after learning from what stands before it."""
    gain: float = 0.0
    """What the rate is expected to gain, in nats per token."""
    interval: tuple[float, float] = (0.0, 0.0)
    """Where that gain lies, one standard deviation to either side."""
    source: Source = "text"
    """What decided: the trials on the text; the prior of the model; or nothing did, and the rate is 0."""
    reason: str = ""
    """Why this rate, in a sentence."""


def choose_rate(
    model: Any,
    rule: LearningRule,
    input_ids: Array,
    train_mask: Array,
    *,
    engine: str = "fast",
    grid: Iterable[float] | None = None,
    together: bool = False,
    on_point: Callable[[RatePoint], None] | None = None,
    **masks: Unpack[LearningMasks],
) -> RateChoice:
    """The learning rate for `rule` on this training part; the rate that `rule` carries is not looked at.

    Later parts of the training part are scored after learning from the earlier ones; whatever is outside of it is
    hidden. What this shows is combined with the prior of the model and the rule, if there is one (`tint rates`). A
    rate is chosen by the lower end of the interval in which its gain lies. Where no interval lies above 0, it is the
    prior's rate, and without a prior 0.

    Args:
        model: What `load` takes.
        rule: The rule whose rate is chosen.
        input_ids: Token ids `[batch, tokens]`.
        train_mask: 1 for the training part; the search sees nothing else.
        engine: Which engine tries the rates: `fast`, `reference`, `oracle` or `simulator`.
        grid: Rates to choose from, above 0; None takes those of the prior, or searches from 1e-6 upwards.
        together: Make one update of all rows, as `Tint.adapt` does; leave it out there, and the rate is too large by
            their number.
        on_point: Called with every rate as it is tried.
        **masks: Those of a call of `Tint`.
    """
    auxiliary, rule = load(model), require_rule(rule)
    check_options(engine, {})
    batch = Batch.of(auxiliary, input_ids, train_mask=train_mask, **masks)
    return choose_for(auxiliary, rule, batch, engine=engine, grid=grid, together=together, on_point=on_point)


def choose_for(
    auxiliary: Auxiliary,
    rule: LearningRule,
    batch: Batch,
    *,
    engine: str = "fast",
    grid: Iterable[float] | None = None,
    together: bool = False,
    on_point: Callable[[RatePoint], None] | None = None,
) -> RateChoice:
    """`choose_rate` for sequences that have been checked."""
    if rule.optimizer == "rms":
        raise RuleError(
            "learning_rate='auto' is not chosen for optimizer='rms', whose statistics the trials do not have; give a "
            "number, such as one that `tint eval stream` has found on other texts"
        )
    grid = None if grid is None else checked_grid(grid)
    targets = batch.train_positions.sum(1).double().cpu()
    size = float(targets.sum() if together else targets.mean())
    prior = find_prior(auxiliary, rule) if size else None
    expected = None if prior is None else prior.at(size, untrained_loss(auxiliary, rule, batch))
    tokens = int(batch.train_mask.sum())
    rates = [rate_of(step, size, rule) for step in expected.steps.tolist()] if grid is None and expected else grid
    folds = _folds(batch, targets)
    if not folds:
        return _without_trials(expected, rates, size, rule, tokens)
    evidence = _Evidence(
        trials=Trials(auxiliary, rule, folds, targets, engine=engine, together=together),
        prior=expected,
        step_size=size if rule.reduction == "sum" else 1.0,
        on_point=on_point,
    )
    if grid is None and expected is not None and rates is not None:
        # From what suits other texts uphill: a few trials, where a whole grid would be a dozen.
        climb(lambda number: evidence.lower_end(rates[number]), start=_safest(expected), count=len(rates))
    else:
        rate_curve(evidence.attempt, rule.reduction, max(1, round(size)), grid=rates)
    return _judged(evidence, tokens)


def with_rates(auxiliary: Auxiliary, rule: LearningRule, batch: Batch) -> Batch:
    """The same sequences, each with the rate that is chosen for it alone."""
    rows = [batch.select(torch.tensor([row])) for row in range(len(batch.input_ids))]
    chosen = [choose_for(auxiliary, rule, row).rate for row in rows]
    return replace(batch, rates=torch.tensor(chosen, dtype=torch.float64, device=batch.input_ids.device))


def _folds(batch: Batch, targets: Tensor) -> list[Batch]:
    """Folds of the training part; none if it is too short, or if masks leave one with nothing to learn or to score."""
    if float(targets.min()) < FEWEST:
        return []
    folds = [fold(batch, span) for span in FOLDS]
    learn = all(bool(each.train_positions.any(1).all()) for each in folds)
    return folds if learn and all(bool(each.evaluation_positions.any()) for each in folds) else []


@dataclass(kw_only=True, eq=False)
class _Evidence:
    """What trials show and the prior says, rate by rate."""

    trials: Trials
    prior: PriorCurve | None
    step_size: float
    """Steps are rates times this."""
    on_point: Callable[[RatePoint], None] | None
    losses: dict[float, Tensor | None] = field(default_factory=dict)
    """Of every scored token at every rate that was tried; None where learning diverged."""

    def __post_init__(self) -> None:
        if math.isinf(self.attempt(0.0).loss):
            raise NonFiniteError("the model gives NaN or infinity before anything is learnt; check its weights")

    def attempt(self, rate: float) -> RatePoint:
        """Try a rate, once."""
        if rate not in self.losses:
            self.losses[rate] = self.trials.losses(rate)
            if self.on_point is not None:
                self.on_point(self._point(rate))
        return self._point(rate)

    def _point(self, rate: float) -> RatePoint:
        losses = self.losses[rate]
        return RatePoint(rate=rate, loss=math.inf if losses is None else float(losses.mean()))

    @property
    def rates(self) -> list[float]:
        """All that were tried but 0, rising."""
        return sorted(self.losses)[1:]

    @property
    def curve(self) -> tuple[RatePoint, ...]:
        return tuple(self._point(rate) for rate in (0.0, *self.rates))

    @property
    def num_scored(self) -> int:
        return len(self._untrained)

    @property
    def _untrained(self) -> Float[Tensor, " scored"]:
        untrained = self.losses[0.0]
        assert untrained is not None, "checked when it was tried"
        return untrained

    def expected(self, rates: Sequence[float]) -> PriorCurve | None:
        """What the prior says of these rates."""
        steps = torch.tensor(rates, dtype=torch.float64) * self.step_size
        return None if self.prior is None else self.prior.at(steps)

    def estimate(self, rates: Sequence[float]) -> tuple[Tensor, Tensor]:
        """What each rate is expected to gain, and the standard deviation of that."""
        worst = torch.full_like(self._untrained, WORST)
        found = [self.losses[rate] for rate in rates]
        gains = torch.stack([worst if each is None else self._untrained - each for each in found])
        return estimate(gains, self.expected(rates))

    def lower_end(self, rate: float) -> float:
        """Of the interval of a rate's gain, which is tried if it has not been."""
        self.attempt(rate)
        gain, deviation = self.estimate([rate])
        return float(gain - CERTAINTY * deviation)


def estimate(gains: Float[Tensor, "rates scored"], expected: PriorCurve | None) -> tuple[Tensor, Tensor]:
    """What each rate is expected to gain, and the standard deviation of that: trials and prior, each by its precision.

    The prior says what texts of this length and loss gain. It also says how much more that is than what trials on them
    show, which learn from less; the gains of these trials are taken as that much larger.
    """
    found, scored = gains.mean(1).clamp(min=WORST), gains.shape[1]
    error = INFLATION * gains.std(1) / math.sqrt(scored)
    if expected is None:
        return found, error
    more = (expected.gain / expected.trial_gain.clamp(min=WORTH)).clamp(1, MOST)
    more = torch.where((found > 0) & (expected.trial_gain > WORTH), more, 1.0)
    weight = expected.spread**2 / (expected.spread**2 + error**2).clamp(min=1e-12)
    return weight * more * found + (1 - weight) * expected.gain, expected.spread * (1 - weight).sqrt()


def _judged(evidence: _Evidence, tokens: int) -> RateChoice:
    """The rate whose gain is largest at the lower end of its interval; if none is worth it, what the prior says."""
    rates, curve, scored = evidence.rates, evidence.curve, evidence.num_scored
    expected, (gain, deviation) = evidence.expected(rates), evidence.estimate(rates)
    low, high = gain - CERTAINTY * deviation, gain + CERTAINTY * deviation
    best, source = int(low.argmax()), "text"
    if float(low[best]) <= WORTH:
        best = None if expected is None else _of_prior(expected)
        # The text may not show that it helps, but it must not speak against it.
        if best is not None and float(gain[best] - CAUTION * deviation[best]) <= WORTH:
            best = None
        source = "nothing" if best is None else "prior"
    if best is None:
        return _choice(0.0, tokens, source, has_prior=expected is not None, curve=curve, scored=scored)
    within = float(gain[best]), float(low[best]), float(high[best])
    return _choice(rates[best], tokens, source, curve=curve, scored=scored, within=within)


def _without_trials(
    expected: PriorCurve | None, grid: Iterable[float] | None, size: float, rule: LearningRule, tokens: int
) -> RateChoice:
    """What the prior says, or nothing."""
    if expected is None or grid is None:
        return _choice(0.0, tokens, "nothing", has_prior=False)
    rates = list(grid)
    known = expected.at(torch.tensor(rates, dtype=torch.float64) * (size if rule.reduction == "sum" else 1))
    best = _of_prior(known)
    if best is None:
        return _choice(0.0, tokens, "nothing")
    gain, margin = float(known.gain[best]), CERTAINTY * float(known.spread[best])
    return _choice(rates[best], tokens, "prior", within=(gain, gain - margin, gain + margin))


def _of_prior(expected: PriorCurve) -> int | None:
    """The step that other texts gain most by, with some caution; None if that is not worth it."""
    best = _safest(expected)
    return best if float(_safe(expected)[best]) > WORTH else None


def _safest(expected: PriorCurve) -> int:
    return int(_safe(expected).argmax())


def _safe(expected: PriorCurve) -> Tensor:
    return expected.gain - CAUTION * expected.spread


def _choice(
    rate: float,
    tokens: int,
    source: Source,
    *,
    has_prior: bool = True,
    curve: tuple[RatePoint, ...] = (),
    scored: int = 0,
    within: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> RateChoice:
    gain, low, high = within
    if source == "text":
        reason = f"a gain of {gain:.3f} nats per token is expected, {low:.3f} to {high:.3f}"
    else:
        reason = (
            f"not enough text to tell: {tokens} tokens; "
            + {
                ("prior", True): "the rate is what other texts want of this model",
                ("nothing", True): "other texts like it do not help this model, so nothing is learnt",
                ("nothing", False): "no rates are known of this model and rule, so nothing is learnt: see `tint rates`",
            }[source, has_prior]
        )
    return RateChoice(
        rate=rate,
        curve=curve,
        helps=source == "text",
        train_tokens=tokens,
        evaluation_tokens=scored,
        gain=gain,
        interval=(low, high),
        source=source,
        reason=reason,
    )
