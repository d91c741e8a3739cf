"""`choose_rate`: the learning rate `auto`, from a short grid that is scored inside the training part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Unpack

from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import DivergenceError, InputError, RuleError
from tintformer.execution.arrays import Array
from tintformer.execution.batch import Batch, LearningMasks, Masks
from tintformer.learning.tint import Tint
from tintformer.rule.learning_rule import LearningRule, require_rule
from tintformer.storage.loading import load
from tintformer.typed_fields import FLOAT32_MAX, Range, checked

START = 12
"""Number of the rate in `default_grid` from which the search goes up: 1e-6, below what any model known wants."""
FACTOR = math.sqrt(10)
"""Ratio of neighbouring rates. Much larger and the grid jumps over the rates that help, so close is divergence."""
HELD_OUT = 5
"""One in so many training tokens, the last ones, scores the rates."""
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
    """Mean loss in nats over the held-out training tokens; infinite if the rate diverged."""


@dataclass(frozen=True, kw_only=True)
class RateChoice:
    """The rate to use, and what it was chosen from."""

    rate: float
    """The rate to use: without a grid of your own the one just below the lowest loss, 1.8 times smaller, since a few
    held-out tokens overrate large rates and the loss explodes just above. The smallest one if none helps."""
    curve: tuple[RatePoint, ...]
    """Everything that was tried, by rising rate; the first point has rate 0, which is the model as it is."""
    helps: bool
    """Whether the rate lowers the held-out loss. If not, training on this text most likely does not pay."""
    train_tokens: int
    """Tokens trained on during the search."""
    evaluation_tokens: int
    """Held-out tokens that scored the rates. With a handful of them the choice is a guess."""


@dataclass(frozen=True, eq=False, kw_only=True)
class _Inner:
    """The training part alone, as an input of its own: its first four fifths train, its last fifth scores."""

    input_ids: Array
    train_mask: Array
    score_mask: Array
    common: Masks
    """What training and scoring both take: attention_mask and, where given, segment_ids and position_ids."""
    loss_mask: Tensor | None
    num_targets: int
    """Training targets of the longest row."""
    shortfall: float
    """How many times more training targets the whole training part has."""


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

    Every row trains on the first four fifths of its training tokens and is scored on the last fifth; whatever is
    outside of the training part is hidden. Where losses are summed, a trial makes up for the targets that it lacks by
    a longer step, so that its rate means the same for the whole part. Rates go up until the loss is clearly worse than
    without training, and two more are tried around the best; of a `grid` of your own the best is taken, and one that
    starts too high has none that helps.

    Args:
        model: What `load` takes.
        rule: The rule whose rate is chosen.
        input_ids: Token ids `[batch, tokens]`.
        train_mask: 1 for the training part; the search sees nothing else.
        engine: Which engine tries the rates: `fast`, `reference`, `oracle` or `simulator`.
        grid: Rates to choose from, above 0; None searches from 1e-6 upwards in steps of a factor 3.2.
        together: Make one update of all rows, as `Tint.adapt` does; leave it out there, and the rate is too large by
            their number.
        on_point: Called with every rate as it is tried.
        **masks: Those of a call of `Tint`.
    """
    auxiliary, rule = load(model), require_rule(rule)
    batch = Batch.of(auxiliary, input_ids, train_mask=train_mask, **masks)
    segments, losses = (masks.get(name) is not None for name in ("segment_ids", "loss_mask"))
    inner = _hold_out(auxiliary, batch, segments=segments, losses=losses)

    def attempt(rate: float) -> RatePoint:
        point = RatePoint(rate=rate, loss=_loss(auxiliary, replace(rule, learning_rate=rate), engine, inner, together))
        if on_point is not None:
            on_point(point)
        return point

    curve = rate_curve(attempt, rule.reduction, inner.num_targets, grid=grid)
    best = min(curve[1:], key=lambda point: point.loss)
    helps = _helps(best, curve[0])
    chosen = best if grid is not None else _just_below(best, curve)
    return RateChoice(
        rate=chosen.rate if helps else curve[1].rate,
        curve=tuple(curve),
        helps=helps,
        train_tokens=int(inner.train_mask.sum()),
        evaluation_tokens=int(inner.score_mask.sum()),
    )


def rate_curve(
    attempt: Callable[[float], RatePoint], reduction: str, num_targets: int, *, grid: Iterable[float] | None = None
) -> list[RatePoint]:
    """Rates by `attempt`, rising, the model as it is first; without a `grid` the best is surrounded more closely."""
    once = cache(attempt)
    if grid is not None:
        return _search(once, _checked(grid))
    return _refine(once, _search(once, default_grid(reduction, num_targets), start=START))


