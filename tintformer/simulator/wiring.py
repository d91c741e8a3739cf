"""How values are cut along the auxiliary, and which ops share a module: all that building needs to know of the walk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Activation, Add, Attend, Fork, Linear, Move, Norm, Product, Step
from tintformer.simulator.regions import Cut, Region

ModuleOp = Linear | Norm | Activation | Product | Attend
"""What a module stands for; sums need none, the residual stream adds."""


@dataclass(frozen=True, kw_only=True)
class WiredOp:
    """An op, the cuts of its values, and the role under which modules are shared."""

    op: ModuleOp
    into: Cut
    out: Cut
    keys: Cut
    """Of an attention: the cut of its keys and values; elsewhere that of the input."""
    role: str
    """Ops of one role have the same module; linears in the branches of one fork share a role (paper: section
    "Parameter sharing")."""
    block: int | None
    """Number of the block; None for what stands before the first or after the last."""

    def cut_of(self, region: Region) -> Cut:
        """The cut of what a region of its modules holds."""
        return {"input": self.into, "output": self.out, "key": self.keys}[region.follows]


def wire(auxiliary: Auxiliary, width: int) -> Iterator[WiredOp]:
    """Every op of the auxiliary in the order of the forward pass, pieces at most `width` wide."""
    yield from _Wirer(width, None).embedding(auxiliary)
    cut = Cut(auxiliary.stream_width, width)
    for number, block in enumerate(auxiliary.blocks):
        cut, wired = _Wirer(width, number).steps(block, cut, None)  # the layers of a perceptron differ in width
        yield from wired
    _, wired = _Wirer(width, None).steps(auxiliary.final, cut, None)
    yield from wired


class _Wirer:
    def __init__(self, width: int, block: int | None):
        self.width, self.block = width, block

    def embedding(self, auxiliary: Auxiliary) -> Iterator[WiredOp]:
        embedding = auxiliary.embedding
        cut = Cut(embedding.tokens.source.shape[1], self.width)
        for op in (embedding.projection, embedding.norm):
            if op is not None:
                cut, wired = self.steps((op,), cut, None)
                yield from wired

    def steps(
        self, steps: Sequence[Step], cut: Cut, heads: Cut | None, role: str | None = None
    ) -> tuple[Cut, list[WiredOp]]:
        """The cut behind the steps, and their wired ops; `heads` is the cut that the last linear must produce."""
        wired: list[WiredOp] = []
        for step in steps:
            match step:
                case Fork():
                    cut, inner = self.fork(step, cut)
                    wired += inner
                case Linear():
                    out = heads or Cut(step.weight.read().shape[0], self.width)
                    wired.append(self._wired(step, cut, out, role or step.name))
                    cut = out
                case Norm() | Activation():
                    wired.append(self._wired(step, cut, cut, step.name))
                case Move():
                    raise AssertionError("a model that is spread over devices is refused before it is wired")
        return cut, wired

    def fork(self, fork: Fork, cut: Cut) -> tuple[Cut, list[WiredOp]]:
        wired: list[WiredOp] = []
        join = fork.join
        if isinstance(join, Attend):
            step = max(1, self.width // join.head_dim) * join.head_dim
            query, key = (Cut(heads * join.head_dim, step) for heads in (join.num_heads, join.num_key_value_heads))
            for branch, out in zip(fork.branches, (query, key, key), strict=True):
                wired += self.steps(branch, cut, out, f"{join.name}.linear")[1]
            return query, [*wired, self._wired(join, query, query, join.name, keys=key)]
        out = cut
        for branch in fork.branches:
            role = f"{join.name}.linear" if isinstance(join, Product) else None
            out, inner = self.steps(branch, cut, None, role)  # all branches of a sum or a product end alike
            wired += inner
        if not isinstance(join, Add):
            wired.append(self._wired(join, out, out, join.name))
        return out, wired

    def _wired(self, op: ModuleOp, into: Cut, out: Cut, role: str, keys: Cut | None = None) -> WiredOp:
        return WiredOp(op=op, into=into, out=out, keys=keys or into, role=role, block=self.block)
