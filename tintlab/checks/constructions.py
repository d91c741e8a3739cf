"""How earlier papers construct one linear layer, and TinT: built, run and counted beside each other.

The memory tape is a Turing machine's: attention copies a row of weights into the workspace of a token, and a
feed-forward layer multiplies there, since GELU turns sums into products. Prefix attention leaves weights in place.
D width, T tokens, K rows of the matrix. Every matrix is dense, as a transformer stores it, and written once for all
rows: the machine loops, and what changes from step to step is its pointer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tintformer.auxiliary.perceptrons import regression
from tintformer.errors import InputError
from tintformer.execution.examples import Examples
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.geometry import LayoutName
from tintformer.simulator.simulator import Simulator, build
from tintformer.typed_fields import Range, checked

SHARPNESS = 200.0
"""Scores of the row that is copied: all others weigh e^-200 beside it, which is nothing in any dtype."""


def gelu_product(x: Float[Tensor, ...], y: Float[Tensor, ...], *, scale: float = 1.0) -> Float[Tensor, ...]:
    """sqrt(pi/2) (GELU(sx + sy) - GELU(sx) - GELU(sy)) / s^2, which is nearly x y.

    The lemma (paper, "Simulating Multiplication", after Akyürek et al., lemma 4) is printed without GELU(x), which
    leaves sqrt(pi/8) x, and with an error of O(x^3 y^3). GELU is z/2 + (z^2 - z^4/6 + z^6/40 - ...) / sqrt(2 pi), so
    that what is left is `gelu_product_error`, of fourth order.
    """
    terms = functional.gelu(scale * (x + y)) - functional.gelu(scale * x) - functional.gelu(scale * y)
    return math.sqrt(math.pi / 2) / scale**2 * terms


def gelu_product_error(x: Float[Tensor, ...], y: Float[Tensor, ...], *, scale: float) -> Float[Tensor, ...]:
    """The leading term of what the product misses: -s^2 x y (2 x^2 + 3 x y + 2 y^2) / 6. It quarters with half of s."""
    return -(scale**2) * x * y * (2 * x.square() + 3 * x * y + 2 * y.square()) / 6


def best_scale(dtype: torch.dtype) -> float:
    """Where the error of the lemma, s^2, meets that of arithmetic: terms are rounded by eps s and divided by s^2."""
    return torch.finfo(dtype).eps ** (1 / 3)


class AttentionCopy(nn.Module):
    """Fetches the content of the place that a pointer names: softmax attention, three matrices D x D."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float64):
        super().__init__()
        eye = torch.eye(width, dtype=dtype)
        self.query = nn.Parameter(SHARPNESS * eye, requires_grad=False)
        self.key, self.value = (nn.Parameter(eye.clone(), requires_grad=False) for _ in range(2))

    def forward(
        self, pointer: Float[Tensor, "*tokens D"], places: Float[Tensor, "K D"], content: Float[Tensor, "K D"]
    ) -> Float[Tensor, "*tokens D"]:
        """`pointer` and `places` are one-hot positions."""
        scores = (pointer @ self.query.mT) @ (places @ self.key.mT).mT
        return torch.softmax(scores, dim=-1) @ (content @ self.value.mT)


class FeedForwardProduct(nn.Module):
    """Multiplies the halves (u, v) of a token's workspace, coordinate by coordinate, by three GELU units each.

    Both matrices read or write the whole workspace of 2D, as those of a feed-forward layer do. With `total` all
    products are added up, and every coordinate gets the inner product.
    """

    def __init__(self, width: int, *, total: bool = False, dtype: torch.dtype = torch.float64):
        super().__init__()
        scale = best_scale(dtype)
        eye, nothing = torch.eye(width, dtype=dtype), torch.zeros(width, width, dtype=dtype)
        halves = ((eye, eye), (eye, nothing), (nothing, eye))
        self.first = nn.Parameter(scale * torch.cat([torch.cat(pair, dim=1) for pair in halves]), requires_grad=False)
        spread = torch.ones(width, width, dtype=dtype) if total else eye
        signed = math.sqrt(math.pi / 2) / scale**2 * torch.cat((spread, -spread, -spread), dim=1)
        self.second = nn.Parameter(torch.cat((signed, torch.zeros_like(signed))), requires_grad=False)

    def forward(
        self, left: Float[Tensor, "*tokens D"], right: Float[Tensor, "*tokens D"]
    ) -> Float[Tensor, "*tokens D"]:
        workspace = torch.cat((left, right), dim=-1)
        written = functional.gelu(workspace @ self.first.mT) @ self.second.mT
        return written[..., : left.shape[-1]]  # the other half is free again


