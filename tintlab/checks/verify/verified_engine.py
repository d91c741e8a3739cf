"""What is verified, by name: an engine for whole passes, and the executor of single ops behind it.

This is the only place that knows where the constructed simulator and its compiled form live.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tintformer.auxiliary.description import Auxiliary
from tintformer.engines.fast.fast_executor import FastExecutor
from tintformer.engines.reference import TensorExecutor
from tintformer.errors import TintError
from tintformer.execution.batch import Batch
from tintformer.execution.engine import Engine
from tintformer.execution.executor import Executor
from tintformer.learning.engine_registry import check_options, make_engine
from tintformer.rule.learning_rule import LearningRule


@dataclass(frozen=True, kw_only=True)
class VerifiedEngine:
    """An executable form of the learning rule, whole and op by op."""

    name: str
    engine: Callable[[Auxiliary, LearningRule], Engine]
    executor: Callable[[Auxiliary, LearningRule, Batch], Executor[Any]]
    construction: dict[str, Any] = field(default_factory=dict[str, Any])
    """How a simulator is built, as far as it was asked for."""

    @property
    def approximate(self) -> bool:
        """Whether its linear attentions are softmax attentions, which are reported and not judged."""
        return self.construction.get("attention") == "softmax"


def find_verified_engine(name: str, **construction: Any) -> VerifiedEngine:
    """The engine of that name and its executor, to be verified.

    Args:
        name: `fast`, `simulator`, ...; an unknown one is refused with a list.
        **construction: Knobs of the simulator.
    """
    if name not in EXECUTORS:
        raise TintError(f"engine={name!r} cannot be verified; choose one of {', '.join(EXECUTORS)}")
    check_options(name, construction)
    return VerifiedEngine(
        name=name,
        engine=partial(make_engine, name, **construction),
        executor=partial(EXECUTORS[name], **construction),
        construction=construction,
    )


def _simulator(auxiliary: Auxiliary, rule: LearningRule, batch: Batch, **construction: Any) -> Executor[Any]:
    from tintformer.simulator.simulator import build
    from tintformer.simulator.simulator_executor import SimulatorExecutor

    return SimulatorExecutor(build(auxiliary, rule, **construction), batch)


def _network(auxiliary: Auxiliary, rule: LearningRule, batch: Batch, **construction: Any) -> Executor[Any]:
    from tintformer.network.stepwise import StepwiseExecutor
    from tintformer.simulator.simulator import build

    return StepwiseExecutor(build(auxiliary, rule, **construction), batch)


EXECUTORS: dict[str, Callable[..., Executor[Any]]] = {
    "simulator": _simulator,
    "network": _network,
    "fast": FastExecutor,
    "reference": TensorExecutor,
}
"""What can be checked op by op, by the name of its engine."""
