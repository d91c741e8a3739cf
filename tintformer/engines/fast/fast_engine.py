"""The fast engine: the walk with a `FastExecutor`, every sequence of the batch with its own factored update."""

# B batch, T tokens, n tokens of the last reading, D width, V vocabulary

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.engines.fast.fast_executor import FastExecutor, pooled_rank
from tintformer.engines.fast.reading import Memory, ReadingExecutor
from tintformer.engines.fast.updates import Updates
from tintformer.errors import InputError
from tintformer.execution import walk
from tintformer.execution.batch import Batch, Chunk
from tintformer.execution.continuation import Continuation, KeyValueCache
from tintformer.execution.engine import row_updates, undisturbed
from tintformer.execution.hooks import Hooks
from tintformer.execution.output import EngineResult, Predictions, predict
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import by_weight
from tintformer.typed_fields import checked


class FastEngine:
    """What people run: the same meaning as the reference, near the hardware's limit. It adapts and it continues.

    `dual` leaves every update as factors (True) or forms every updated matrix (False); by default each matrix has the
    form that costs less.
    """

    def __init__(
        self,
        auxiliary: Auxiliary,
        rule: LearningRule,
        *,
        dual: bool | None = None,
        statistics: Mapping[str, Tensor] | None = None,
    ):
        self.auxiliary, self.rule = auxiliary, rule
        self.statistics = by_weight(statistics, auxiliary, rule)
        self.dual = checked("dual", dual, bool | None, InputError)
        self.hooks = Hooks(auxiliary, rule)

    @undisturbed
    @torch.no_grad()
    def run(self, batch: Batch, *, logits_at: Bool[Tensor, "B T"] | None, before: bool) -> EngineResult:
        """Train every sequence on its own, then predict."""
        executor = FastExecutor(self.auxiliary, self.rule, batch, dual=self.dual, statistics=self.statistics)
        observed = self.hooks.observed(executor, batch)
        # First, as long as the executor has no updates.
        x_before = walk.forward_pass(observed, self.auxiliary, "before") if before else None
        x = walk.train_in_the_pass(observed, self.auxiliary, self.rule)
        return self._result(executor, x, logits_at, x_before)

    @undisturbed
    @torch.no_grad()
    def begin(self, batch: Batch, *, keep_cache: bool) -> FastContinuation:
        """Train every sequence on its own and read it; `keep_cache` keeps the keys and values that going on needs."""
        cache = KeyValueCache() if keep_cache else None
        executor = FastExecutor(
            self.auxiliary, self.rule, batch, dual=self.dual, cache=cache, statistics=self.statistics
        )
        x = walk.learn_and_read(self.hooks.observed(executor, batch), self.auxiliary, self.rule, batch)
        executor.check(x)
        return FastContinuation(executor, cache, x)

    @undisturbed
    @torch.no_grad()
    def adapt(self, batch: Batch, after: Updates | None = None) -> Updates:
        """One update from all sequences of the batch, their losses summed; it begins with the weights `after` another,
        and contains that."""
        # The paper's "N-step Fine-Tuning" sums the losses of a batch: here one update is for all, elsewhere one for
        # each. `dual` has no say: the update outlives the pass, so its memory decides the form.
        before = (after or Updates()).to_go_on(pooled_rank(self.rule, batch), momentum=self.rule.momentum > 0)
        executor = FastExecutor(
            self.auxiliary, self.rule, batch, updates=before, pooled=True, statistics=self.statistics
        )
        walk.train(self.hooks.observed(executor, batch), self.auxiliary, self.rule)
        executor.check_updates()
        if before.steps_made is not None:
            before.steps_made += self.rule.steps
        return executor.updates

    @undisturbed
    @torch.no_grad()
    def learn(self, batch: Batch) -> Updates:
        """The update of every sequence on its own, without a prediction."""
        executor = FastExecutor(self.auxiliary, self.rule, batch, dual=self.dual)
        walk.train(self.hooks.observed(executor, batch), self.auxiliary, self.rule)
        executor.check_updates()
        return executor.updates

    @undisturbed
    @torch.no_grad()
    def score(self, batch: Batch, updates: Updates, *, logits_at: Bool[Tensor, "B T"] | None) -> EngineResult:
        """Predict with updates that are there already; nothing is learnt."""
        executor = FastExecutor(self.auxiliary, self.rule, batch, updates=updates)
        x = walk.forward_pass(self.hooks.observed(executor, batch), self.auxiliary)
        return self._result(executor, x, logits_at)

    @undisturbed
    @torch.no_grad()
    def read(
        self, chunk: Chunk, memory: Memory, *, size: int, tokens: int, keep: int, logits: bool = False
    ) -> Predictions:
        """Score a chunk of every sequence, then learn from it; `memory` has what earlier chunks have left behind.

        `size` is that of a full chunk and `tokens` how many are read before sequences begin anew, on which the form of
        updates depends; `keep` how many keys and values are carried on.
        """
        executor = ReadingExecutor(
            self.auxiliary,
            self.rule,
            chunk,
            memory,
            size=size,
            tokens=tokens,
            statistics=self.statistics,
            keep_logits=logits,
        )
        if self.rule.rate:
            walk.train(executor, self.auxiliary, self.rule)
            executor.check_gradients()
        else:  # nothing would move
            executor.score(walk.forward_pass(executor, self.auxiliary))
        executor.keep(keep)
        assert executor.scores is not None
        home, kept = chunk.input_ids.device, executor.kept_logits
        return Predictions(losses=executor.scores.to(home), logits=None if kept is None else torch.cat(kept).to(home))

    def _result(
        self, executor: FastExecutor, x: Tensor, logits_at: Tensor | None, x_before: Tensor | None = None
    ) -> EngineResult:
        executor.check(x)
        return EngineResult(
            after=predictions(executor, x, logits_at),
            before=None if x_before is None else predictions(executor, x_before, logits_at),
            updates=lambda row: row_updates(executor, self.auxiliary, self.rule, row),
        )


class FastContinuation(Continuation):
    """Continued by the fast engine, with the updates as factors or formed once, whichever is smaller."""

    def __init__(self, executor: FastExecutor, cache: KeyValueCache | None, x: Float[Tensor, "B n D"]):
        super().__init__(executor.auxiliary, executor.batch, cache, x)
        self.executor = executor
        # Token by token a pass is bound by what it reads, not by what it
        # multiplies: the form is chosen again for that.
        self.updates = executor.updates if cache is None else executor.updates.settled()

    def _read(self, batch: Batch, cache: KeyValueCache, start: int) -> Tensor:
        rule = self.executor.rule
        self.executor = FastExecutor(self.auxiliary, rule, batch, updates=self.updates, cache=cache, start=start)
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
    # Over a large vocabulary all logits of a batch would be the largest tensor of the pass by far.
    here = batch.on(x.device)
    at = here.evaluation_positions
    losses = executor.losses(x[at], here.targets[at])
    return Predictions(losses=losses.to(batch.input_ids.device), logits=None)
