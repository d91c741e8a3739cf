"""Why numbers are non-finite: because of the model, of its gradient or of the learning rate; messages name which."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Join, Norm, Op
from tintformer.errors import DivergenceError, NonFiniteError
from tintformer.execution import walk
from tintformer.execution.executor import Executor
from tintformer.rule.learning_rule import LearningRule

X = TypeVar("X")


def is_finite(x: Tensor) -> bool:
    """Whether all numbers are finite; one sum tells, unless the sum itself overflows."""
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def check_model(untrained: Executor[X], auxiliary: Auxiliary) -> None:
    """Raise if the model as it is gives non-finite numbers here, naming the first op; `untrained` knows no update."""

    def look(op: Op | Join | None, x: X) -> None:
        if not is_finite(untrained.plain(x)):
            place = "the embedding" if op is None else f"the output of {op.name}"
            raise NonFiniteError(
                f"{place} contains NaN or infinity before anything is learnt, so the learning rate is not the cause; "
                f"{_suspicion(op, auxiliary)}"
            )

    looking: Any = _Looking(untrained, look)
    walk.forward_pass(looking, auxiliary, "before")


def gradient_error(where: str, auxiliary: Auxiliary, rule: LearningRule) -> DivergenceError:
    """Of the first step's gradient, which no learning rate has touched."""
    if rule.epsilon is not None and rule.takes_differences():
        remedy = f"leave out epsilon={rule.epsilon:g}, the step of its differences"
    elif auxiliary.dtype == torch.float16:
        remedy = "float16 ends at 65504: load the model in bfloat16 or float32"
    else:
        remedy = "check the epsilons of its norms, and the text"
    return DivergenceError(
        f"{where} contains NaN or infinity in the first step, before any update, so the learning rate is not the "
        f"cause; {remedy}"
    )


def _suspicion(op: Op | Join | None, auxiliary: Auxiliary) -> str:
    if isinstance(op, Norm):
        return f"the epsilon of this norm is {op.epsilon:g}: check it, and what is normalised"
    if auxiliary.dtype == torch.float16:
        return "float16 ends at 65504: load the model in bfloat16 or float32"
    return "check the model's configuration (norm epsilons, rotary settings) and its weights"


class _Looking:
    """An executor whose streams are looked at as they are made; everything else is the executor's own."""

    def __init__(self, executor: Executor[Any], look: Any):
        self._executor, self._look = executor, look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def embed(self) -> Any:
        x = self._executor.embed()
        self._look(None, x)
        return x

    def forward(self, op: Op | Join, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
        y, saved = self._executor.forward(op, inputs)
        self._look(op, y)
        return y, saved
