"""The vocabulary in which an auxiliary model is described: weights, ops, joins and forks.

A block is a sequence of steps. A step is either an op with one input (`Linear`, `Norm`, `Activation`) or a `Fork`,
which sends one input down several branches and joins their outputs (`Add`, `Product`, `Attend`). Residuals, gated
units, attention and parallel blocks are all forks, so a walk needs to know one mechanism only.
"""

# B batch, T tokens, D width of the stream

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from tintformer.errors import LoadError

Group = Literal["body", "query_key", "frozen"]
"""Which knob of the learning rule moves an op's parameters: `body` those that every rule moves, `query_key` those
behind `update_query_key`, `frozen` none."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of several equal parts of a fused parameter's output rows."""

    index: int
    count: int
    groups: int = 1
    """1: the parts are contiguous blocks (GPT-2). Number of heads: every head holds its own parts (BLOOM, NeoX)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Weight:
    """A parameter of the Hugging Face model as we read it: shared, never copied, oriented `[out, in]`."""

    name: str
    """The Hugging Face parameter name, under which updates are reported."""
    source: Tensor = field(repr=False)
    """The Hugging Face parameter itself, or what accelerate keeps of it; it is read without a gradient."""
    transposed: bool = False
    """Stored as `[in, out]` (the Conv1D of GPT-2)."""
    part: Part | None = None
    device: torch.device | None = None
    """Where it is computed with, if it is kept elsewhere: it is brought in whenever it is read, and not held."""

    @property
    def home(self) -> torch.device:
        """Where it is computed with."""
        return self.source.device if self.device is None else self.device

    def whole(self) -> Float[Tensor, ...]:
        """The Hugging Face parameter, where it is computed with."""
        source = self.source.detach()
        return source if self.device is None else source.to(self.device)

    def rows(self, index: Shaped[Tensor, "B T *vector"]) -> Float[Tensor, "B T D"]:
        """Rows of a table by number, or sums of them by vector; of one kept elsewhere, no more are brought in."""
        if index.is_floating_point():
            return index.to(self.source) @ self.source.detach()
        return functional.embedding(index.to(self.source.device), self.source.detach()).to(self.home)

    def read(self) -> Float[Tensor, ...]:
        """Our view of the parameter; a copy only where a family interleaves fused rows by head."""
        rows = self._select(self.whole())
        return rows if self.part is None else rows.flatten(0, 1)

    def write(self, value: Float[Tensor, ...], into: Float[Tensor, ...]) -> None:
        """Put `value`, oriented as `read` returns it, into its place in a tensor of the Hugging Face shape."""
        rows = self._select(into)
        rows.copy_(value if self.part is None else value.unflatten(0, (self.part.groups, -1)))

    def _select(self, tensor: Tensor) -> Tensor:
        # Views throughout, so that `write` fills the parameter itself.
        rows = tensor.mT if self.transposed else tensor
        if self.part is None:
            return rows
        return rows.unflatten(0, (self.part.groups, self.part.count, -1))[:, self.part.index]


@dataclass(frozen=True, eq=False, kw_only=True)
class Linear:
    """y = W x + b."""

    name: str
    weight: Weight
    bias: Weight | None = None
    group: Group = "body"


@dataclass(frozen=True, eq=False, kw_only=True)
class Norm:
    """y = g * f(x) + b, with f the normalisation of LayerNorm or RMSNorm."""

    name: str
    kind: Literal["layer", "rms"]
    epsilon: float
    scale: Weight | None = None
    bias: Weight | None = None
    unit_offset: bool = False
    """The scale is 1 + weight (Gemma)."""
    num_groups: int = 1
    """How many equal parts of the input are normalised apart: 1, or the number of heads of a query/key norm."""
    group: Group = "body"

    def __post_init__(self) -> None:
        # Here, because all that follows from it is a non-finite stream, for which a learning rate would be blamed.
        if not 0 <= self.epsilon < float("inf"):
            raise LoadError(
                f"the epsilon of {self.name} is {self.epsilon:g}; correct it in the model's configuration "
                "(rms_norm_eps, layer_norm_eps): a finite number of at least 0"
            )


@dataclass(frozen=True, kw_only=True)
class Activation:
    """y = s(x), element by element."""

    name: str
    function: str


@dataclass(frozen=True, kw_only=True)
class Add:
    """The sum of the branches."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Product:
    """The element-wise product of two branches."""

    name: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Rotary:
    """Rotary positions on the first `2 * len(inverse_frequencies)` coordinates of every head."""

    inverse_frequencies: Float[Tensor, " half"]
    scaling: float = 1.0
    """Factor on the cosines and sines (yarn); 1 for the other schemes."""
    interleaved: bool = False
    """Pairs are neighbours (GPT-J) instead of halves (LLaMA)."""

    def __post_init__(self) -> None:
        numbers = self.inverse_frequencies
        if not numbers.is_meta and not (bool(torch.isfinite(numbers).all()) and abs(self.scaling) < float("inf")):
            raise LoadError(
                "the rotary frequencies are not finite; correct rope_theta, factor and the like in the model's "
                "configuration (rope_parameters)"
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class Alibi:
    """A bias on the scores that falls linearly with distance, one slope a head."""

    slopes: Float[Tensor, " heads"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Attend:
    """Causal softmax attention of three branches: queries, keys, values (in this order)."""

    name: str
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    scale: float
    position: Rotary | Alibi | None = None
    window: int | None = None
    """A token sees this many tokens, itself included; None: all earlier ones."""


Op = Linear | Norm | Activation
Join = Add | Product | Attend


@dataclass(frozen=True, eq=False, kw_only=True)
class Fork:
    """One input, several branches, one output; an empty branch passes the input on (a residual)."""

    branches: tuple[tuple[Step, ...], ...]
    join: Join


@dataclass(frozen=True, kw_only=True)
class Move:
    """The stream goes on on another device, and gradients come back: only in models that are spread over several."""

    origin: torch.device
    device: torch.device


Step = Op | Fork | Move
