"""How values are cut along the auxiliary, and which ops share a module: all that building needs to know of the walk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Activation, Add, Attend, Fork, Linear, Move, Norm, Product, Step
from tintformer.simulator.geometry import Cut

Placed = Linear | Norm | Activation | Product | Attend
"""What a module stands for; sums need none, the residual stream adds."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """An op, the cuts of its values, and the role under which modules are shared."""

    op: Placed
    into: Cut
    out: Cut
    keys: Cut
    """Of an attention: the cut of its keys and values; elsewhere that of the input."""
    role: str
    """Ops of one role have the same module; linears in the branches of one fork share a role (paper: section
    "Parameter sharing")."""
    block: int | None
    """Number of the block; None for what stands before the first or after the last."""


def places(auxiliary: Auxiliary, width: int) -> Iterator[Place]:
    """Every op of the auxiliary in the order of the forward pass, pieces at most `width` wide."""
    yield from _Wirer(width, None).embedding(auxiliary)
    stream = Cut(auxiliary.stream_width, width)
    for number, block in enumerate(auxiliary.blocks):
        _, placed = _Wirer(width, number).steps(block, stream, None)
        yield from placed
    _, placed = _Wirer(width, None).steps(auxiliary.final, stream, None)
    yield from placed


class _Wirer:
    def __init__(self, width: int, block: int | None):
        self.width, self.block = width, block

    def embedding(self, auxiliary: Auxiliary) -> Iterator[Place]:
        embedding = auxiliary.embedding
        cut = Cut(embedding.tokens.source.shape[1], self.width)
        for op in (embedding.projection, embedding.norm):
            if op is not None:
                cut, placed = self.steps((op,), cut, None)
                yield from placed

    def steps(
        self, steps: Sequence[Step], cut: Cut, heads: Cut | None, role: str | None = None
    ) -> tuple[Cut, list[Place]]:
        """The cut behind the steps, and their places; `heads` is the cut that the last linear must produce."""
        placed: list[Place] = []
        for step in steps:
            match step:
                case Fork():
                    cut, inner = self.fork(step, cut)
                    placed += inner
                case Linear():
                    out = heads or Cut(step.weight.read().shape[0], self.width)
                    placed.append(self._place(step, cut, out, role or step.name))
                    cut = out
                case Norm() | Activation():
                    placed.append(self._place(step, cut, cut, step.name))
                case Move():
                    raise AssertionError("a model that is spread over devices is refused before it is wired")
        return cut, placed

    def fork(self, fork: Fork, cut: Cut) -> tuple[Cut, list[Place]]:
        placed: list[Place] = []
        join = fork.join
        if isinstance(join, Attend):
            step = max(1, self.width // join.head_dim) * join.head_dim
            query, key = (Cut(heads * join.head_dim, step) for heads in (join.num_heads, join.num_key_value_heads))
            for branch, out in zip(fork.branches, (query, key, key), strict=True):
                placed += self.steps(branch, cut, out, f"{join.name}.linear")[1]
            return query, [*placed, self._place(join, query, query, join.name, keys=key)]
        out = cut
        for branch in fork.branches:
            role = f"{join.name}.linear" if isinstance(join, Product) else None
            out, inner = self.steps(branch, cut, None, role)  # all branches of a sum or a product end alike
            placed += inner
        if not isinstance(join, Add):
            placed.append(self._place(join, out, out, join.name))
        return out, placed

    def _place(self, op: Placed, into: Cut, out: Cut, role: str, keys: Cut | None = None) -> Place:
        return Place(op=op, into=into, out=out, keys=keys or into, role=role, block=self.block)
