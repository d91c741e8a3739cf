"""How earlier papers compute with weights that stand in the context: a memory tape, and attention to prefix tokens.

The memory tape is a Turing machine's: attention copies a row of weights into the workspace of a token, and a
feed-forward layer multiplies there, since GELU turns sums into products. Prefix attention leaves weights in place.
D width, T tokens, K rows of the matrix. Every matrix is dense, as a transformer stores it, and written once for all
rows: the machine loops, and what changes from step to step is its pointer.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

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
