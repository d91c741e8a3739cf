"""What an engine offers: every engine runs a batch; some can also adapt once for many uses, or go on token by token.

Ask for a capability by its name (`isinstance(engine, Adapts)`), never for an engine by its class.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary, compute_dtype, ops
from tintformer.auxiliary.ops import Weight
from tintformer.execution.batch import Batch
from tintformer.execution.executor import Executor
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import trainable_weights

if TYPE_CHECKING:
    from tintformer.execution.continuation import Continuation
    from tintformer.execution.hooks import Hooks
    from tintformer.execution.output import EngineResult


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@contextmanager
def own_settings(auxiliary: Auxiliary) -> Generator[None]:
    """Compute in a model's dtype and on its device, whatever is set around a call.

    Autocast would round products, and the default device `meta` would take the numbers away.
    """
    device = auxiliary.device
    with ExitStack() as around:
        # Some devices have no autocast, `meta` among them, and asking whether it is on would be an error.
        if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
            around.enter_context(torch.autocast(device.type, enabled=False))
        # A device as a context slows every call of torch, so only where somebody has set another one.
        if device.type != "meta" and torch.get_default_device().type == "meta":
            around.enter_context(device)
        yield


def undisturbed(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a method of what has an auxiliary compute with `own_settings`, as it is written, on batches that suit it.

    `torch.compile` around a call leaves it out: traced, the walk has been seen to leave steps out without a word, and a
    pass that decides by its data has little to gain.
    """

    @wraps(method)
    def alone(*args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        if torch.compiler.is_compiling():  # only then: importing the compiler takes seconds
            eager = cast(Callable[Parameters, Result], torch.compiler.disable(alone))
            return eager(*args, **keywords)
        owner = cast(Any, args[0])
        for given in (*args, *keywords.values()):
            if isinstance(given, Batch):
                given.require_steps(owner.rule)  # here, because every engine meets its batches so
        with own_settings(owner.auxiliary):
            return method(*args, **keywords)

    return alone


@runtime_checkable
class Engine(Protocol):
    """An executable form of the learning rule on one auxiliary."""

    @property
    def auxiliary(self) -> Auxiliary: ...

    @property
    def rule(self) -> LearningRule: ...

    @property
    def hooks(self) -> Hooks | None:
        """The hooks of its passes; None where it is not the walk that runs them."""
        ...

    def run(self, batch: Batch, *, logits_at: Bool[Tensor, "B T"] | None, before: bool) -> EngineResult:
        """Train every sequence on its own, then predict; `logits_at` contains the evaluated positions."""
        ...


@runtime_checkable
class Adapts(Engine, Protocol):
    """An engine whose updates can be kept: learnt once, used many times."""

    def adapt(self, batch: Batch, after: Any = None) -> Any:
        """One update from all sequences of the batch, their losses summed; on top of another where that is given."""
        ...

    def score(self, batch: Batch, updates: Any, *, logits_at: Bool[Tensor, "B T"] | None) -> EngineResult:
        """Predict with updates that `adapt` has returned; nothing is learnt."""
        ...


@runtime_checkable
class Continues(Engine, Protocol):
    """An engine that can go on after learning, token by token."""

    def begin(self, batch: Batch, *, keep_cache: bool) -> Continuation:
        """Train every sequence on its own and read it; `keep_cache` keeps the keys and values that going on needs."""
        ...


def row_updates(executor: Executor[Any], auxiliary: Auxiliary, rule: LearningRule, row: int) -> dict[str, Tensor]:
    """What one sequence has learnt: the update of every trainable parameter, by Hugging Face name."""
    every_op = (op for steps in (*auxiliary.blocks, auxiliary.final) for op in ops(steps))
    with own_settings(auxiliary):
        found = {weight: update for op in every_op for weight, update in executor.updates_of(op, row).items()}
        return parameter_updates(found, auxiliary, rule)


def parameter_updates(found: Mapping[Weight, Tensor], auxiliary: Auxiliary, rule: LearningRule) -> dict[str, Tensor]:
    """Updates of weights as those of all trainable Hugging Face parameters; zeros where nothing was learnt.

    Several weights may be parts of one fused parameter, of which the frozen ones stay zero.
    """
    # Not the model's dtype: a small update, rounded to half a precision, would be reported as another one or as none.
    dtype = compute_dtype(auxiliary.dtype)
    parameters: dict[str, Tensor] = {}
    for weight in trainable_weights(rule, auxiliary):
        if weight.name not in parameters:
            parameters[weight.name] = torch.zeros_like(weight.source, dtype=dtype)
        if weight in found:
            weight.write(found[weight].to(dtype), into=parameters[weight.name])
    return parameters
