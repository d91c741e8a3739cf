"""What has been learnt: updates of vectors, and updates of matrices as factors or formed.

R is the number of updates: one for each sequence of a batch, or 1 if all sequences share it. n trained tokens,
I inputs, O outputs. Which form costs less is decided in `update_costs`. What is summed up or formed is float32 at
least: half a precision has no digits for a small update beside a weight, which would be rounded away.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tintformer.auxiliary.description import compute_dtype
from tintformer.auxiliary.ops import Weight
from tintformer.engines.fast.update_costs import rescaling_prefers_dual, smaller_as_factors
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import Moments, Scalar, StepSize, muon_factor, polar_core


@dataclass(frozen=True)
class Factors:
    """The update -rate * sum_t g_t x_t^T of one step, not formed."""

    x: Float[Tensor, "R n I"]
    g: Float[Tensor, "R n O"]
    rate: Scalar
    velocity: Scalar = 1.0
    """Its coefficient in the velocity, where the rule has momentum."""

    def formed(self) -> Float[Tensor, "R O I"]:
        # Paper, "Linear descent": -eta sum_t dy_t x_t^T.
        alpha, x = self._scaled(widened(self.x))
        return torch.bmm(widened(self.g).mT, x).mul_(alpha)

    def added_to(self, matrices: Float[Tensor, "*R O I"]) -> Float[Tensor, "R O I"]:
        alpha, x = self._scaled(widened(self.x))
        return torch.baddbmm(widened(matrices), widened(self.g).mT, x, alpha=alpha)

    def add_into(self, matrices: Float[Tensor, "R O I"]) -> None:
        """Add the update where the matrices stand."""
        alpha, x = self._scaled(widened(self.x))
        matrices.baddbmm_(widened(self.g).mT, x, alpha=alpha)

    def _scaled(self, thin: Tensor) -> tuple[float, Tensor]:
        """The rate as a factor of the product, or, where rows differ in it, of what enters the product."""
        if not isinstance(self.rate, Tensor):
            return -self.rate, thin
        # Relative to the largest, which stays a number: a small rate times a small gradient is 0 in half a precision.
        largest = float(self.rate.abs().max())
        return -largest, thin * (self.rate / largest if largest else self.rate).to(thin)

    def reordered(self, rows: Tensor) -> Factors:
        """Those of these sequences, in this order."""
        rate, velocity = (
            each.index_select(0, rows.to(each.device)) if isinstance(each, Tensor) and len(each) > 1 else each
            for each in (self.rate, self.velocity)
        )
        return Factors(_rows(self.x, rows), _rows(self.g, rows), rate, velocity)

    def stepped(self, by: StepSize, own: float = 0.0) -> Factors:
        """The same gradients after a step of descent."""
        rate, velocity = by.of_factors(self.rate, self.velocity, own)
        return replace(self, rate=rate, velocity=velocity)

    def add_forward(
        self, y: Float[Tensor, "B T O"], x: Float[Tensor, "B T I"], *, with_bias: bool
    ) -> Float[Tensor, "B T O"]:
        """y plus the update applied to x, and with it the update of the bias: -rate * sum_t (x_t . x + 1) g_t.

        The memory of y may be used for the result.
        """
        # Scores first, (x X^T) G: two thin products, where X^T G first would be the matrix that is not to be formed.
        alpha, g = self._scaled(self.g)
        return _through(y, x, self.x, g, alpha, offset=1.0 if with_bias else 0.0)

    def add_backward(self, dx: Float[Tensor, "B T I"], dy: Float[Tensor, "B T O"]) -> Float[Tensor, "B T I"]:
        """dx plus the transposed update applied to dy; the memory of dx may be used for the result."""
        alpha, x = self._scaled(self.x)
        return _through(dx, dy, self.g, x, alpha)


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
    # One update for all sequences makes one long sequence of the batch: a single product instead of B small ones.
    scores = signal.flatten(0, 1) @ first[0].mT
    if offset:
        scores += offset
    return torch.addmm(total.flatten(0, 1), scores, second[0], alpha=alpha).view_as(total)


class Updates:
    """All that has been learnt: updates of matrices and updates of vectors (`[R, D]`), by weight."""

    def __init__(self) -> None:
        self.matrices: dict[Weight, MatrixUpdate] = {}
        self.vectors: dict[Weight, Tensor] = {}
        self.moments: dict[Weight, Moments] = {}
        """Of the vectors."""
        self.steps_made: int | None = 0
        """Steps of descent behind them; None: unknown, and so is what an optimiser remembers of them."""

    def formed(self, weights: Iterable[Weight], row: int | None = None) -> dict[Weight, Tensor]:
        """The whole update of those of the weights that have one: `[R, ...]`, or that of one row."""
        found: dict[Weight, Tensor] = {}
        for weight in weights:
            if weight in self.vectors:
                found[weight] = self.vectors[weight] if row is None else self.vectors[weight][row]
            elif weight in self.matrices:
                found[weight] = self.matrices[weight].full() if row is None else self.matrices[weight].row(row)
        return found

    def of(self, weights: Container[Weight]) -> Updates:
        """The updates of these weights alone."""
        result = Updates()
        result.steps_made = None
        result.matrices = {weight: update for weight, update in self.matrices.items() if weight in weights}
        result.vectors = {weight: update for weight, update in self.vectors.items() if weight in weights}
        return result

    def scaled(self, factor: float) -> Updates:
        """The updates of a rate that is so many times as large; of one step alone, whose gradient knows no rate."""
        result = Updates()
        result.matrices = {weight: update.scaled(factor) for weight, update in self.matrices.items()}
        result.vectors = {weight: update * factor for weight, update in self.vectors.items()}
        return result

    def summed(self) -> Updates:
        """The same updates, each that is not left as factors summed up once, to be scaled again and again."""
        result = Updates()
        result.matrices = {weight: update.summed() for weight, update in self.matrices.items()}
        result.vectors = dict(self.vectors)
        return result

    def to_rescale(self, tokens: int, budget: int) -> Updates:
        """The same updates for many passes over so many tokens, at one rate after the other: each is formed once where
        that costs a pass less, as long as all that are formed stay below `budget` bytes."""
        result, room = Updates(), budget
        result.vectors = dict(self.vectors)
        for weight, update in self.matrices.items():
            outputs, inputs = weight.read().shape
            rank = sum(part.x.shape[1] for part in update.factors)
            size = max((len(part.x) for part in update.factors), default=0) * widened(weight.read()).nbytes
            if rank and size <= room and not rescaling_prefers_dual(inputs, outputs, rank=rank, tokens=tokens):
                update, room = update.formed_once(), room - size
            result.matrices[weight] = update
        return result

    @property
    def num_bytes(self) -> int:
        """Memory of all updates."""
        matrices = [tensor for update in self.matrices.values() for tensor in update.tensors()]
        return sum(tensor.nbytes for tensor in (*matrices, *self.vectors.values()))

    def settled(self) -> Updates:
        """The same updates, in the form that serves many short passes best."""
        result = Updates()
        result.matrices = {weight: update.settled(weight.read()) for weight, update in self.matrices.items()}
        result.vectors = dict(self.vectors)
        return result

    def to_go_on(self, rank: int, *, momentum: bool) -> Updates:
        """The same updates, for descent that goes on by factors of this rank; nothing of these is changed by it."""
        result = Updates()
        result.matrices = {
            weight: update.to_go_on(weight.read(), rank, momentum=momentum) for weight, update in self.matrices.items()
        }
        result.vectors = dict(self.vectors)
        result.moments = {weight: moments.copied() for weight, moments in self.moments.items()}
        result.steps_made = self.steps_made
        return result

    def forget(self, rows: Bool[Tensor, " R"]) -> None:
        """Take back what these sequences have learnt."""
        for update in (*self.matrices.values(), *self.moments.values()):
            update.forget(rows)
        self.vectors = {weight: _without(update, rows) for weight, update in self.vectors.items()}

    def reordered(self, rows: Tensor) -> Updates:
        """The updates of these sequences, in this order."""
        result = Updates()
        result.matrices = {weight: update.reordered(rows) for weight, update in self.matrices.items()}
        result.vectors = {weight: _rows(update, rows) for weight, update in self.vectors.items()}
        return result


@dataclass
class MatrixUpdate:
    """The update of one matrix: all its factors, or a part of them already summed up in `dense`."""

    dual: bool
    """Leave it as factors; otherwise the updated matrix is formed where it is used."""
    keep: bool = False
    """What is formed will be used again, so it is summed up once."""
    factors: list[Factors] = field(default_factory=list)
    dense: Float[Tensor, "R O I"] | None = None
    formed: Float[Tensor, "R O I"] | None = None
    """The updated matrix itself, kept where it will be used again."""
    own_bias: bool = False
    """The update of the bias is read, as from a file; otherwise factors imply it, which costs no sum of its own."""

    moments: Moments | None = None
    """Of an optimiser that is not a sum of multiples of gradients: every step is then summed up at once."""

    def step(self, x: Tensor, g: Tensor, rule: LearningRule, by: StepSize, rms: Tensor | None = None) -> None:
        """Descend by the gradient sum_t g_t x_t^T."""
        self.formed = None
        gradient = Factors(x, g, 0.0, 0.0)
        if rule.optimizer == "muon" and not rule.momentum:
            gradient = orthogonalised(gradient)
            self.own_bias = True
        elif not rule.is_linear or (rule.momentum and not self.dual):
            self.moments = self.moments or Moments()
            total = torch.bmm(widened(g).mT, widened(x))
            self.dense = self.moments.move(self.dense, total, rule, by, rms)
            self.own_bias = True
            return
        self.factors = [each.stepped(by) for each in self.factors] if rule.remembers else self.factors
        self.factors.append(gradient.stepped(by, own=1.0))
        # Summed up at once, so that memory does not grow with the steps.
        if not self.dual and self.keep:
            if self.dense is not None and by.decay:
                self.dense = by.decayed(self.dense)
            self.dense = self.full()
            self.factors = []

    def full(self) -> Float[Tensor, "R O I"]:
        """The whole update, formed."""
        total = self.dense
        for part in self.factors:
            total = part.formed() if total is None else part.added_to(total)
        assert total is not None, "an update holds at least one step"
        return total

    def matrix(self, weight: Float[Tensor, "O I"]) -> Float[Tensor, "R O I"]:
        """The updated matrix."""
        if self.formed is not None:
            return self.formed
        total = widened(weight)[None] if self.dense is None else weight + self.dense
        for part in self.factors:
            total = part.added_to(total.expand(len(part.x), -1, -1))
        # Only what all sequences share: kept for each of them it would be a copy of the model a sequence.
        if self.keep and len(total) == 1:
            self.formed = total
        return total

    def scaled(self, factor: float) -> MatrixUpdate:
        return MatrixUpdate(
            dual=self.dual,
            keep=self.keep,
            factors=[Factors(part.x, part.g, part.rate * factor) for part in self.factors],
            dense=None if self.dense is None else self.dense * factor,
            own_bias=self.own_bias,
        )

    def summed(self) -> MatrixUpdate:
        """Summed up, unless it stays as factors."""
        return self if self.dual else self.formed_once()

    def formed_once(self) -> MatrixUpdate:
        """Summed up, whatever its form was; the update of the bias is then read, which no factors imply."""
        return MatrixUpdate(dual=False, keep=self.keep, dense=self.full(), own_bias=True)

    def tensors(self) -> list[Tensor]:
        """All that it holds of what was learnt."""
        factors = [each for part in self.factors for each in (part.x, part.g)]
        return factors if self.dense is None else [*factors, self.dense]

    def settled(self, weight: Float[Tensor, "O I"]) -> MatrixUpdate:
        """Ready for many short passes, which are bound by what they read: factors where they are smaller than the
        matrix, otherwise the updated matrix, formed once."""
        outputs, inputs = weight.shape
        rank = sum(part.x.shape[1] for part in self.factors)
        if self.dense is None and smaller_as_factors(inputs, outputs, rank):
            return MatrixUpdate(dual=True, factors=self.factors, own_bias=self.own_bias)
        return MatrixUpdate(dual=False, keep=True, formed=self.matrix(weight))

    def to_go_on(self, weight: Float[Tensor, "O I"], rank: int, *, momentum: bool) -> MatrixUpdate:
        """A copy that descends further by factors of this rank, in the form that is then smaller."""
        outputs, inputs = weight.shape
        held = sum(part.x.shape[1] for part in self.factors)
        # The bias is read: what factors imply of it is wrong once an update of the bias has been taken away.
        if self.dual and smaller_as_factors(inputs, outputs, held + rank):
            return MatrixUpdate(dual=True, keep=True, factors=list(self.factors), own_bias=True)
        return MatrixUpdate(
            dual=False, keep=True, dense=self.full(), moments=self.formed_moments(momentum), own_bias=True
        )

    def formed_moments(self, momentum: bool) -> Moments | None:
        """A copy of what an optimiser remembers; with momentum factors carry it as coefficients."""
        if not (momentum and self.factors):
            return None if self.moments is None else self.moments.copied()
        moments = Moments()
        # Factors are subtracted, a velocity is a sum.
        parts = [replace(part, rate=part.velocity).formed() for part in self.factors]
        moments.velocity = -sum(parts[1:], parts[0])
        return moments

    def reordered(self, rows: Tensor) -> MatrixUpdate:
        return MatrixUpdate(
            dual=self.dual,
            keep=self.keep,
            factors=[part.reordered(rows) for part in self.factors],
            dense=None if self.dense is None else _rows(self.dense, rows),
            formed=None if self.formed is None else _rows(self.formed, rows),
            own_bias=self.own_bias,
        )

    def forget(self, rows: Bool[Tensor, " R"]) -> None:
        """Take back what these sequences have learnt."""
        self.factors = [replace(part, g=_without(part.g, rows)) for part in self.factors]
        if self.moments is not None:
            self.moments.forget(rows)
        self.dense, self.formed = None if self.dense is None else _without(self.dense, rows), None

    def row(self, row: int) -> Float[Tensor, "O I"]:
        """The whole update of one sequence."""
        # Cut before anything is formed: one matrix, not one a sequence.
        parts = [part.reordered(torch.tensor([row])) for part in self.factors]
        dense = None if self.dense is None else self.dense[row : row + 1]
        return MatrixUpdate(dual=self.dual, factors=parts, dense=dense).full()[0]


def orthogonalised(gradient: Factors) -> Factors:
    """The factors of muon's direction: g^T x with singular values near 1, without forming it."""
    x, g = widened(gradient.x), widened(gradient.g)
    core = polar_core(x @ x.mT, g @ g.mT)
    factor = muon_factor((g.shape[-1], x.shape[-1]))
    # In the model's own dtype, as all factors are.
    return replace(gradient, g=((core.mT @ g) * factor).to(gradient.g.dtype))


def _without(x: Tensor, rows: Tensor) -> Tensor:
    """Zeros in these rows."""
    return x.masked_fill(rows.to(x.device).view(-1, *(1 for _ in x.shape[1:])), 0)


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    """Rows in a new order; what all sequences share stays as it is."""
    return x if len(x) == 1 and len(rows) > 1 else x.index_select(0, rows.to(x.device))
