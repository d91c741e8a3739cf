"""The attention of a linear layer without the products that only select: the same sums as one product with its matrix.

One-hot positions, and the maps that copy parts of a signal to heads, are Kronecker deltas; a product with a delta
renames an index. With all of them renamed, the directions of a linear layer in the lean layout are

    forward    y[t, r]         = sum over n, c of x[n, t, c] W[n, r, c]
    backward   dx[n, t, c]     = sum over r    of dy[t, r] W[n, r, c]
    descent    change[n, r, c] = sum over t    of dy[t, r] (-eta x[n, t, c])

with W the prefix as a matrix, as its tokens stand in memory: row r = (m, j, s) is slot s of token j of output piece m,
column c = (q, i) is coordinate i of part q. That the tables are deltas is not assumed: they are looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from tintformer.simulator.primitives.attention import Heads, Stream

Direction = Literal["forward", "backward", "descent"]
Table = tuple[Tensor, Literal["one-hot", "switches", "columns", "scaled columns", "rows"]]
"""A table of an attention, and what it must be; maps of the output are those of a port, transposed."""


class MatrixProduct:
    """What the attention of a linear module comes to where its tables are those of the lean layout."""

    def __init__(self, direction: Direction, stack: int):
        self.direction: Direction = direction
        self.stack = stack
        self._versions: list[tuple[int, int]] = []
        self._selects = False

    def replaces(self, attention: Any) -> bool:
        """Whether every table of the attention selects; looked at again whenever one of them has changed."""
        tables = self._tables(attention)
        if tables[0][0].is_meta:  # shapes alone have no values, and no work either
            return True
        versions = [(table.data_ptr(), 0 if table.is_inference() else table._version) for table, _ in tables]
        if versions != self._versions:
            self._versions, self._selects = versions, all(self._is(*table) for table in tables)
        return self._selects

    def __call__(self, attention: Any, asking: Stream, answering: Stream) -> Heads:
        """The attention's output, from the regions that its ports read."""
        query, key, value = attention.query, attention.key, attention.value
        match self.direction:
            case "forward":
                return self._forward(_columns(_read(query, asking)), _read(key, answering))
            case "backward":
                return self._backward(_rows(_read(query, asking)), _read(value, answering))
            case "descent":
                dy, x = _read(key, answering), _read(value, answering)
                # Minus the learning rate is a factor of the value's map, which otherwise only copies.
                return self._descent(_rows(dy), _columns(x) * _weight(value)[0, 0, 0], num_out=dy.shape[3])

    def _forward(self, x: Float[Tensor, "B N T c"], prefix: Heads) -> Heads:
        matrix = self._matrix(prefix)
        # Piece by piece: for one product, the pieces of the matrix would have to be copied side by side.
        y = x[:, 0] @ _one_or_many(matrix[:, 0]).mT
        for piece in range(1, x.shape[1]):
            y += x[:, piece] @ _one_or_many(matrix[:, piece]).mT
        num_out, num_prefix = prefix.shape[3:5]
        return y.unflatten(-1, (num_out, num_prefix, self.stack)).permute(0, 4, 2, 1, 3).unsqueeze(1)

    def _backward(self, dy: Float[Tensor, "B T r"], prefix: Heads) -> Heads:
        matrix = self._matrix(prefix)
        dx = torch.stack([dy @ _one_or_many(matrix[:, piece]) for piece in range(matrix.shape[1])], dim=1)
        return dx.unflatten(-1, (self.stack, -1)).transpose(2, 3).unsqueeze(3)

    def _descent(self, dy: Float[Tensor, "B T r"], x: Float[Tensor, "B N T c"], *, num_out: int) -> Heads:
        tokens = (dy.mT.unsqueeze(1) @ x).unflatten(2, (num_out, -1, self.stack))
        heads = tokens.flatten(4, 5).unflatten(4, (self.stack**2, -1))
        return heads.permute(0, 1, 4, 2, 3, 5)

    def _matrix(self, prefix: Heads) -> Float[Tensor, "B N r c"]:
        tokens = prefix.permute(0, 1, 3, 4, 2, 5)  # N, M, K, H, d: their order in memory, so that nothing is copied
        return tokens.unflatten(4, (self.stack, -1)).flatten(5, 6).flatten(2, 4)

    def _tables(self, attention: Any) -> list[Table]:
        query, key, value, output = attention.query, attention.key, attention.value, attention.output
        match self.direction:
            case "forward":
                return [(_weight(query), "columns"), *_positions(value), (output[0].weight.mT, "rows")]
            case "backward":
                return [(_weight(query), "rows"), *_positions(key), (output[0].weight.mT, "columns")]
            case "descent":
                return [(_weight(key), "rows"), *_positions(query), (_weight(value), "scaled columns")]

    def _is(self, table: Tensor, kind: str) -> bool:
        one = torch.eye(table.shape[-1], dtype=table.dtype, device=table.device)
        match kind:
            case "switches":
                return bool((table == 1).all())
            case "one-hot":
                return torch.equal(table, one)
            case "rows":
                return torch.equal(table, one.repeat_interleave(self.stack, 0)[None])
            case _:
                factor = table[0, 0, 0] if kind == "scaled columns" else 1
                return torch.equal(table, (factor * one.repeat(self.stack, 1))[None])


def _read(port: Any, stream: Stream) -> Tensor:
    """The one region of a port."""
    return stream[port.reads[0]]


def _weight(port: Any) -> Tensor:
    """The map of a port across heads."""
    return port.factors[0].weight


def _positions(port: Any) -> list[Table]:
    positional = port.positional
    return [(positional.table, "one-hot"), (positional.switches, "switches")]


def _columns(heads: Float[Tensor, "B N q 1 T i"]) -> Float[Tensor, "B N T c"]:
    return heads.squeeze(3).transpose(2, 3).flatten(3)


def _rows(heads: Float[Tensor, "B 1 s M T j"]) -> Float[Tensor, "B T r"]:
    return heads.squeeze(1).permute(0, 3, 2, 4, 1).flatten(2)


def _one_or_many(matrices: Float[Tensor, "B r c"]) -> Tensor:
    """A matrix that all sequences share as one: it is then multiplied once, for all of their tokens."""
    return matrices[0] if len(matrices) == 1 else matrices
