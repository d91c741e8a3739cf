"""The prior of the learning rate: what rates gain with a model and a rule, measured once on texts and kept in a file.

A rate is counted as a *step*: the rate times the number of training targets, which is the rate of a mean loss. The
steps that suit texts of different lengths lie much closer together than their rates do. What a step gains depends on
the text's length and on how much the model has to learn from it, which its loss before learning tells: for each length
and step, a line over that loss was fitted, and how far texts lie from it is kept as their spread.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.bundled import rates_directory
from tintformer.engines.fast import FastEngine
from tintformer.engines.fast.updates import Updates
from tintformer.errors import LoadError, TintError, cause
from tintformer.execution.batch import Batch
from tintformer.learning.rate_trials import training_part
from tintformer.learning.update_files import base_hash
from tintformer.rule.learning_rule import LearningRule
from tintformer.storage.cache_paths import cache_directory
from tintformer.storage.untrusted_files import read_foreign_json
from tintformer.storage.whole_files import whole_file
from tintformer.typed_fields import Range, checked

FORMAT = "tintformer-rates-1"
WORST = -0.5
"""Gains below it count as this: a rate that ruins a text must not decide the mean of the others."""


@dataclass(frozen=True, kw_only=True)
class LengthTable:
    """What was measured of one length; a list has an entry for each step."""

    tokens: int
    pieces: int
    loss: float
    """Mean loss before learning, in nats per token: the gains below are those of a text that has it."""
    losses: tuple[float, ...]
    """The lowest and the highest loss; outside of it the line does not go on."""
    gain: tuple[float, ...]
    slope: tuple[float, ...]
    """How much larger the gain is for each nat of loss."""
    spread: tuple[float, ...]
    """Standard deviation of the gains of texts around the line."""
    trial_gain: tuple[float, ...]
    """The same of what the folds of a training part show, which is less, since they learn from less."""
    trial_slope: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class PriorCurve:
    """What is expected of a text of some length and loss; tensors have an entry for each step."""

    steps: Tensor
    gain: Tensor
    spread: Tensor
    trial_gain: Tensor

    def at(self, steps: Tensor) -> PriorCurve:
        """Of other steps: between two that were measured on a line, below all of them in proportion, above them bad."""
        known, wanted = self.steps.log(), steps.log()
        right = torch.searchsorted(known, wanted).clamp(1, len(known) - 1)
        share = ((wanted - known[right - 1]) / (known[right] - known[right - 1])).clamp(0, 1)
        below = (steps / self.steps[0]).clamp(max=1)

        def between(values: Tensor, above: float) -> Tensor:
            inside = values[right - 1] + share * (values[right] - values[right - 1])
            return torch.where(wanted > known[-1] + 1e-6, torch.full_like(inside, above), inside * below)

        return PriorCurve(
            steps=steps,
            gain=between(self.gain, WORST),
            spread=between(self.spread, -WORST),
            trial_gain=between(self.trial_gain, WORST),
        )


@dataclass(frozen=True, kw_only=True)
class RatePrior:
    """The prior of a model and a rule."""

    model: str
    weights: tuple[str, ...]
    """Hashes of the weights that it is for, as files of updates have them: of the same model in other dtypes, too."""
    rule: dict[str, Any]
    """The knobs of the rule that are not the default ones, without the rate."""
    steps: tuple[float, ...]
    lengths: tuple[LengthTable, ...]

    def at(self, num_targets: float, loss: float) -> PriorCurve:
        """What is expected of a text with so many training targets and this loss before learning."""
        logs = [math.log(table.tokens) for table in self.lengths]
        place = min(max(math.log(max(num_targets, 1)), logs[0]), logs[-1])
        right = next((number for number, log in enumerate(logs) if log >= place), 0)
        left = max(0, right - 1)
        share = (place - logs[left]) / (logs[right] - logs[left]) if right != left else 0.0
        ends = [_line(self.lengths[number], loss) for number in (left, right)]
        gain, spread, trial_gain = (torch.lerp(a, b, share) for a, b in zip(*ends, strict=True))
        # Below the shortest pieces the step shrinks with the text, so that the rate of a summed loss stays theirs: a
        # handful of targets says less than a piece does, and must not move the weights as far.
        fewest = max(1, self.lengths[0].tokens - 1)  # the first token of a piece is no target
        steps = torch.tensor(self.steps, dtype=torch.float64) * min(1.0, num_targets / fewest)
        return PriorCurve(steps=steps, gain=gain, spread=spread, trial_gain=trial_gain)


def _line(table: LengthTable, loss: float) -> tuple[Tensor, Tensor, Tensor]:
    away = min(max(loss, table.losses[0]), table.losses[-1]) - table.loss
    rows = (table.gain, table.slope, table.spread, table.trial_gain, table.trial_slope)
    gain, slope, spread, trial_gain, trial_slope = (torch.tensor(row, dtype=torch.float64) for row in rows)
    return gain + away * slope, spread, trial_gain + away * trial_slope


def rate_of(step: float, num_targets: float, rule: LearningRule) -> float:
    """The rate of a step: of a mean loss the step itself."""
    return float(f"{step / num_targets if rule.reduction == 'sum' else step:.3g}")


def untrained_loss(auxiliary: Auxiliary, rule: LearningRule, batch: Batch) -> float:
    """The mean loss of the training targets before learning."""
    return float(FastEngine(auxiliary, rule).score(training_part(batch), Updates(), logits_at=None).after.losses.mean())


# Keeping.


def identity(rule: LearningRule) -> dict[str, Any]:
    """The knobs that a prior is for, where they are not the default ones; the rate is none of them, nor is the
    reduction, which a step does not depend on."""
    return {
        field.name: getattr(rule, field.name)
        for field in fields(rule)
        if field.name not in ("learning_rate", "reduction") and getattr(rule, field.name) != field.default
    }


_hashes: WeakKeyDictionary[Auxiliary, tuple[Any, str]] = WeakKeyDictionary()


def weights_of(auxiliary: Auxiliary) -> str:
    """The hash of a model's weights, as files of updates have it; taken again when a weight has changed."""
    state = [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in auxiliary.model.parameters()]
    known = _hashes.get(auxiliary)
    if known is None or known[0] != state:
        known = _hashes[auxiliary] = state, base_hash(auxiliary)
    return known[1]


