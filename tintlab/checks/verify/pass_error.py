"""The whole pass of an engine against the oracle: what is predicted after learning, and what was learnt.

The oracle computes in float64 whatever the model's dtype is, so that the error is the engine's alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.engines.oracle import OracleEngine
from tintformer.execution.batch import Batch
from tintformer.execution.output import EngineResult
from tintformer.rule.learning_rule import LearningRule
from tintlab.checks.verify.lockstep import difference
from tintlab.checks.verify.verified_engine import VerifiedEngine


@dataclass(frozen=True, kw_only=True)
class PassError:
    """How far a whole pass is from the oracle's."""

    logits: float
    """Largest difference of a logit of an attended token."""
    loss: float
    """Difference of the mean losses over the evaluation tokens, in nats."""
    weights: float
    """Largest difference of an updated weight."""
    worst_weight: str
    """The Hugging Face name of the parameter where it is."""
    updates: float
    """Norm of the difference of the updates, all parameters as one vector, relative to the oracle's."""
    oracle_loss: float
    """Mean loss of the oracle over the evaluation tokens, in nats."""


def compare_pass(
    auxiliary: Auxiliary, precise: Auxiliary, rule: LearningRule, batch: Batch, subject: VerifiedEngine
) -> PassError:
    """Run a batch by the engine that is verified and, on the same model in float64, by the oracle."""
    everywhere = torch.ones_like(batch.attention_mask)
    expected = OracleEngine(precise, rule).run(batch, logits_at=everywhere, before=False)
    found = subject.engine(auxiliary, rule).run(batch, logits_at=everywhere, before=False)
    weights, worst, updates = _compare_updates(found, expected, len(batch.input_ids))
    assert expected.after.logits is not None and found.after.logits is not None
    seen = batch.attention_mask.flatten()
    losses = [float(result.after.losses.double().mean()) for result in (expected, found)]
    return PassError(
        logits=difference(found.after.logits[seen], expected.after.logits[seen])[0],
        loss=abs(losses[1] - losses[0]),
        weights=weights,
        worst_weight=worst,
        updates=updates,
        oracle_loss=losses[0],
    )


def _compare_updates(found: EngineResult, expected: EngineResult, num_rows: int) -> tuple[float, str, float]:
    """The largest difference, its parameter, and the norm of all differences relative to the expected updates."""
    errors: dict[str, float] = {}
    wrong, size = 0.0, 0.0
    for row in range(num_rows):
        ours, truth = found.updates(row), expected.updates(row)
        _check_names(ours, truth)
        for name, update in truth.items():
            errors[name] = max(errors.get(name, 0.0), difference(ours[name], update)[0])
            wrong += float((ours[name].double() - update.double()).square().sum())
            size += float(update.double().square().sum())
    worst = max(errors, key=lambda name: errors[name])
    relative = (wrong / size) ** 0.5 if size > 0 else 0.0 if wrong == 0 else float("inf")
    return errors[worst], worst, relative


def _check_names(ours: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> None:
    if ours.keys() != truth.keys():
        odd = sorted(ours.keys() ^ truth.keys())
        raise AssertionError(f"the engines do not move the same parameters: {odd[0]}")
