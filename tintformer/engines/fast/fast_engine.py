"""The fast engine: the walk with a `FastExecutor`, every sequence of the batch with its own factored update."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.engines.fast.fast_executor import FastExecutor
from tintformer.engines.fast.updates import Updates
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.execution.continuation import Continuation
from tintformer.execution.engine import EngineResult, Predictions, compute_dtype, predict, to_parameters
from tintformer.execution.hooks import Hooks
from tintformer.execution.kv_cache import Memory
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.trainable import movable


class FastEngine:
    """What people run: the same meaning as the reference, near the hardware's limit."""

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, *, dual: bool | None = None):
        self.auxiliary, self.rule, self.dual = auxiliary, rule, dual
        self.hooks = Hooks(auxiliary, rule)

    @torch.no_grad()
    def run(self, batch: Batch, *, logits_at: Bool[Tensor, "B T"] | None, before: bool) -> EngineResult:
        """Train every sequence on its own, then predict."""
        executor = FastExecutor(self.auxiliary, self.rule, batch, dual=self.dual)
        x_before = walk.forward_pass(self.hooks.observed(executor, "before"), self.auxiliary) if before else None
        x = walk.train_in_the_pass(self.hooks.observed(executor, "below"), self.auxiliary, self.rule)
        executor.check(x)
        return EngineResult(
            after=predictions(executor, x, logits_at),
            before=None if x_before is None else predictions(executor, x_before, logits_at),
            updates=lambda row: changes(self.auxiliary, self.rule, executor.updates, row),
        )

    @torch.no_grad()
    def begin(self, batch: Batch, *, remember: bool) -> FastContinuation:
        """Train every sequence on its own and read it; `remember` keeps what it takes to go on."""
        memory = Memory() if remember else None
        executor = FastExecutor(self.auxiliary, self.rule, batch, dual=self.dual, memory=memory)
        learn = bool(batch.train_positions.any())
        observed = self.hooks.observed(executor, "below" if learn else "after")
        x = walk.learn_and_read(observed, self.auxiliary, self.rule, learn=learn)
        executor.check(x)
        return FastContinuation(executor, memory, x)

    @torch.no_grad()
    def adapt(self, batch: Batch) -> Updates:
        """One update from all sequences of the batch, their losses summed."""
        executor = FastExecutor(self.auxiliary, self.rule, batch, pooled=True)
        walk.train(self.hooks.observed(executor, "below"), self.auxiliary, self.rule)
        executor.check_updates()
        return executor.updates


class FastContinuation(Continuation):
    """Continued by the fast engine, with the updates as factors or formed once, whichever is smaller."""

    def __init__(self, executor: FastExecutor, memory: Memory | None, x: Float[Tensor, "B n D"]):
        super().__init__(executor.auxiliary, executor.batch, memory, x)
        self.executor = executor
        self.updates = executor.updates if memory is None else executor.updates.settled()

    def _read(self, batch: Batch, memory: Memory, start: int) -> Tensor:
        rule = self.executor.rule
        self.executor = FastExecutor(self.auxiliary, rule, batch, updates=self.updates, memory=memory, start=start)
        x = walk.forward_pass(self.executor, self.auxiliary)
        self.executor.check(x)
        return x

    def _head(self, rows: Tensor) -> Tensor:
        return self.executor.logits(rows)

    def _reorder_updates(self, rows: Tensor) -> None:
        self.updates = self.updates.reordered(rows)


def predictions(
    executor: FastExecutor, x: Float[Tensor, "B T D"], logits_at: Bool[Tensor, "B T"] | None
) -> Predictions:
    """Losses and logits; without logits no more than a chunk of them ever exists."""
    batch = executor.batch
    if logits_at is not None:
        return predict(batch, x, logits_at, executor.logits)
    here = batch.on(x.device)
    losses = executor.losses(x[here.evaluation_positions], here.targets[here.evaluation_positions])
    return Predictions(losses=losses.to(batch.input_ids.device), logits=None)


def changes(auxiliary: Auxiliary, rule: LearningRule, updates: Updates, row: int) -> dict[str, Tensor]:
    """How far every movable parameter has moved in one row, by its Hugging Face name."""
    found = {weight: updates.change(weight, row) for weight in movable(rule, auxiliary)}
    wide = compute_dtype(auxiliary.dtype)
    return to_parameters(
        {
            weight: torch.zeros_like(weight.read(), dtype=wide) if change is None else change.to(wide)
            for weight, change in found.items()
        }
    )
