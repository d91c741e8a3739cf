"""A small example for figures: what its prefix tokens hold, and what the heads of its linear modules do.

Where weights sit is seen by writing a matrix whose entries name themselves; what a head does, by sending it one
coordinate after the other. Both are read from the tensors of a built simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator import prefix
from tintformer.simulator.layouts import Layout
from tintformer.simulator.modules.linear import by_heads, from_heads
from tintformer.simulator.primitives.attention import Attention, Joined, Port
from tintformer.simulator.simulator import Simulator, build

STACK = 3
OP = "blocks.0.output"
"""A square matrix with a bias."""


@cache
def example(layout: str) -> Simulator:
    """Entry (i, c) of the example's matrix is (i + 1) + (c + 1) / 1000; its bias counts as column D."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=8, n_positions=16, n_embd=16, n_layer=1, n_head=8, bos_token_id=0, eos_token_id=0)
    with torch.random.fork_rng(devices=[]):
        model: Any = GPT2LMHeadModel(config).double().eval()
    rows, columns = torch.arange(1.0, 17.0, dtype=torch.float64), torch.arange(1.0, 18.0, dtype=torch.float64)
    names = rows[:, None] + columns / 1000
    with torch.no_grad():
        output = model.transformer.h[0].attn.c_proj
        output.weight.copy_(names[:, :16].T)
        output.bias.copy_(names[:, 16])
    return build(model, LearningRule(learning_rate=0.1), layout=layout, stack=STACK)


def example_slots(layout: str) -> tuple[Int[Tensor, "K S Dslot"], Int[Tensor, "K S Dslot"]]:
    """The row and the column that stand at each coordinate of each slot of each prefix token; -1 where none does."""
    g = example(layout).geometry
    return _named(prefix.tokens(_example_prefix(layout), g)[0, 0].view(g.num_prefix, g.stack, g.dim_slot))


def _example_prefix(layout: str) -> Tensor:
    simulator = example(layout)
    tokens = simulator.prefix_of(simulator.wired[OP].op)
    assert tokens is not None
    return tokens


def _named(content: Tensor) -> tuple[Tensor, Tensor]:
    """The rows and columns that entries name."""
    rows = content.floor().long() - 1
    return rows, torch.where(rows < 0, -1, ((content - content.floor()) * 1000).round().long() - 1)


@dataclass(frozen=True, kw_only=True)
class HeadWork:
    """What the heads of a linear module touch: input and output coordinates, and entries of the matrix."""

    phase: str
    text: str
    writes: str
    """What of the three below is written; the other two are read."""
    columns: Bool[Tensor, "H Dslot"]
    """Coordinates of the input that a head reads, or of its gradient that it writes."""
    rows: Bool[Tensor, "H Dslot"]
    """Coordinates of the output or of its gradient."""
    block: Bool[Tensor, "H Dslot Dslot"]
    """Entries of the matrix that it has in its prefix tokens."""


def head_work(layout: str) -> list[HeadWork]:
    """Forward, backward and descent of the example's linear module, from the weights of their factors."""
    simulator = example(layout)
    modules = simulator.modules_of(simulator.wired[OP].op)
    maps = Layout(simulator.geometry)
    ahead, back, descent = (module.attention for module in modules.by_phase().values())
    assert isinstance(ahead, Attention) and isinstance(back, Attention) and isinstance(descent, Attention)
    block = _blocks(layout)
    every_part = torch.eye(simulator.geometry.head_dim, dtype=torch.float64)
    return [
        HeadWork(
            phase="forward",
            text="x to W x",
            writes="rows",
            columns=_seen(ahead.query, maps),
            rows=_lands(ahead, ahead.value({})[0, 0, 0, 0], maps),
            block=block,
        ),
        HeadWork(
            phase="backward",
            text="dy to W\u1d40 dy",
            writes="columns",
            columns=_lands(back, every_part, maps),
            rows=_seen(back.query, maps),
            block=block,
        ),
        HeadWork(
            phase="descent",
            text="dy and x to W",
            writes="block",
            columns=_seen(descent.value, maps),
            rows=_seen(descent.key, maps),
            block=block,
        ),
    ]


def _seen(port: Port | Joined, maps: Layout) -> Bool[Tensor, "H Dslot"]:
    """The coordinates of its region that a port brings to each head: each is sent alone."""
    assert isinstance(port, Port)
    alone = torch.eye(maps.geometry.dim_slot, dtype=torch.float64)[None, None]
    heads = port({port.reads[0]: by_heads(alone, maps)})
    return (heads != 0).any(-1)[0, 0, :, 0]


def _lands(attention: Attention, values: Tensor, maps: Layout) -> Bool[Tensor, "H Dslot"]:
    """The coordinates of the signal that each head writes, if it gathers the given values."""
    g = maps.geometry
    landed: list[Tensor] = []
    for head in range(g.num_heads):
        heads = torch.zeros(1, 1, g.num_heads, 1, *values.shape, dtype=torch.float64)
        heads[:, :, head] = values
        for factor in attention.output:
            heads = factor(heads)
        landed.append((from_heads(heads, maps) != 0).any(-2)[0, 0])
    return torch.stack(landed)


def _blocks(layout: str) -> Bool[Tensor, "H Dslot Dslot"]:
    """The entries of the matrix that each head has in its prefix tokens; column D is the bias."""
    g = example(layout).geometry
    rows, columns = _named(_example_prefix(layout)[0, 0, :, 0])
    found = torch.zeros(g.num_heads, g.dim_slot, g.dim_slot, dtype=torch.bool)
    head, token, coordinate = (rows >= 0).nonzero(as_tuple=True)
    found[head, rows[head, token, coordinate], columns[head, token, coordinate]] = True
    return found