class MemoryTape(nn.Module):
    """W x and a step of descent by a machine that copies, multiplies and writes, row by row and token by token."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.width = width
        self.copy = AttentionCopy(width, dtype)
        self.inner_product = FeedForwardProduct(width, total=True, dtype=dtype)
        self.multiply = FeedForwardProduct(width, dtype=dtype)

    def _places(self, count: int, like: Tensor) -> Float[Tensor, "count D"]:
        return torch.eye(self.width, dtype=like.dtype, device=like.device)[:count]

    def forward(self, tape: Float[Tensor, "K D"], x: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
        """W x at every token: a row is copied, multiplied, and its number written where the pointer stands."""
        places, result = self._places(len(tape), tape), torch.zeros_like(x)
        for pointer in places:
            here = pointer.expand_as(x)
            row = self.copy(here, places, tape)
            result = result + self.multiply(self.inner_product(x, row), here)
        return result

    def descend(
        self, tape: Float[Tensor, "K D"], x: Float[Tensor, "T D"], dy: Float[Tensor, "T D"], rate: float
    ) -> Float[Tensor, "K D"]:
        """W - rate dy x^T, token by token: row j copies x_t and dy_t, takes coordinate j of dy_t, and multiplies."""
        rows, tokens = self._places(len(tape), tape), self._places(len(x), x)
        for pointer in tokens:
            here = pointer.expand_as(tape)
            inputs, gradient = self.copy(here, tokens, x), self.copy(here, tokens, dy)
            tape = tape - rate * self.multiply(self.inner_product(gradient, rows), inputs)
        return tape

    @staticmethod
    def num_layers(rows: int, tokens: int) -> tuple[int, int]:
        """Layers of both passes, where every step of the loop is a layer of its own; two copies are two heads."""
        return 3 * rows, 3 * tokens


class PrefixAttention(nn.Module):
    """W x, W^T dy and the step of descent by one linear attention each: a row of weights is a token that is attended.

    Three matrices D x D a direction, all of them the identity (Giannou et al.; TinT without stacking and sharding).
    """

    def __init__(self, width: int, dtype: torch.dtype = torch.float64):
        super().__init__()
        eye = torch.eye(width, dtype=dtype)
        self.query, self.key, self.value = (nn.Parameter(eye.clone(), requires_grad=False) for _ in range(3))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ self.query.mT) @ (key @ self.key.mT).mT @ (value @ self.value.mT)

    def forward(self, prefix: Float[Tensor, "K D"], x: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
        """Queries are inputs, keys rows, values one-hot positions."""
        return self._attend(x, prefix, self._places(len(prefix), prefix))

    def backward(self, prefix: Float[Tensor, "K D"], dy: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
        """Queries are gradients, keys one-hot positions, values rows."""
        return self._attend(dy, self._places(len(prefix), prefix), prefix)

    def descend(
        self, prefix: Float[Tensor, "K D"], x: Float[Tensor, "T D"], dy: Float[Tensor, "T D"], rate: float
    ) -> Float[Tensor, "K D"]:
        """Queries are one-hot positions of rows, keys gradients, values inputs."""
        return prefix - rate * self._attend(self._places(len(prefix), prefix), dy, x)

    @staticmethod
    def _places(count: int, like: Tensor) -> Float[Tensor, "count D"]:
        return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)[:count]


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
