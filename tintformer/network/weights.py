"""The auxiliary's weights as tokens of the one sequence, and back.

The simulator holds an op's prefix by heads, `[1, N, H, M, K, d]`; here it is a block of tokens, `[1, tokens, S, W]`:
those of a matrix piece by piece, S stacked rows each, and a norm's scale and bias as a token each, in the first slot.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from tintformer.simulator.geometry import Geometry

Prefix = Float[Tensor, "B N H M K d"]
Block = Float[Tensor, "B tokens S W"]


def to_block(prefix: Prefix, g: Geometry) -> Block:
    """The tokens of an op."""
    batch, num_in, _, num_out, num_tokens, dim = prefix.shape
    if _is_rows(prefix.shape, g):
        rows = prefix.reshape(batch, -1, 1, g.dim_slot)
        return functional.pad(rows, (0, 0, 0, g.stack - 1))
    cut = prefix.view(batch, num_in, g.stack, g.shards, num_out, num_tokens, dim)
    return cut.permute(0, 4, 1, 5, 2, 3, 6).reshape(batch, -1, g.stack, g.dim_slot)


def from_block(block: Block, shape: tuple[int, ...], g: Geometry) -> Prefix:
    """The prefix of an op as the simulator holds it; `shape` is that of its prefix before any step."""
    _, num_in, _, num_out, num_tokens, dim = shape
    if _is_rows(shape, g):
        return block[:, :, 0].reshape(-1, *shape[1:])
    cut = block.view(-1, num_out, num_in, num_tokens, g.stack, g.shards, dim)
    return cut.permute(0, 2, 4, 5, 1, 3, 6).reshape(-1, *shape[1:])


def _is_rows(shape: tuple[int, ...], g: Geometry) -> bool:
    """Whether it is a norm's: its rows are as wide as a slot, and none is cut into the heads of a linear layer."""
    return shape[2] == 1 and g.num_heads > 1
