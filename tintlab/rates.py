"""Measuring the prior of the learning rate: pieces of texts are learnt from at many rates, and what follows is scored.

What a piece has shown is kept in the cache directory, so that a measurement that was killed goes on where it was, and
one with more texts measures the new ones alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.console import Progress
from tintformer.errors import InputError, LoadError, TintError, cause
from tintformer.execution.batch import Batch, LearningMasks
from tintformer.learning.rate_prior import WORST, LengthTable, RatePrior, identity, rate_of, untrained_loss, weights_of
from tintformer.learning.rate_search import RatePoint, rate_curve
from tintformer.learning.rate_trials import FOLDS, Trials, fold
from tintformer.rule.learning_rule import LearningRule
from tintformer.storage.cache_paths import cache_directory
from tintformer.storage.untrusted_files import read_foreign_json
from tintformer.storage.whole_files import whole_file
from tintformer.version import __version__

LENGTHS = (32, 128, 512)
"""Training tokens of the pieces that are measured; what lies between is interpolated."""
EVALUATED = 128
"""Tokens behind a piece that show what was gained."""
WINDOWS = 3
"""Pieces of one length that are cut out of one text."""
FEWEST_PIECES = 6
"""Pieces of a length without which it is left out: a line has two ends, and a spread needs more."""
BELOW, ABOVE = 7, 5
"""Quarters of a decade, below and above the best step of the first pieces, that are measured."""
RIDGE = 0.3
"""Added to the squared losses that a slope is divided by: texts of one kind have nearly one loss, and no slope."""


def measure(
    auxiliary: Auxiliary,
    rule: LearningRule,
    texts: Sequence[Sequence[int]],
    *,
    lengths: Sequence[int] = LENGTHS,
    progress: Progress = lambda text, share: None,
) -> RatePrior:
    """Learn from pieces of texts at many rates, and see what the tokens behind them gain, and what folds show of it."""
    lengths = sorted(set(lengths))
    pieces = {length: [each for text in texts for each in _pieces(text, length)] for length in lengths}
    num_shortest = len(pieces[lengths[0]])
    pieces = {length: found for length, found in pieces.items() if len(found) >= FEWEST_PIECES}
    if not pieces:
        raise InputError(
            f"the texts give {num_shortest} pieces of {lengths[0] + EVALUATED} tokens, at most {WINDOWS} of one text; "
            f"{FEWEST_PIECES} are needed, so give more texts or longer ones"
        )
    work = sum(length * len(found) for length, found in pieces.items())
    known = _Kept(auxiliary, rule)
    progress("the range of rates", 0.0)
    steps, tables, done = _steps(known, pieces), list[LengthTable](), 0
    for length, found in pieces.items():
        rows: list[_Measured] = []
        for ids in found:
            progress(f"{len(found)} pieces of {length} tokens", done / work)
            rows.append(_measured(known, ids, length, steps))
            done += length
        tables.append(_table(length, rows))
    return RatePrior(
        model=auxiliary.name,
        weights=(weights_of(auxiliary),),
        rule=identity(rule),
        steps=steps,
        lengths=tuple(tables),
    )


@dataclass(frozen=True, eq=False)
class _Kept:
    """What pieces have shown of a model and a rule, in a file for each."""

    auxiliary: Auxiliary
    rule: LearningRule

    def once(self, what: str, ids: Sequence[int], length: int, steps: Sequence[float], find: Callable[[], Any]) -> Any:
        """What `find` finds, or has found before: of the same weights, knobs, tokens and steps."""
        about = [__version__, what, weights_of(self.auxiliary), identity(self.rule), list(ids), length, list(steps)]
        name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
        path = cache_directory() / "rates" / "pieces" / f"{name}.json"
        if path.exists():
            return read_foreign_json(path)
        found = find()
        try:
            with whole_file(path, parents=True) as temporary:
                temporary.write_text(json.dumps(found) + "\n", encoding="utf-8")
        except OSError as error:
            raise TintError(f"cannot write {path}: {cause(error)}") from error
        return found


def _pieces(text: Sequence[int], length: int) -> list[Sequence[int]]:
    """Pieces of a text with so many tokens to learn from, and those behind them to score; they do not overlap."""
    needed = length + EVALUATED
    count = min(WINDOWS, len(text) // needed)
    starts = [round(number * (len(text) - needed) / max(1, count - 1)) for number in range(count)]
    return [text[start : start + needed] for start in starts]


def _batch(auxiliary: Auxiliary, ids: Sequence[int], length: int) -> Batch:
    position, masks = torch.arange(len(ids))[None], LearningMasks()
    if auxiliary.max_positions is not None and len(ids) > auxiliary.max_positions:
        masks["segment_ids"] = position // auxiliary.max_positions
    return Batch.of(auxiliary, torch.tensor([list(ids)]), train_mask=position < length, **masks)


def _steps(known: _Kept, pieces: dict[int, list[Sequence[int]]]) -> tuple[float, ...]:
    """Four a decade around the best step of a few pieces, the same for all lengths."""
    length = max((length for length in pieces if length <= 256), default=min(pieces))
    some = pieces[length][:: max(1, len(pieces[length]) // 4)]
    bests = sorted(
        known.once("best step", ids, length, (), lambda ids=ids: _best_step(known, ids, length)) for ids in some
    )
    centre = round(4 * math.log10(bests[len(bests) // 2]))
    return tuple(float(f"{10 ** (number / 4):.4g}") for number in range(centre - BELOW, centre + ABOVE + 1))


def _best_step(known: _Kept, ids: Sequence[int], length: int) -> float:
    piece = _batch(known.auxiliary, ids, length)
    trials, targets = Trials(known.auxiliary, known.rule, [piece], _targets(piece)), float(_targets(piece))

    def attempt(rate: float) -> RatePoint:
        losses = trials.losses(rate)
        return RatePoint(rate=rate, loss=math.inf if losses is None else float(losses.mean()))

    curve = rate_curve(attempt, known.rule.reduction, int(targets))
    best = min(curve[1:], key=lambda point: point.loss).rate
    return best * (targets if known.rule.reduction == "sum" else 1)


@dataclass(frozen=True, kw_only=True)
class _Measured:
    loss: float
    gains: list[float]
    trial_gains: list[float]


def _measured(known: _Kept, ids: Sequence[int], length: int, steps: Sequence[float]) -> _Measured:
    def find() -> dict[str, Any]:
        auxiliary, rule, piece = known.auxiliary, known.rule, _batch(known.auxiliary, ids, length)
        targets = _targets(piece)
        rates = [rate_of(step, float(targets), rule) for step in steps]
        whole = Trials(auxiliary, rule, [piece], targets)
        folds = Trials(auxiliary, rule, [fold(piece, span) for span in FOLDS], targets)
        found = _Measured(
            loss=untrained_loss(auxiliary, rule, piece), gains=_gains(whole, rates), trial_gains=_gains(folds, rates)
        )
        return asdict(found)

    found = known.once("gains", ids, length, steps, find)
    try:
        return _Measured(**found)
    except TypeError as error:
        place = cache_directory() / "rates" / "pieces"
        raise LoadError(f"cannot read what was measured in {place}: {cause(error)}; remove that directory") from error


def _gains(trials: Trials, rates: Sequence[float]) -> list[float]:
    """The mean gain at each of rising rates, in nats per token; what is hopeless is not tried further."""
    untrained, found = trials.losses(0.0), list[float]()
    assert untrained is not None
    for rate in rates:
        losses = None if found and found[-1] <= WORST else trials.losses(rate)
        found.append(WORST if losses is None else max(WORST, float((untrained - losses).mean())))
    return found


def _table(length: int, rows: Sequence[_Measured]) -> LengthTable:
    losses = torch.tensor([row.loss for row in rows], dtype=torch.float64)
    away = losses - losses.mean()

    def fit(values: list[list[float]]) -> tuple[list[float], list[float], list[float]]:
        known = torch.tensor(values, dtype=torch.float64)
        mean = known.mean(0)
        slope = (away[:, None] * (known - mean)).sum(0) / ((away**2).sum() + RIDGE)
        spread = ((known - mean - away[:, None] * slope) ** 2).sum(0) / max(1, len(rows) - 2)
        return _digits(mean), _digits(slope), _digits(spread.sqrt())

    gain, slope, spread = fit([row.gains for row in rows])
    trial_gain, trial_slope, _ = fit([row.trial_gains for row in rows])
    return LengthTable(
        tokens=length,
        pieces=len(rows),
        loss=float(f"{float(losses.mean()):.4g}"),
        losses=tuple(_digits(torch.stack((losses.min(), losses.max())))),
        gain=tuple(gain),
        slope=tuple(slope),
        spread=tuple(spread),
        trial_gain=tuple(trial_gain),
        trial_slope=tuple(trial_slope),
    )


def _digits(values: Tensor) -> list[float]:
    return [float(f"{value:.3g}") for value in values.tolist()]


def _targets(batch: Batch) -> Tensor:
    return batch.train_positions.sum(1).double().cpu()
