"""From a Hugging Face model and its family to a description: one reading for all families."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tintformer.auxiliary.description import Auxiliary, Embedding, Head
from tintformer.auxiliary.families.family import Family
from tintformer.auxiliary.model_record import ModelRecord
from tintformer.auxiliary.ops import (
    Activation,
    Add,
    Attend,
    Fork,
    Group,
    Linear,
    Move,
    Norm,
    Part,
    Product,
    Step,
    Weight,
)
from tintformer.auxiliary.placement import placed_parameters
from tintformer.auxiliary.validation import check_widths

RESIDUAL: tuple[Step, ...] = ()
"""The branch that passes its input on."""


def describe(model: Any, family: Family, name: str) -> Auxiliary:
    """The description of a validated model; tensors are shared with it."""
    reader = _Reader(model, family)
    # In this order: a stream is moved wherever the next of them has another home.
    embedding = reader.embedding()
    blocks = tuple(reader.block(layer) for layer in range(model.config.num_hidden_layers))
    final = reader.final()
    auxiliary = Auxiliary(
        name=name,
        family=family.model_type,
        embedding=embedding,
        blocks=blocks,
        final=final,
        head=reader.head(),
        max_positions=getattr(model.config, "max_position_embeddings", None),
        model=model,
        record=ModelRecord(model),
    )
    check_widths(auxiliary)
    return auxiliary


class _Reader:
    """Reads ops from the modules that a family's paths name."""

    def __init__(self, model: Any, family: Family):
        self.model, self.family, self.paths, self.config = model, family, family.paths, model.config
        self.names = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
        self.placed = placed_parameters(model)
        self.sources: dict[str, Tensor] = {}
        """One view of each parameter, so that the parts of a fused one are known to belong together."""
        self.home = self._home(self._module(self.paths.tokens).weight)
        """Where what is being read is computed with: embedding, a block, or final steps and head."""
        self.position = family.position(model, self.config) if family.position else None

    def embedding(self) -> Embedding:
        positions = self._module(self.paths.positions)
        return Embedding(
            tokens=self._weight(self._module(self.paths.tokens).weight),
            scale=self.family.embedding_scale(self.model),
            projection=self._optional_linear("embedding.projection", self.paths.project_in),
            positions=None if positions is None else self._weight(positions.weight),
            position_offset=self.family.position_offset,
            norm=self._norm("embedding.norm", self._module(self.paths.embedding_norm)),
        )

    def final(self) -> tuple[Step, ...]:
        arrival = self._go_to(self._module(self.paths.head).weight)
        norm = self._norm("final.norm", self._module(self.paths.final_norm))
        projection = self._optional_linear("final.projection", self.paths.project_out)
        return tuple(step for step in (arrival, norm, projection) if step is not None)

    def head(self) -> Head:
        head = self._module(self.paths.head)
        return Head(weight=self._weight(head.weight), bias=self._weight(head.bias))

    def block(self, layer: int) -> tuple[Step, ...]:
        prefix = f"blocks.{layer}"
        block = self._module(self.paths.blocks)[layer]
        arrival = self._go_to(next(block.parameters()))
        attention = (self.attention(block, layer), self._linear(f"{prefix}.output", block, self.paths.output))
        feed_forward = self.feed_forward(block, prefix)
        before = self._norm(f"{prefix}.attention_norm", self._module(self.paths.attention_norm, block))
        between = self._norm(f"{prefix}.mlp_norm", self._module(self.paths.mlp_norm, block))

        def residual(name: str, *branches: tuple[Step | None, ...]) -> Fork:
            kept = tuple(tuple(step for step in branch if step is not None) for branch in branches)
            return Fork(branches=(RESIDUAL, *kept), join=Add(name=f"{prefix}.{name}"))

        around_attention, around_mlp = partial(residual, "attention_residual"), partial(residual, "mlp_residual")

        # The formulas of these orders are at `Order` in families/family.py.
        match self.family.order(self.config):
            case "pre_norm":
                steps = around_attention((before, *attention)), around_mlp((between, *feed_forward))
            case "post_norm":
                steps = around_attention(attention), before, around_mlp(feed_forward), between
            case "parallel":
                steps = (residual("residual", (before, *attention), (between, *feed_forward)),)
            case "parallel_one_norm":
                both = Fork(branches=(attention, feed_forward), join=Add(name=f"{prefix}.parallel"))
                steps = (residual("residual", (before, both)),)
            case "normed_residual":
                steps = before, around_attention(attention), between, around_mlp(feed_forward)
        return tuple(step for step in (arrival, *steps) if step is not None)

    def attention(self, block: nn.Module, layer: int) -> Fork:
        prefix, config = f"blocks.{layer}", self.config
        num_heads = config.num_attention_heads
        # Heads need not add up to the width: Gemma 7B has 16 heads of 256 in a stream of 3072.
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
        num_key_value_heads = getattr(config, "num_key_value_heads", None) or num_heads
        query, key, value = self._projections(block, prefix)
        query_norm = self._norm(
            f"{prefix}.query_norm", self._module(self.paths.query_norm, block), num_heads, "query_key"
        )
        key_norm = self._norm(
            f"{prefix}.key_norm", self._module(self.paths.key_norm, block), num_key_value_heads, "query_key"
        )
        return Fork(
            branches=(
                (query,) if query_norm is None else (query, query_norm),
                (key,) if key_norm is None else (key, key_norm),
                (value,),
            ),
            join=Attend(
                name=f"{prefix}.attention",
                num_heads=num_heads,
                num_key_value_heads=num_key_value_heads,
                head_dim=head_dim,
                scale=self.family.scale(config, layer) if self.family.scale else head_dim**-0.5,
                position=self.position,
                window=self.family.window(config, layer),
            ),
        )

    def feed_forward(self, block: nn.Module, prefix: str) -> tuple[Step, ...]:
        up = self._linear(f"{prefix}.up", block, self.paths.up)
        down = self._linear(f"{prefix}.down", block, self.paths.down)
        activation = Activation(name=f"{prefix}.activation", function=self.family.activation(self.config))
        if self.paths.gate is None:
            return up, activation, down
        gate = self._linear(f"{prefix}.gate", block, self.paths.gate)
        return Fork(branches=((up,), (gate, activation)), join=Product(name=f"{prefix}.product")), down

    def _projections(self, block: nn.Module, prefix: str) -> list[Linear]:
        # The paper updates the values alone (section "Fuzzy backpropagation via stop gradients"), so queries and keys
        # have a knob of their own.
        groups: list[tuple[str, Group]] = [("query", "query_key"), ("key", "query_key"), ("value", "body")]
        fused = self.paths.query_key_value
        if fused is None:
            return [
                self._linear(f"{prefix}.{name}", block, getattr(self.paths, name), group=group)
                for name, group in groups
            ]
        heads = self.config.num_attention_heads if self.family.fused_by_head else 1
        return [
            self._linear(f"{prefix}.{name}", block, fused, group=group, part=Part(index=i, count=3, groups=heads))
            for i, (name, group) in enumerate(groups)
        ]

    def _module(self, path: str | None, root: nn.Module | None = None) -> Any:
        """The module at a path; None for a path that is not given, or a module that this configuration leaves out."""
        module: Any = self.model if root is None else root
        for part in path.split(".") if path else [None]:
            module = None if module is None or part is None else getattr(module, part, None)
        return module

    def _weight(self, parameter: Tensor | None, **how: Any) -> Any:
        if parameter is None:
            return None
        name = self.names[id(parameter)]
        # Another home than the data's own means that accelerate has offloaded it.
        data = self.placed[name].data
        # The parameter itself: in a copy of model and description, the copied weight is the copied model's.
        source = self.sources.setdefault(name, parameter if data.device == parameter.device else data)
        device = None if source.device == self.home else self.home
        return Weight(name=name, source=source, device=device, **how)

    def _home(self, parameter: Tensor) -> torch.device:
        return self.placed[self.names[id(parameter)]].device

    def _go_to(self, parameter: Tensor) -> Move | None:
        """Read on at the home of a parameter; the move that takes the stream there, if it is elsewhere."""
        origin, self.home = self.home, self._home(parameter)
        return None if origin == self.home else Move(origin=origin, device=self.home)

    def _linear(
        self, name: str, root: nn.Module, path: str | None, *, group: Group = "body", part: Part | None = None
    ) -> Linear:
        module = self._module(path, root)
        return Linear(
            name=name,
            weight=self._weight(module.weight, transposed=self.family.transposed, part=part),
            bias=self._weight(module.bias, part=part),
            group=group,
        )

    def _optional_linear(self, name: str, path: str | None) -> Linear | None:
        """A projection outside of the blocks; these are plain linears in every family, and never move."""
        module = self._module(path)
        if module is None:
            return None
        return Linear(name=name, weight=self._weight(module.weight), bias=self._weight(module.bias), group="frozen")

    def _norm(self, name: str, module: Any, num_groups: int = 1, group: Group = "body") -> Norm | None:
        if module is None:
            return None
        # nn.LayerNorm and Gemma call it eps, LLaMA and those after it variance_epsilon.
        epsilon = module.eps if hasattr(module, "eps") else module.variance_epsilon
        return Norm(
            name=name,
            kind=self.family.norm,
            epsilon=epsilon,
            scale=self._weight(module.weight),
            bias=self._weight(getattr(module, "bias", None)),
            unit_offset=self.family.unit_offset,
            num_groups=num_groups,
            group=group,
        )
