"""Layers that act within a token: linear maps, gated units, activations, norms, the feed-forward over the vocabulary.

Each reads text slots and adds what it computes to text slots. All of them are zero where what they read is zero, so
that prefix tokens, whose text slots are zero, keep them so: what is not zero at zero is multiplied by the text flag.
B batch, T tokens, W width of a slot, N pieces of a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from tintformer.network.stream import Stream
from tintformer.simulator.primitives.tokenwise import Activation, FeedForward, Gated, GroupNorm, constant

if TYPE_CHECKING:
    from tintformer.execution.executor import Stage
    from tintformer.simulator.regions import Phase


@dataclass(frozen=True, eq=False)
class Quantity:
    """A value one slot wide: what the compiler knows of a slot between its first write and its last read."""

    name: str


class Layer(nn.Module):
    """A function of the stream; what it reads and writes are quantities, which the compiler gives slots."""

    stage: Stage
    op: str
    phase: Phase
    """The direction of the op that it is part of."""

    def __init__(self, reads: Sequence[Quantity], writes: Sequence[Quantity]):
        super().__init__()
        self.reads, self.writes = tuple(reads), tuple(writes)
        self.read_slots: list[int] = []
        self.write_slots: list[int | None] = []

    def place(self, slots: Mapping[Quantity, int]) -> None:
        """Take the slots of what it reads and writes; what nobody reads has none and is not written."""
        self.read_slots = [slots[each] for each in self.reads]
        self.write_slots = [slots.get(each) for each in self.writes]

    def forward(self, e: Stream) -> Stream:
        raise NotImplementedError


class TokenLayer(Layer):
    """e + f(e), token by token."""

    def forward(self, e: Stream) -> Stream:
        return e.add(self.write_slots, self.compute(*e.read(self.read_slots)))

    def compute(self, *regions: Tensor) -> Sequence[Tensor]:
        """What is added to each written slot."""
        raise NotImplementedError


@dataclass(frozen=True)
class Term:
    """Adds a multiple or a map of what is read to what is written."""

    write: int
    read: int
    factor: float = 1.0
    matrix: int | None = None
    """Number of the matrix; None: the identity."""


class LinearMap(TokenLayer):
    """Sums of multiples and maps of slots: residual connections, differences, means, copies; also clears slots."""

    def __init__(
        self,
        reads: Sequence[Quantity],
        writes: Sequence[Quantity],
        terms: Sequence[Term],
        matrices: Sequence[Tensor] = (),
        scale: float = 1.0,
        num_non_zero: Sequence[int] = (),
    ):
        """`num_non_zero`: of each matrix, which may have no data to count them in."""
        super().__init__(reads, writes)
        self.terms, self.scale, self.num_non_zero = tuple(terms), scale, tuple(num_non_zero)
        assert len(self.num_non_zero) == len(matrices), "every matrix says how many entries are not zero"
        # A parameter is taken as it is: layers of one module share its maps.
        shared = (each if isinstance(each, nn.Parameter) else constant(each.detach()) for each in matrices)
        self.matrices = nn.ParameterList(shared)

    def compute(self, *regions: Tensor) -> Sequence[Tensor]:
        sums: dict[int, Tensor] = {}
        for term in self.terms:
            x = regions[term.read]
            if term.matrix is not None:
                matrix = self.matrices[term.matrix]
                y = x[..., : matrix.shape[1]] @ matrix.mT
                x = functional.pad(y, (0, x.shape[-1] - y.shape[-1]))
            x = x if term.factor == 1.0 else x * term.factor
            sums[term.write] = sums[term.write] + x if term.write in sums else x
        # Scaled at the end, so that a difference of equal numbers is exactly zero.
        return [sums[i] if self.scale == 1.0 else sums[i] * self.scale for i in range(len(self.write_slots))]


class WeightMap(Layer):
    """Momentum and decay at the end of a step: a linear map within prefix tokens, the same one for all of them.

    Weights get multiples of the velocity and of their distance from the base, the velocity is multiplied.
    """

    def __init__(self, blocks: Sequence[int], *, from_velocity: float, momentum: float, decay: float):
        """`blocks`: the ops that have moved; in all others velocity and distance are zero."""
        super().__init__((), ())
        self.blocks = tuple(blocks)
        self.from_velocity, self.momentum, self.decay = from_velocity, momentum, decay

    def forward(self, e: Stream) -> Stream:
        for block in self.blocks:
            weights, faster, terms = e.prefix[block], None, []
            if self.decay:
                # A difference first: what has not moved is not moved by rounding.
                terms.append((e.base[block] - weights) * self.decay)
            if self.momentum:
                terms.append(e.velocity[block] * self.from_velocity)
                faster = e.velocity[block] * (self.momentum - 1)
            e = e.add_to_prefix(block, terms[0] if len(terms) == 1 else terms[0] + terms[1], faster)
        return e


class GatedUnit(TokenLayer):
    """left * s(right), slot by slot; s is the identity or the derivative of an activation."""

    def __init__(self, left: Sequence[Quantity], right: Sequence[Quantity], writes: Sequence[Quantity], unit: Gated):
        super().__init__((*left, *right), writes)
        self.unit = unit

    def compute(self, *regions: Tensor) -> Sequence[Tensor]:
        half = len(regions) // 2
        return [self.unit(left, right) for left, right in zip(regions[:half], regions[half:], strict=True)]


class ActivationUnit(TokenLayer):
    """s(x), slot by slot."""

    def __init__(self, reads: Sequence[Quantity], writes: Sequence[Quantity], unit: Activation):
        super().__init__(reads, writes)
        self.unit = unit

    def compute(self, *regions: Tensor) -> Sequence[Tensor]:
        return [self.unit(x) for x in regions]


class Normalise(TokenLayer):
    """A group norm of the pieces of a value, and the factors that it hands out, which are those of text tokens."""

    def __init__(self, flag: Quantity, reads: Sequence[Quantity], writes: Sequence[Quantity], unit: GroupNorm):
        super().__init__((flag, *reads), writes)
        self.unit = unit

    def compute(self, *regions: Tensor) -> Sequence[Tensor]:
        flag, *pieces = regions
        normalised, handed = self.unit(torch.stack(pieces, dim=1))
        # The norm's epsilon is not zero where the group is: only the text may say so.
        handed = handed * flag[:, None, :, :1]
        handed = functional.pad(handed, (0, flag.shape[-1] - handed.shape[-1]))
        return [*normalised.unbind(1), *handed.unbind(1)]


class Vocabulary(TokenLayer):
    """E^T s(E x + b): the feed-forward layer over the vocabulary, for text tokens."""

    def __init__(self, flag: Quantity, read: Quantity, write: Quantity, unit: FeedForward):
        super().__init__((flag, read), (write,))
        self.unit = unit

    def compute(self, *regions: Tensor) -> Sequence[Tensor]:
        flag, x = regions
        rows = self.unit(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return [rows * flag[..., :1]]
