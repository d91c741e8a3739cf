"""Learning while reading: a chunk of every sequence is scored and learnt from by one forward pass.

B batch, S tokens of earlier chunks whose keys and values are carried along, n tokens of a chunk, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Linear, Weight
from tintformer.engines.fast.fast_executor import FastExecutor
from tintformer.engines.fast.running_matrix import RunningMatrix
from tintformer.engines.fast.update_costs import stream_prefers_dual
from tintformer.engines.fast.updates import MatrixUpdate, Updates
from tintformer.execution.batch import Batch
from tintformer.execution.continuation import KeyValueCache
from tintformer.rule.learning_rule import LearningRule


@dataclass
class Memory:
    """What sequences carry from chunk to chunk: what they have learnt, and what attention keeps of their past."""

    steps_made: list[int]
    """Of each row, in its document."""
    updates: Updates = field(default_factory=Updates)
    cache: KeyValueCache | None = None
    """None where nothing of the past is carried but what has been learnt."""
    seen: Bool[Tensor, "B S"] | None = None
    """Which columns of the cache count, row by row: those of the current document."""
    positions: Int[Tensor, "B S"] | None = None
    """Of those columns."""

    @property
    def num_kept(self) -> int:
        """Columns of the cache."""
        return 0 if self.seen is None else self.seen.shape[1]

    def forget(self, rows: Bool[Tensor, " B"]) -> None:
        """Begin anew in these rows: with the weights as they came, and without a past."""
        self.steps_made = [
            0 if forgotten else made for forgotten, made in zip(rows.tolist(), self.steps_made, strict=True)
        ]
        if self.seen is not None:
            self.seen = self.seen & ~rows[:, None].to(self.seen.device)
        if bool(rows.all()):
            self.updates, self.seen, self.cache = Updates(), None, None if self.cache is None else KeyValueCache()
        elif bool(rows.any()):
            self.updates.forget(rows)


class ReadingExecutor(FastExecutor):
    """Scores every target of a chunk by the pass that learns from it, before any weight moves."""

    def __init__(
        self,
        auxiliary: Auxiliary,
        rule: LearningRule,
        batch: Batch,
        memory: Memory,
        *,
        size: int,
        tokens: int,
        statistics: Mapping[Weight, Tensor] | None = None,
        keep_logits: bool = False,
    ):
        """`tokens`: how many are read before the sequences begin anew, on which the form of updates depends."""
        super().__init__(
            auxiliary,
            rule,
            batch,
            updates=memory.updates,
            cache=memory.cache,
            start=memory.num_kept,
            statistics=statistics,
        )
        self.memory, self.size, self.tokens = memory, size, tokens
        self.scores: Float[Tensor, " evaluated"] | None = None
        """Losses in row-major order of `Batch.evaluation_positions`."""
        self.kept_logits: list[Float[Tensor, "rows V"]] | None = [] if keep_logits else None
        """What those losses were computed from, in the same order; None unless asked for."""

    def training_part(self, x: Tensor) -> Tensor:
        return x  # all of it is scored

    def loss_gradient(self, x: Float[Tensor, "B n D"]) -> Float[Tensor, "B n D"]:
        if self.scores is not None:
            return super().loss_gradient(x)
        self.check(x)
        self.steps_taken = self.stage.step or 0
        batch, here = self.batch.on(x.device), slice(self.start, self.start + x.shape[1])
        scored, trained = batch.evaluation_positions[:, here], batch.train_positions[:, here]
        dx = torch.zeros_like(x)
        self.scores, gradients = self._score(x[scored], batch.targets[:, here][scored], trained[scored])
        dx[trained] = gradients
        if self.rule.reduction == "mean":
            dx /= trained.sum(-1).clamp(min=1)[:, None, None]
        if self.memory.cache is not None:
            # As they were read: later steps compute them with other weights, and what was scored saw these.
            self.as_read = dict(self.memory.cache.entries)
        return dx

    def score(self, x: Float[Tensor, "B n D"]) -> None:
        """Score alone: the model as it is, where a rate of 0 would move nothing."""
        self.check(x)
        batch, here = self.batch.on(x.device), slice(self.start, self.start + x.shape[1])
        scored = batch.evaluation_positions[:, here]
        self.scores = self._losses(x[scored], batch.targets[:, here][scored])
        if self.memory.cache is not None:
            self.as_read = dict(self.memory.cache.entries)

    def _losses(self, rows: Float[Tensor, "rows D"], targets: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        if self.kept_logits is not None:
            self.kept_logits += [self.logits(rows[part]) for part in self._chunks(len(rows))]
        return self.losses(rows, targets)

    def _score(
        self, rows: Float[Tensor, "rows D"], targets: Int[Tensor, " rows"], trained: Bool[Tensor, " rows"]
    ) -> tuple[Float[Tensor, " rows"], Float[Tensor, "trained D"]]:
        """Losses of all rows and gradients of those that train, from the same logits."""
        if self.rule.loss != "cross_entropy":
            return self._losses(rows, targets), self._gradients(rows[trained], targets[trained])
        losses, gradients = torch.empty(len(rows), dtype=self.wide, device=rows.device), torch.empty_like(rows)
        weight = self.auxiliary.head.weight.read()
        for part in self._chunks(len(rows)):
            logits = self.logits(rows[part])
            if self.kept_logits is not None:
                self.kept_logits.append(logits.clone())
            logits -= logits.amax(-1, keepdim=True)
            at_targets = logits.gather(1, targets[part, None])[:, 0]
            total = logits.exp_().sum(-1, keepdim=True)
            losses[part] = total[:, 0].log() - at_targets
            logits /= total
            logits.scatter_add_(1, targets[part, None], logits.new_full((len(logits), 1), -1.0))
            gradients[part] = logits.to(weight.dtype) @ weight
        return losses, gradients[trained]

    def _matrix(self, op: Linear) -> MatrixUpdate:
        if op.weight not in self.updates.matrices:
            outputs, inputs = op.weight.read().shape
            tokens = self.tokens * self.rule.steps
            if not self.rule.needs_matrices and stream_prefers_dual(
                inputs, outputs, chunk=self.size * self.rule.steps, tokens=tokens
            ):
                self.updates.matrices[op.weight] = MatrixUpdate(dual=True, keep=True)
            else:
                untouched = MatrixUpdate(dual=False, own_bias=True)
                num_rows = len(self.batch.input_ids)
                self.updates.matrices[op.weight] = RunningMatrix.of(op.weight, untouched, num_rows, momentum=False)
        update = self.updates.matrices[op.weight]
        if update.dual and self._is_large(op, update):
            update = self.updates.matrices[op.weight] = RunningMatrix.of(
                op.weight, update, len(self.batch.input_ids), momentum=self.rule.momentum > 0
            )
        return update

    def _is_large(self, op: Linear, update: MatrixUpdate) -> bool:
        """Whether factors have come to take more memory than the matrix."""
        outputs, inputs = op.weight.read().shape
        rank = sum(part.x.shape[1] for part in update.factors)
        return rank * (inputs + outputs) > inputs * outputs

    def numbers(self, step: int) -> Sequence[int]:
        return [before + step for before in self.memory.steps_made]

    def keep(self, limit: int) -> None:
        """Carry the last `limit` columns of keys and values on, and count the steps."""
        memory = self.memory
        stepped = self.batch.train_positions.any(1).tolist()
        memory.steps_made = [
            made + self.rule.steps * has_targets for made, has_targets in zip(memory.steps_made, stepped, strict=True)
        ]
        if memory.cache is None:
            return
        first = max(0, self.batch.input_ids.shape[1] - limit)
        memory.seen, memory.positions = self.batch.attention_mask[:, first:], self.batch.positions[:, first:]
        # Copies: a view would hold the whole past in memory.
        memory.cache.entries = {
            name: (key[..., first:, :].clone(), value[..., first:, :].clone())
            for name, (key, value) in self.as_read.items()
        }


class GradientExecutor(ReadingExecutor):
    """Keeps the gradients of a chunk as factors, whatever their number: they are looked at and then forgotten."""

    def _matrix(self, op: Linear) -> MatrixUpdate:
        # Never as an updated matrix: beside a weight a small gradient would lose its digits.
        return self.updates.matrices.setdefault(op.weight, MatrixUpdate(dual=True, keep=True))
