"""Executes the walk on the simulator: every op by its modules, streams in pieces, weights in prefix tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tintformer.auxiliary.ops import Activation, Add, Attend, Join, Linear, Norm, Op, Product, Weight
from tintformer.execution.batch import Batch
from tintformer.execution.continuation import KeyValueCache
from tintformer.execution.executor import Stage
from tintformer.rule.optimiser import step_rate, trained_weights
from tintformer.simulator.modules.loss_gradient import LossInputs
from tintformer.simulator.modules.movement import Descending
from tintformer.simulator.modules.self_attention import AttentionInputs
from tintformer.simulator.regions import Cut, PieceStream, add_streams

if TYPE_CHECKING:
    from tintformer.simulator.simulator import Simulator


class SimulatorExecutor:
    """One pass over one batch; implements `Executor`. The prefix tokens of every sequence change on their own."""

    def __init__(
        self,
        simulator: Simulator,
        batch: Batch,
        *,
        updated_prefix: dict[str, Tensor] | None = None,
        cache: KeyValueCache | None = None,
        start: int = 0,
    ):
        """`cache` keeps keys and values; the tokens before `start` are read from it and not computed again."""
        self.simulator, self.batch = simulator, batch
        self.cache, self.start = cache, start
        self.updated_prefix: dict[str, Tensor] = {} if updated_prefix is None else updated_prefix
        """Prefix tokens that descent has changed, by op."""
        self.velocities: dict[str, Tensor] = {}
        """What momentum has gathered, by op."""
        self.masks: dict[int | None, Tensor] = {}
        self._loss_inputs: dict[int | None, LossInputs] = {}

    # What the walk asks for.

    def begin(self, stage: Stage) -> None:
        self.stage = stage

    def embed(self) -> PieceStream:
        simulator, embedding = self.simulator, self.simulator.auxiliary.embedding
        x = PieceStream(simulator.embedding(self.batch.inputs[:, self.start :]), self._input_cut())
        if embedding.projection is not None:
            x, _ = self.forward(embedding.projection, (x,))
        if simulator.positions is not None:
            rows = simulator.positions(self.batch.positions[:, self.start :] + embedding.position_offset)
            x = x.like(torch.add(x.data, rows))
        if embedding.norm is not None:
            x, _ = self.forward(embedding.norm, (x,))
        return x

    def training_part(self, x: PieceStream) -> PieceStream:
        return x.like(x.data[:, :, : self.num_training])

    def move(self, x: PieceStream, device: torch.device) -> PieceStream:
        raise AssertionError("a model that is spread over devices is refused before it is built")

    def forward(self, op: Op | Join, inputs: tuple[PieceStream, ...]) -> tuple[PieceStream, Any]:
        if isinstance(op, Add):
            return add_streams(list(inputs)), inputs
        values = [x.data for x in inputs]
        module = self.simulator.modules_of(op).forward_module
        match op:
            case Linear() | Norm():
                y = module(*values, self.prefix(op))
            case Activation() | Product():
                y = module(*values)
            case Attend():
                query, key, value = values
                if self.cache is not None:
                    key, value = self.cache.extend(op.name, key, value, self.start)
                y = module(query, key, value, self._attention_inputs(op, query.shape[2]))
        return PieceStream(y, self.simulator.wired[op.name].out), inputs

    def backward(self, op: Op | Join, saved: Any, gradient: PieceStream) -> tuple[PieceStream | None, ...]:
        inputs: tuple[PieceStream, ...] = saved
        if isinstance(op, Add):
            return (gradient,) * len(inputs)
        dy, values = gradient.data, [x.data for x in inputs]
        module = self.simulator.modules_of(op).backward_module
        assert module is not None, f"no gradient was expected at {op.name}"
        match op:
            case Linear():
                gradients = (module(dy, self.prefix(op)),)
            case Norm():
                gradients = (module(dy, *values, self.prefix(op)),)
            case Activation():
                gradients = (module(dy, *values),)
            case Product():
                gradients = module(dy, *values)
            case Attend():
                gradients = module(dy, *values, self._attention_inputs(op, dy.shape[2]))
        return tuple(None if dx is None else x.like(dx) for x, dx in zip(inputs, gradients, strict=True))

    def descend(self, op: Op | Join, saved: Any, gradient: PieceStream) -> None:
        assert isinstance(op, Linear | Norm), f"{op.name} has no parameters"
        (x,) = saved
        module = self.simulator.modules_of(op).descent_module
        assert module is not None, f"{op.name} was not expected to be trained"
        prefix = self.prefix(op) if self.simulator.rule.moves_evenly else self._descending(op)
        moved = module(gradient.data, x.data, prefix)
        if isinstance(moved, Descending):
            if moved.velocity is not None:
                self.velocities[op.name] = moved.velocity
            moved = moved.weights
        self.updated_prefix[op.name] = moved

    def add(self, terms: Sequence[PieceStream]) -> PieceStream:
        return add_streams(list(terms))

    def loss_gradient(self, x: PieceStream) -> PieceStream:
        return x.like(self.simulator.loss_gradient(x.data, self.loss_inputs(self.stage.step)))

    # What an engine and a check ask for.

    def updates_of(self, op: Op | Join, row: int | None = None) -> dict[Weight, Tensor]:
        if op.name not in self.updated_prefix:
            return {}
        assert isinstance(op, Linear | Norm)
        before, tokens = self.simulator.prefix_of(op), self.updated_prefix[op.name]
        assert before is not None
        numbers = range(len(tokens)) if row is None else (row,)
        rows = [self.simulator.weights_in(op, tokens[number, None] - before) for number in numbers]
        return {
            weight: rows[0][weight] if row is not None else torch.stack([each[weight] for each in rows])
            for weight in trained_weights(self.simulator.rule, op)
        }

    def plain(self, x: PieceStream) -> Tensor:
        """A stream as the auxiliary knows it."""
        return x.plain()

    def stream(self, value: Tensor, like: PieceStream) -> PieceStream:
        """A stream of the form of `like` that holds a value."""
        return PieceStream.of(value, like.cut, self.simulator.geometry.dim_slot)

    # The pass's own data.

    def prefix(self, op: Linear | Norm) -> Tensor | None:
        """An op's prefix tokens as they are now."""
        return self.updated_prefix[op.name] if op.name in self.updated_prefix else self.simulator.prefix_of(op)

    @cached_property
    def num_training(self) -> int:
        """PieceStream up to the last training target, itself included; nothing that is learnt depends on later ones."""
        return min(self.batch.num_reached + 1, self.batch.input_ids.shape[1])

    def loss_inputs(self, step: int | None) -> LossInputs:
        """What is scored in a step; where targets belong to no step in particular, the same in all of them."""
        number = None if self.batch.step_ids is None else step
        if number not in self._loss_inputs:
            batch, num = self.batch, self.num_training
            scored = batch.train_positions_at(number)[:, :num]
            weight = scored.to(self.simulator.dtype)
            if self.simulator.rule.reduction == "mean":
                weight = weight / scored.sum(-1, keepdim=True).clamp(min=1)
            ahead = self.simulator.auxiliary.target_offset
            following = torch.ones(num, num, dtype=self.simulator.dtype, device=scored.device).triu(ahead).tril(ahead)
            self._loss_inputs[number] = LossInputs(
                targets=batch.placed_targets[:, :num],
                scored=scored,
                weight=weight[:, None, :, None],
                next_token=(scored[:, :, None] * following)[:, None, None, None],
            )
        return self._loss_inputs[number]

    def _descending(self, op: Linear | Norm) -> Descending:
        """An op's prefix tokens with all that they hold, and the rate of this step."""
        weights, base, step = self.prefix(op), self.simulator.prefix_of(op), self.stage.step or 1
        assert weights is not None and base is not None
        return Descending(
            weights=weights,
            velocity=self.velocities.get(op.name),
            base=base,
            moving=self.moving(step),
            rate=step_rate(self.simulator.rule, op.name, step),
        )

    def moving(self, step: int) -> Tensor | None:
        """Which sequences make a step: momentum and decay stand still where there is no target; None: all do."""
        if self.batch.step_ids is None or not self.simulator.rule.remembers:
            return None
        return self.batch.train_positions_at(step).any(1).to(self.simulator.dtype)[:, None, None, None, None, None]

    def _attention_inputs(self, op: Attend, num_tokens: int) -> AttentionInputs:
        if op.window not in self.masks:
            mask = self.batch.additive_mask(self.simulator.dtype, op.window, first=self.start)
            self.masks[op.window] = mask[:, None, None, None]
        end = self.start + num_tokens
        return AttentionInputs(self.masks[op.window][..., :num_tokens, :end], self.batch.positions[:, :end])

    def _input_cut(self) -> Cut:
        width = self.simulator.auxiliary.embedding.tokens.source.shape[1]
        return Cut(width, self.simulator.geometry.dim_aux)
