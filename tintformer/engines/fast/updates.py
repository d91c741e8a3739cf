"""What has been learnt: changes of vectors, and changes of matrices as factors or in full.

R is the number of updates: one for each sequence of a batch, or 1 if all sequences share it. n trained tokens,
I inputs, O outputs. What is summed up or formed is float32 at least: half a precision has no room for a small change
beside a weight, which would be rounded away.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.auxiliary.ops import Weight
from tintformer.engines.fast import cost
from tintformer.execution.engine import compute_dtype


@dataclass(frozen=True)
class Factors:
    """The change -rate * sum_t g_t x_t^T, never formed."""

    x: Float[Tensor, "R n I"]
    g: Float[Tensor, "R n O"]
    rate: float

    def delta(self) -> Float[Tensor, "R O I"]:
        return torch.bmm(widened(self.g).mT, widened(self.x)).mul_(-self.rate)

    def added_to(self, matrices: Float[Tensor, "*R O I"]) -> Float[Tensor, "R O I"]:
        return torch.baddbmm(widened(matrices), widened(self.g).mT, widened(self.x), alpha=-self.rate)

    def add_forward(
        self, y: Float[Tensor, "B T O"], x: Float[Tensor, "B T I"], *, with_bias: bool
    ) -> Float[Tensor, "B T O"]:
        """y plus the change applied to x, and with it the change of the bias: -rate * sum_t (x_t . x + 1) g_t.

        The memory of y may be used for the result.
        """
        return _through(y, x, self.x, self.g, -self.rate, offset=1.0 if with_bias else 0.0)

    def add_backward(self, dx: Float[Tensor, "B T I"], dy: Float[Tensor, "B T O"]) -> Float[Tensor, "B T I"]:
        """dx plus the transposed change applied to dy; the memory of dx may be used for the result."""
        return _through(dx, dy, self.g, self.x, -self.rate)


def widened(x: Tensor) -> Tensor:
    """Half precisions as float32; everything else as it is."""
    return x.to(compute_dtype(x.dtype))


def _through(total: Tensor, signal: Tensor, first: Tensor, second: Tensor, alpha: float, offset: float = 0.0) -> Tensor:
    """total + alpha * (signal first^T + offset) second, for one update a sequence or one for all.

    `total` is a product made for this sum, so its memory is used again.
    """
    if len(first) == len(signal):
        scores = torch.bmm(signal, first.mT)
        if offset:
            scores += offset
        if total.is_contiguous():
            return total.baddbmm_(scores, second, alpha=alpha)
        return torch.baddbmm(total, scores, second, alpha=alpha)
    scores = signal.flatten(0, 1) @ first[0].mT
    if offset:
        scores += offset
    return torch.addmm(total.flatten(0, 1), scores, second[0], alpha=alpha).view_as(total)


class Updates:
    """All that has been learnt: changes of matrices and changes of vectors (`[R, D]`), by weight."""

    def __init__(self) -> None:
        self.matrices: dict[Weight, MatrixUpdate] = {}
        self.vectors: dict[Weight, Tensor] = {}

    def change(self, weight: Weight, row: int) -> Tensor | None:
        """How far a weight has moved in one row; None if it has not."""
        if weight in self.vectors:
            return self.vectors[weight][row]
        return self.matrices[weight].row(row) if weight in self.matrices else None

    def changes(self, weight: Weight) -> Tensor | None:
        """How far a weight has moved in every row; None if it has not."""
        if weight in self.vectors:
            return self.vectors[weight]
        return self.matrices[weight].full() if weight in self.matrices else None

    def of(self, weights: Container[Weight]) -> Updates:
        """The changes of these weights alone."""
        result = Updates()
        result.matrices = {weight: update for weight, update in self.matrices.items() if weight in weights}
        result.vectors = {weight: change for weight, change in self.vectors.items() if weight in weights}
        return result

    def settled(self) -> Updates:
        """The same changes, in the form that serves many short passes best."""
        result = Updates()
        result.matrices = {weight: update.settled(weight.read()) for weight, update in self.matrices.items()}
        result.vectors = dict(self.vectors)
        return result

    def reordered(self, rows: Tensor) -> Updates:
        """The changes of these sequences, in this order."""
        result = Updates()
        result.matrices = {weight: update.reordered(rows) for weight, update in self.matrices.items()}
        result.vectors = {weight: _rows(change, rows) for weight, change in self.vectors.items()}
        return result


@dataclass
class MatrixUpdate:
    """The change of one matrix: all its factors, or a part of them already summed up in full."""

    dual: bool
    """Leave it as factors; otherwise the updated matrix is formed where it is used."""
    keep: bool = False
    """The formed change will be used again, so it is summed up once."""
    factors: list[Factors] = field(default_factory=list)
    delta: Float[Tensor, "R O I"] | None = None
    formed: Float[Tensor, "R O I"] | None = None
    """The updated matrix itself, kept where it will be used again."""

    def add(self, factors: Factors) -> None:
        self.factors.append(factors)
        self.formed = None
        if not self.dual and self.keep:
            self.delta = self.full()
            self.factors = []

    def full(self) -> Float[Tensor, "R O I"]:
        """The whole change, formed."""
        total = self.delta
        for part in self.factors:
            total = part.delta() if total is None else part.added_to(total)
        assert total is not None, "an update holds at least one step"
        return total

    def matrix(self, weight: Float[Tensor, "O I"]) -> Float[Tensor, "R O I"]:
        """The updated matrix."""
        if self.formed is not None:
            return self.formed
        total = widened(weight)[None] if self.delta is None else weight + self.delta
        for part in self.factors:
            total = part.added_to(total.expand(len(part.x), -1, -1))
        if self.keep and len(total) == 1:
            self.formed = total
        return total

    def settled(self, weight: Float[Tensor, "O I"]) -> MatrixUpdate:
        """Ready for many short passes, which are bound by what they read: factors where they are smaller than the
        matrix, otherwise the updated matrix, formed once."""
        outputs, inputs = weight.shape
        rank = sum(part.x.shape[1] for part in self.factors)
        if self.delta is None and cost.smaller_as_factors(inputs, outputs, rank):
            return MatrixUpdate(dual=True, factors=self.factors)
        return MatrixUpdate(dual=False, keep=True, formed=self.matrix(weight))

    def reordered(self, rows: Tensor) -> MatrixUpdate:
        return MatrixUpdate(
            dual=self.dual,
            keep=self.keep,
            factors=[Factors(_rows(part.x, rows), _rows(part.g, rows), part.rate) for part in self.factors],
            delta=None if self.delta is None else _rows(self.delta, rows),
            formed=None if self.formed is None else _rows(self.formed, rows),
        )

    def row(self, row: int) -> Float[Tensor, "O I"]:
        """The whole change of one sequence."""
        parts = [Factors(part.x[row : row + 1], part.g[row : row + 1], part.rate) for part in self.factors]
        delta = None if self.delta is None else self.delta[row : row + 1]
        return MatrixUpdate(dual=self.dual, factors=parts, delta=delta).full()[0]


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    """Rows in a new order; what all sequences share stays as it is."""
    return x if len(x) == 1 and len(rows) > 1 else x.index_select(0, rows.to(x.device))
