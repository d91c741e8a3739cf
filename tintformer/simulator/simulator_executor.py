"""Executes the walk on the simulator: every op by its modules, streams in pieces, weights in prefix tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tintformer.auxiliary.ops import Activation, Add, Attend, Join, Linear, Norm, Op, Product, Weight
from tintformer.execution.batch import Batch
from tintformer.execution.continuation import KeyValueCache
from tintformer.execution.executor import Stage
from tintformer.rule.trainable import trained_weights
from tintformer.simulator.geometry import Cut
from tintformer.simulator.modules.loss_gradient import Lesson
from tintformer.simulator.modules.self_attention import Scene
from tintformer.simulator.regions import Phase, regions
from tintformer.simulator.tokens import Tokens, cut_tokens, total
from tintformer.simulator.wiring import Placed

if TYPE_CHECKING:
    from tintformer.simulator.simulator import Simulator

Watch = Callable[[Placed, Phase, dict[str, Tensor]], None]
"""Told of every module before it runs: the op, the phase, and what stands in its regions, `[B, N, T, Dslot]` each."""


class SimulatorExecutor:
    """One pass over one batch; implements `Executor`. The prefix tokens of every sequence change on their own."""

    def __init__(
        self,
        simulator: Simulator,
        batch: Batch,
        watch: Watch | None = None,
        *,
        updated_prefix: dict[str, Tensor] | None = None,
        cache: KeyValueCache | None = None,
        start: int = 0,
    ):
        """`cache` keeps keys and values; the tokens before `start` are read from it and not computed again."""
        self.simulator, self.batch, self.watch = simulator, batch, watch
        self.cache, self.start = cache, start
        self.updated_prefix: dict[str, Tensor] = {} if updated_prefix is None else updated_prefix
        """Prefix tokens that descent has changed, by op."""
        self.masks: dict[int | None, Tensor] = {}

    # What the walk asks for.

    def begin(self, stage: Stage) -> None:
        self.stage = stage

    def embed(self) -> Tokens:
        simulator, embedding = self.simulator, self.simulator.auxiliary.embedding
        x = Tokens(simulator.embedding(self.batch.input_ids[:, self.start :]), self._input_cut())
        if embedding.projection is not None:
            x, _ = self.forward(embedding.projection, (x,))
        if simulator.positions is not None:
            rows = simulator.positions(self.batch.positions[:, self.start :] + embedding.position_offset)
            x = x.like(torch.add(x.data, rows))
        if embedding.norm is not None:
            x, _ = self.forward(embedding.norm, (x,))
        return x

    def training_part(self, x: Tokens) -> Tokens:
        return x.like(x.data[:, :, : self.num_training])

    def move(self, x: Tokens, device: torch.device) -> Tokens:
        raise AssertionError("a model that is spread over devices is refused before it is built")

    def forward(self, op: Op | Join, inputs: tuple[Tokens, ...]) -> tuple[Tokens, Any]:
        if isinstance(op, Add):
            return total(list(inputs)), inputs
        values = [x.data for x in inputs]
        self._show(op, "forward", values)
        module = self.simulator.modules_of(op).ahead
        match op:
            case Linear() | Norm():
                y = module(*values, self.prefix(op))
            case Activation() | Product():
                y = module(*values)
            case Attend():
                query, key, value = values
                if self.cache is not None:
                    key, value = self.cache.extend(op.name, key, value, self.start)
                y = module(query, key, value, self._scene(op, query.shape[2]))
        return Tokens(y, self.simulator.places[op.name].out), inputs

    def backward(self, op: Op | Join, saved: Any, gradient: Tokens) -> tuple[Tokens | None, ...]:
        inputs: tuple[Tokens, ...] = saved
        if isinstance(op, Add):
            return (gradient,) * len(inputs)
        dy, values = gradient.data, [x.data for x in inputs]
        self._show(op, "backward", [dy, *values])
        module = self.simulator.modules_of(op).back
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
                gradients = module(dy, *values, self._scene(op, dy.shape[2]))
        return tuple(None if dx is None else x.like(dx) for x, dx in zip(inputs, gradients, strict=True))

    def descend(self, op: Op | Join, saved: Any, gradient: Tokens) -> None:
        assert isinstance(op, Linear | Norm), f"{op.name} has no parameters"
        (x,) = saved
        self._show(op, "descent", [gradient.data, x.data])
        module = self.simulator.modules_of(op).descent
        assert module is not None, f"{op.name} was not expected to be trained"
        self.updated_prefix[op.name] = module(gradient.data, x.data, self.prefix(op))

    def add(self, terms: Sequence[Tokens]) -> Tokens:
        return total(list(terms))

    def loss_gradient(self, x: Tokens) -> Tokens:
        return x.like(self.simulator.loss_gradient(x.data, self.lesson))

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

    def plain(self, x: Tokens) -> Tensor:
        """A stream as the auxiliary knows it."""
        return x.plain()

    def stream(self, value: Tensor, like: Tokens) -> Tokens:
        """A stream of the form of `like` that holds a value."""
        return cut_tokens(value, like.cut, self.simulator.geometry.dim_slot)

    # The pass's own data.

    def prefix(self, op: Linear | Norm) -> Tensor | None:
        """An op's prefix tokens as they are now."""
        return self.updated_prefix[op.name] if op.name in self.updated_prefix else self.simulator.prefix_of(op)

    @cached_property
    def num_training(self) -> int:
        """Tokens up to the last training target, itself included; nothing that is learnt depends on later ones."""
        return min(self.batch.num_reached + 1, self.batch.input_ids.shape[1])

    @cached_property
    def lesson(self) -> Lesson:
        batch, num = self.batch, self.num_training
        scored = batch.train_positions[:, :num]
        weight = scored.to(self.simulator.dtype)
        if self.simulator.rule.reduction == "mean":
            weight = weight / scored.sum(-1, keepdim=True).clamp(min=1)
        following = torch.ones(num, num, dtype=self.simulator.dtype, device=scored.device).triu(1).tril(1)
        return Lesson(
            ids=batch.input_ids[:, :num],
            scored=scored,
            weight=weight[:, None, :, None],
            next_token=(scored[:, :, None] * following)[:, None, None, None],
        )

    def _scene(self, op: Attend, num_tokens: int) -> Scene:
        if op.window not in self.masks:
            mask = self.batch.additive_mask(self.simulator.dtype, op.window, first=self.start)
            self.masks[op.window] = mask[:, None, None, None]
        end = self.start + num_tokens
        return Scene(self.masks[op.window][..., :num_tokens, :end], self.batch.positions[:, :end])

    def _input_cut(self) -> Cut:
        width = self.simulator.auxiliary.embedding.tokens.source.shape[1]
        return Cut(width, self.simulator.geometry.dim_aux)

    def _show(self, op: Placed, phase: Phase, values: list[Tensor]) -> None:
        if self.watch is None:
            return
        names = regions(self.simulator.places[op.name], phase, self.simulator.rule)
        if isinstance(
            op, Attend
        ):  # its pieces stand in regions of their own, those of others in embeddings side by side
            values = [piece for value in values for piece in value.split(1, dim=1)]
        # Values come in the order of the regions; the ones that a module does not read are last and have no region.
        self.watch(op, phase, dict(zip(names, values, strict=False)))
