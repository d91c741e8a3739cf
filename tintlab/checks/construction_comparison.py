"""One linear layer by earlier constructions and by TinT's: parameters of the modules as built, and what they err by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from tintformer.auxiliary.perceptrons import regression
from tintformer.errors import InputError
from tintformer.execution.examples import Examples
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.geometry import LayoutName
from tintformer.simulator.simulator import Simulator, build
from tintformer.typed_fields import Range, checked
from tintlab.checks.earlier_constructions import (
    AttentionCopy,
    FeedForwardProduct,
    MemoryTape,
    PrefixAttention,
)

RATE = 0.1
DTYPES = (torch.float64, torch.float32)


@dataclass(frozen=True, kw_only=True)
class ConstructedLinear:
    """A construction of one linear layer, or a part of one."""

    name: str
    """What it is called."""
    does: str
    """How it does it."""
    parameters: int
    """Of the modules of the forward pass, as they are stored."""
    non_zero: int
    """Of these, the entries that are not zero."""
    step_parameters: int | None
    """Of the modules of a step of descent; None where the construction has none. A memory tape uses the same twice."""
    weight_tokens: int | None
    """Tokens of the context that hold the weights; None for a part that needs none."""
    layers: int
    """One after the other, in the forward pass."""
    step_layers: int | None
    """In a step of descent."""
    errors: dict[str, float]
    """Of the forward pass by dtype, relative to the largest entry of what is right."""
    step_errors: dict[str, float] | None
    """The same of the change of the weights."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Layer:
    """A linear layer with what a step needs: weights, inputs, and gradients at the output."""

    weight: Tensor
    x: Tensor
    dy: Tensor

    @property
    def output(self) -> Tensor:
        return self.x.double() @ self.weight.double().mT

    @property
    def step(self) -> Tensor:
        return -RATE * self.dy.double().mT @ self.x.double()


def compare_constructions(width: int = 64, tokens: int = 16, *, stack: int = 4) -> list[ConstructedLinear]:
    """Every construction of a layer `width` x `width` on random numbers, built and run.

    Args:
        width: Inputs and outputs of the layer.
        tokens: Tokens of a pass; no more than `width`, by which pointers count.
        stack: Rows in a prefix token of TinT.
    """
    checked("width", width, Annotated[int, Range(at_least=4, at_most=1024)], InputError)
    checked("tokens", tokens, Annotated[int, Range(at_least=1, at_most=width)], InputError)
    layers = {dtype: _layer(width, tokens, dtype) for dtype in DTYPES}
    return [
        _copy(layers, width),
        _product(layers, width),
        _memory_tape(layers, width, tokens),
        _prefix_attention(layers, width),
        *(_tint(layers, width, layout, stack) for layout in ("paper", "lean")),
    ]


def _layer(width: int, tokens: int, dtype: torch.dtype) -> Layer:
    generator = torch.Generator().manual_seed(0)
    shapes = ((width, width), (tokens, width), (tokens, width))
    weight, x, dy = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return Layer(weight=(weight / width**0.5).to(dtype), x=x.to(dtype), dy=dy.to(dtype))


def _by_dtype(layers: dict[torch.dtype, Layer], run: Callable[[Layer], tuple[Tensor, Tensor]]) -> dict[str, float]:
    """The largest error of what was found, by dtype; `run` gives that and what is right."""
    found: dict[str, float] = {}
    for dtype, layer in layers.items():
        ours, right = run(layer)
        error = (ours.double() - right.double()).abs().max() / right.double().abs().max()
        found[str(dtype).removeprefix("torch.")] = float(error)
    return found


