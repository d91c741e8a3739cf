"""What is verified, by name: an engine for whole passes, and the executor of single ops behind it.

This is the only place that knows where the constructed simulator lives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tintformer.analysis.verify.lockstep import Checked
from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Weight
from tintformer.engines.fast.fast_executor import FastExecutor
from tintformer.engines.reference import TensorExecutor
from tintformer.errors import TintError
from tintformer.execution.batch import Batch
from tintformer.execution.engine import Engine
from tintformer.learning.tint import Tint
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.trainable import movable


@dataclass(frozen=True, kw_only=True)
class VerifiedEngine:
    """An executable form of the learning rule, whole and op by op."""

    name: str
    engine: Callable[[Auxiliary, LearningRule], Engine]
    executor: Callable[[Auxiliary, LearningRule, Batch], Checked[Any]]
    construction: dict[str, Any] = field(default_factory=dict[str, Any])
    """How a simulator is built, as far as it was asked for."""

    @property
    def approximate(self) -> bool:
        """Whether its linear attentions are softmax attentions, which are reported and not judged."""
        return self.construction.get("attention") == "softmax"


def find_verified_engine(name: str, **construction: Any) -> VerifiedEngine:
    """The engine of that name and its executor; `construction` are knobs of the simulator."""
    if name not in EXECUTORS:
        raise TintError(f"engine={name!r} cannot be verified; choose one of {', '.join(EXECUTORS)}")
    if construction and name != "simulator":
        raise TintError(f"{', '.join(construction)}: knobs of the simulator; leave them out with engine={name!r}")
    return VerifiedEngine(
        name=name,
        engine=lambda auxiliary, rule: Tint(auxiliary, rule, engine=name, **construction).engine,
        executor=partial(EXECUTORS[name], **construction),
        construction=construction,
    )


class CheckedFast(FastExecutor):
    """The fast engine's executor, which otherwise knows its changes by weight and in all rows at once."""

    def changes(self, row: int) -> dict[Weight, Tensor]:
        found = {weight: self.updates.change(weight, row) for weight in movable(self.rule, self.auxiliary)}
        return {
            weight: torch.zeros_like(weight.read()) if change is None else change for weight, change in found.items()
        }


def _simulator(auxiliary: Auxiliary, rule: LearningRule, batch: Batch, **construction: Any) -> Checked[Any]:
    from tintformer.simulator.simulator import build
    from tintformer.simulator.simulator_executor import SimulatorExecutor

    return SimulatorExecutor(build(auxiliary, rule, **construction), batch)


EXECUTORS: dict[str, Callable[..., Checked[Any]]] = {
    "simulator": _simulator,
    "fast": CheckedFast,
    "reference": TensorExecutor,
}
"""What can be checked op by op, by the name of its engine."""