def default_grid(reduction: str, num_targets: int) -> tuple[float, ...]:
    """Rates from 1e-12 to 1 for a summed loss; a mean over `num_targets` wants them larger by that number.

    The search starts in the middle: rates below 1e-6 are for the losses without a softmax, whose gradients are huge.
    """
    scale = num_targets if reduction == "mean" else 1
    return tuple(_rounded(scale * FACTOR**exponent) for exponent in range(-24, 1))


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
    around = [attempt(_rounded(best.rate * factor)) for factor in (FACTOR**-0.5, FACTOR**0.5)]
    return [untrained, *_sorted([*points, *around])]


def _just_below(best: RatePoint, curve: list[RatePoint]) -> RatePoint:
    """The neighbour of the best rate on its safe side, if that helps too."""
    # The best rates lie within a factor of 2 of divergence, and a few held-out tokens are a noisy judge of them.
    below = curve[curve.index(best) - 1]
    return below if _helps(below, curve[0]) else best


def _helps(point: RatePoint, untrained: RatePoint) -> bool:
    return point.loss < untrained.loss - NOISE


def _harms(point: RatePoint, untrained: RatePoint, *, by: float) -> bool:
    return point.loss > untrained.loss + by


def _sorted(points: Iterable[RatePoint]) -> list[RatePoint]:
    return sorted(points, key=lambda point: point.rate)


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")


def _loss(auxiliary: Auxiliary, rule: LearningRule, engine: str, inner: _Inner, together: bool) -> float:
    # A summed gradient grows with its targets: the trial takes as long a step as the whole training part will.
    stretch = inner.shortfall if rule.reduction == "sum" else 1.0
    sim = Tint(auxiliary, replace(rule, learning_rate=stretch * rule.learning_rate), engine=engine)
    training: dict[str, Any] = {"train_mask": inner.train_mask, "loss_mask": inner.loss_mask, **inner.common}
    try:
        if together:
            tuned = sim.adapt(inner.input_ids, **training)
            out = tuned.score(inner.input_ids, score_mask=inner.score_mask, **inner.common)
        else:
            out = sim(inner.input_ids, logits="none", **training)
    # Divergence is an answer to the question that is asked here: this rate is too large.
    except DivergenceError:
        return math.inf
    loss = float(out.token_loss[inner.score_mask].mean())
    return loss if math.isfinite(loss) else math.inf


def _hold_out(auxiliary: Auxiliary, batch: Batch, *, segments: bool, losses: bool) -> _Inner:
    """Split the training part, and cut away the columns without training tokens."""
    count = batch.train_mask.sum(1, keepdim=True)
    held_out = (count // HELD_OUT).clamp(min=1)
    train = batch.train_mask & (batch.train_mask.cumsum(1) <= count - held_out)
    if short := (train.sum(1) < 3).nonzero().flatten().tolist():
        raise InputError(
            f"row {short[0]} has {int(count[short[0]])} training tokens; choosing a learning rate needs at least 4 "
            "(3 to train, 1 to score): use more tokens, or give the rate as a number"
        )
    columns = batch.train_mask.any(0).nonzero().flatten()
    cut = slice(int(columns[0]), int(columns[-1]) + 1)
    # The evaluation part is not even attended: a rate that was chosen with a view of it would be a leak.
    common: Masks = {"attention_mask": batch.train_mask[:, cut]}
    if segments:
        common["segment_ids"] = batch.segment_ids[:, cut]
    if batch.position_ids is not None:
        common["position_ids"] = batch.position_ids[:, cut]
    loss_mask = batch.loss_mask[:, cut] if losses else None
    inner = Batch.of(auxiliary, batch.input_ids[:, cut], train_mask=train[:, cut], loss_mask=loss_mask, **common)
    score = inner.evaluation_mask & inner.loss_mask
    _check_targets(inner, score)
    return _Inner(
        input_ids=inner.input_ids,
        train_mask=inner.train_mask,
        score_mask=score,
        common=common,
        loss_mask=loss_mask,
        num_targets=int(inner.train_positions.sum(1).max()),
        shortfall=int(batch.train_positions.sum()) / int(inner.train_positions.sum()),
    )


def _check_targets(inner: Batch, score: Tensor) -> None:
    """Masks and segments may leave too little of what was long enough by the number of its tokens."""
    num_targets, num_scored = inner.train_positions.sum(1), score.sum(1)
    poor = ((num_targets < 2) | (num_scored < 1)).nonzero().flatten()
    if len(poor):
        row = int(poor[0])
        raise InputError(
            f"row {row} has {int(num_targets[row])} training targets in the first four fifths of its training part and "
            f"{int(num_scored[row])} in the last fifth; choosing a learning rate needs 2 and 1: use a longer training "
            "part, or give the rate as a number"
        )


def _checked(grid: Iterable[float]) -> tuple[float, ...]:
    given = list(grid) if isinstance(grid, Iterable) else grid  # pyright: ignore[reportUnnecessaryIsInstance]
    rates = checked("grid", given, tuple[Annotated[float, Range(above=0, at_most=LARGEST)], ...], RuleError)
    if not rates:
        raise RuleError("grid=[] must hold finite rates above 0, at least one")
    return tuple(sorted(set(rates)))