def _num_parameters(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def _num_non_zero(*modules: nn.Module) -> int:
    return sum(int(parameter.count_nonzero()) for module in modules for parameter in module.parameters())


def _copy(layers: dict[torch.dtype, Layer], width: int) -> ConstructedLinear:
    def run(layer: Layer) -> tuple[Tensor, Tensor]:
        places = torch.eye(width, dtype=layer.weight.dtype)
        return AttentionCopy(width, layer.weight.dtype)(places, places, layer.weight), layer.weight

    module = AttentionCopy(width)
    return ConstructedLinear(
        name="attention copy",
        does="fetches rows from the tape, multiplies nothing",
        parameters=_num_parameters(module),
        non_zero=_num_non_zero(module),
        step_parameters=None,
        weight_tokens=width,
        layers=1,
        step_layers=None,
        errors=_by_dtype(layers, run),
        step_errors=None,
    )


def _product(layers: dict[torch.dtype, Layer], width: int) -> ConstructedLinear:
    def run(layer: Layer) -> tuple[Tensor, Tensor]:
        row = layer.weight[0].expand_as(layer.x)
        found = FeedForwardProduct(width, total=True, dtype=layer.x.dtype)(layer.x, row)
        return found[:, :1], layer.output[:, :1]

    module = FeedForwardProduct(width, total=True)
    return ConstructedLinear(
        name="GELU product",
        does="the inner product with one row that was fetched",
        parameters=_num_parameters(module),
        non_zero=_num_non_zero(module),
        step_parameters=None,
        weight_tokens=None,
        layers=1,
        step_layers=None,
        errors=_by_dtype(layers, run),
        step_errors=None,
    )


def _memory_tape(layers: dict[torch.dtype, Layer], width: int, tokens: int) -> ConstructedLinear:
    def forward(layer: Layer) -> tuple[Tensor, Tensor]:
        return MemoryTape(width, layer.x.dtype)(layer.weight, layer.x), layer.output

    def step(layer: Layer) -> tuple[Tensor, Tensor]:
        machine = MemoryTape(width, layer.x.dtype)
        return machine.descend(layer.weight, layer.x, layer.dy, RATE) - layer.weight, layer.step

    module = MemoryTape(width)
    num_layers, num_step_layers = MemoryTape.num_layers(width, tokens)
    return ConstructedLinear(
        name="memory tape",
        does="row by row: attention copy, GELU product, and another to write the number down",
        parameters=_num_parameters(module),
        non_zero=_num_non_zero(module),
        step_parameters=_num_parameters(module),
        weight_tokens=width,
        layers=num_layers,
        step_layers=num_step_layers,
        errors=_by_dtype(layers, forward),
        step_errors=_by_dtype(layers, step),
    )


def _prefix_attention(layers: dict[torch.dtype, Layer], width: int) -> ConstructedLinear:
    def forward(layer: Layer) -> tuple[Tensor, Tensor]:
        return PrefixAttention(width, layer.x.dtype)(layer.weight, layer.x), layer.output

    def step(layer: Layer) -> tuple[Tensor, Tensor]:
        module = PrefixAttention(width, layer.x.dtype)
        return module.descend(layer.weight, layer.x, layer.dy, RATE) - layer.weight, layer.step

    module = PrefixAttention(width)
    return ConstructedLinear(
        name="prefix attention",
        does="a row a prefix token, one head",
        parameters=_num_parameters(module),
        non_zero=_num_non_zero(module),
        step_parameters=_num_parameters(module),
        weight_tokens=width,
        layers=1,
        step_layers=1,
        errors=_by_dtype(layers, forward),
        step_errors=_by_dtype(layers, step),
    )


def _tint(layers: dict[torch.dtype, Layer], width: int, layout: LayoutName, stack: int) -> ConstructedLinear:
    simulators = {dtype: _simulator(layer, width, layout, stack) for dtype, layer in layers.items()}
    simulator = simulators[torch.float64]

    def run(layer: Layer, *, part: int) -> tuple[Tensor, Tensor]:
        # Targets that make the loss's gradient what it is to be; examples that only are read come after them.
        targets = layer.x @ layer.weight.mT - layer.dy
        x, y = torch.cat((layer.x, layer.x))[None], torch.cat((targets, targets))[None]
        mask = torch.arange(x.shape[1])[None] < len(layer.x)
        out = simulators[layer.x.dtype](Examples(x, y, mask), before=True)
        assert out.logits_before is not None
        if part == 0:
            return out.logits_before[0, : len(layer.x)], layer.output
        return out.updates()["0.weight"], layer.step

    modules = next(iter(simulator.structure.children()))
    forward, descent = modules.get_submodule("forward_module"), modules.get_submodule("descent_module")
    return ConstructedLinear(
        name=f"TinT, {layout} layout",
        does=f"{stack} rows a prefix token",
        parameters=_num_parameters(forward),
        non_zero=_num_non_zero(forward),
        step_parameters=_num_parameters(descent),
        weight_tokens=simulator.geometry.num_prefix,
        layers=1,
        step_layers=1,
        errors=_by_dtype(layers, partial(run, part=0)),
        step_errors=_by_dtype(layers, partial(run, part=1)),
    )


def _simulator(layer: Layer, width: int, layout: LayoutName, stack: int) -> Simulator:
    auxiliary = regression(width, width, weight=layer.weight, dtype=layer.weight.dtype)
    return build(auxiliary, LearningRule(learning_rate=RATE), layout=layout, stack=stack)
