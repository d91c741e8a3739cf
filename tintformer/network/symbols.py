"""Values without numbers: what the simulator's modules compute with while they are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tintformer.network.layers import Quantity
from tintformer.simulator.regions import Cut

if TYPE_CHECKING:
    from tintformer.network.compiler import Compiler


class Symbol:
    """A value in pieces, each a quantity: a stream of the simulator, symbolically."""

    def __init__(self, compiler: Compiler, quantities: Sequence[Quantity], cut: Cut | None = None):
        self.compiler, self.quantities, self.cut = compiler, tuple(quantities), cut
        """`cut` says how it is cut into pieces, if it is a value of the auxiliary."""

    def __len__(self) -> int:
        return len(self.quantities)

    def record(self, part: Any, inputs: tuple[Any, ...]) -> Any:
        """Have a part of the simulator written down instead of run."""
        return self.compiler.record(part, inputs)

    # What modules do between primitives: they add, sum over pieces and spread one piece over all.

    def __add__(self, other: Symbol) -> Symbol:
        return self.compiler.sum_of((self, other))

    def sum(self, dim: int, *, keepdim: bool) -> Symbol:
        assert dim == 1 and keepdim, "only pieces are summed"
        return self.compiler.sum_pieces(self)

    def expand_as(self, other: Symbol) -> Symbol:
        return Symbol(self.compiler, self.quantities * (len(other) // len(self)))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple[Any, ...], kwargs: Any = None) -> Symbol:
        assert function is torch.add, f"{function} is no part of a network"
        left, right = args
        return left + right


@dataclass(frozen=True, eq=False)
class SymbolicPrefix:
    """The prefix tokens of an op."""

    compiler: Compiler
    block: int

    def record(self, part: Any, inputs: tuple[Any, ...]) -> Any:
        return self.compiler.record(part, inputs)