def prior_file(weights: str, rule: dict[str, Any]) -> Path:
    """Where a prior is kept: in the cache directory, under the model's weights and the knobs of the rule."""
    knobs = hashlib.sha256(json.dumps(rule, sort_keys=True).encode()).hexdigest()
    return cache_directory() / "rates" / f"{weights[:32]}-{knobs[:16]}.json"


def find_prior(auxiliary: Auxiliary, rule: LearningRule) -> RatePrior | None:
    """The prior of a model and a rule: the user's own, or one that ships; None if there is neither."""
    knobs, weights = identity(rule), weights_of(auxiliary)
    own = prior_file(weights, knobs)
    if own.exists():
        return read_prior(own)
    for file in sorted(rates_directory().glob("*.json")):
        prior = read_prior(file)
        if weights in prior.weights and prior.rule == knobs:
            return prior
    return None


def write_prior(prior: RatePrior, target: Path) -> None:
    """Write a prior whole or not at all."""
    text = json.dumps({"format": FORMAT, **asdict(prior)}).replace('{"tokens"', '\n{"tokens"')
    try:
        with whole_file(target, parents=True) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise TintError(f"cannot write {target}: {cause(error)}") from error


def read_prior(path: Path) -> RatePrior:
    """Read a prior; anything that is none is one line with the remedy."""
    found = read_foreign_json(path)
    try:
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise LoadError("it is no file of rates of this version")
        tables = tuple(_checked_table(table) for table in found.pop("lengths"))
        steps = checked("steps", found.pop("steps"), _Positive, LoadError)
        weights = checked("weights", found.pop("weights"), tuple[str, ...], LoadError)
        if len(steps) < 2 or {len(getattr(table, name)) for table in tables for name in _BY_STEP} != {len(steps)}:
            raise LoadError("its lists have different lengths")
        return RatePrior(steps=steps, lengths=tables, weights=weights, **found)
    except (TintError, TypeError, KeyError, AttributeError) as error:
        remedy = "remove it, or measure anew with `tint rates`"
        raise LoadError(f"cannot read the rates in {path}: {cause(error)}; {remedy}") from error


_Positive = tuple[Annotated[float, Range(above=0)], ...]
_Count = Annotated[int, Range(at_least=1)]
_Finite = tuple[Annotated[float, Range()], ...]
_BY_STEP = ("gain", "slope", "spread", "trial_gain", "trial_slope")


def _checked_table(table: dict[str, Any]) -> LengthTable:
    counts = {name: checked(name, table[name], _Count, LoadError) for name in ("tokens", "pieces")}
    lists = {name: checked(name, table[name], _Finite, LoadError) for name in (*_BY_STEP, "losses")}
    loss = checked("loss", table["loss"], Annotated[float, Range()], LoadError)
    return LengthTable(**counts, **lists, loss=loss)
