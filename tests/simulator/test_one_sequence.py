# pyright: basic
"""The paper's picture, taken literally: prefix and text tokens in ONE sequence, one dense attention over all of it.

The modules keep weights and text apart and never write zeros out. Here every projection is a dense matrix over whole
embeddings, assembled from the module's own factors, every token asks and answers, a mask says who sees whom, and a
gate of zeros and ones says who is written. Both must give the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tintformer.auxiliary.ops import Linear, Weight
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator import prefix
from tintformer.simulator.geometry import Geometry, LayoutName
from tintformer.simulator.layouts import Layout
from tintformer.simulator.modules.linear import LinearBackward, LinearDescent, LinearForward
from tintformer.simulator.modules.movement import Movement
from tintformer.simulator.primitives.attention import Attention, Positional, linear
from tintformer.simulator.primitives.tokenwise import DimensionWise
from tintformer.simulator.regions import PREFIX, Cut, Region
from tintformer.simulator.wiring import WiredOp

RULE = LearningRule(learning_rate=0.03)
NUM_TEXT = 5
TOLERANCE = {"rtol": 0, "atol": 1e-12}


@dataclass
class Setting:
    """A linear layer with a bias in one piece: how it is wired, its prefix tokens, and text for it."""

    geometry: Geometry
    op: Any
    wired: WiredOp
    prefix: Tensor
    x: Tensor
    dy: Tensor

    def embed(self, text: dict[Region, Tensor]) -> Tensor:
        """The one sequence: K prefix tokens, then the text in the regions of a module, all `dim_sim` wide."""
        g = self.geometry
        tokens = torch.zeros(NUM_TEXT, g.dim_sim, dtype=torch.float64)
        for region, value in text.items():
            tokens[:, coordinates(region, g)] = value[0, 0]
        rows = prefix.tokens(self.prefix, g)[0, 0]
        rows = torch.nn.functional.pad(rows, (0, g.dim_sim - rows.shape[-1]))
        return torch.cat((rows, tokens))


def coordinates(region: Region, g: Geometry) -> slice:
    """Where a region stands in an embedding."""
    return slice(region.slot * g.dim_slot, (region.slot + 1) * g.dim_slot)


def make_setting(layout: LayoutName, stack: int, shards: int, slots: int) -> Setting:
    g = Geometry(layout=layout, dim_aux=10, stack=stack, shards=shards, slots=slots, max_tokens=16)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    op = Linear(name="layer", weight=Weight(name="w", source=random(7, 10)), bias=Weight(name="b", source=random(7)))
    into, out = Cut(10, 10), Cut(7, 10)
    wired = WiredOp(op=op, into=into, out=out, keys=into, role="layer", block=0)
    x, dy = torch.zeros(2, 1, 1, NUM_TEXT, g.dim_slot, dtype=torch.float64)
    x[..., :10], dy[..., :7] = random(NUM_TEXT, 10), random(NUM_TEXT, 7)
    tokens = prefix.write(wired, g, torch.float64)
    assert tokens is not None
    return Setting(g, op, wired, tokens, x, dy)


def dense(factors: Iterable[Any], width: int) -> Tensor:
    """The product of factors as one matrix over all coordinates of all heads."""
    matrix = torch.eye(width, dtype=torch.float64)
    for factor in factors:
        weight = factor.weight
        if isinstance(factor, DimensionWise):
            head_dim = len(matrix) // weight.shape[2]
            blocks = torch.diag_embed(weight.expand(head_dim, -1, -1).permute(1, 2, 0))  # H_out, H_in, d, d
            full = blocks.transpose(1, 2).reshape(weight.shape[1] * head_dim, -1)
        else:
            full = torch.block_diag(*weight)
        matrix = full @ matrix
    return matrix


def projection(port: Any, g: Geometry) -> Tensor:
    """What a port reads of an embedding: `[heads * width, dim_sim]`."""
    if not port.reads:
        return torch.zeros(g.num_heads * g.row_dim, g.dim_sim, dtype=torch.float64)
    (region,) = port.reads
    if region == PREFIX:  # prefix tokens have their rows in the first S slots
        return dense(port.factors, g.stack * g.dim_slot) @ columns(0, g.stack * g.dim_slot, g)
    if g.layout == "paper":  # its maps are over whole embeddings as they stand
        assert port.first_head == region.slot * g.shards
        return dense(port.factors, g.dim_sim)
    return dense(port.factors, g.dim_slot) @ columns(region.slot * g.dim_slot, g.dim_slot, g)


def columns(start: int, number: int, g: Geometry) -> Tensor:
    """The matrix that picks some coordinates of an embedding."""
    return torch.eye(g.dim_sim, dtype=torch.float64)[start : start + number]


def positional(port: Any, g: Geometry, num_tokens: int) -> Tensor:
    """The positional term of a port for every token of the sequence, from its one-hot position: `[tokens, H * d]`."""
    one_hot = torch.eye(num_tokens, dtype=torch.float64)
    terms = [term for term in (port.positional, *port.idle) if isinstance(term, Positional)]
    width = terms[0].table.shape[1] if terms else g.head_dim
    total = torch.zeros(num_tokens, g.num_heads, width, dtype=torch.float64)
    for term in terms:
        missing = max(0, num_tokens - len(term.table))
        rows = torch.nn.functional.pad(term.table, (0, 0, 0, missing))[:num_tokens]
        total += (one_hot @ rows)[:, None] * term.switches[:, None]
    return total.flatten(1)


def attend(module: Attention, sequence: Tensor, g: Geometry, sees: Tensor) -> Tensor:
    """A linear attention of every token to every token, output as wide as an embedding."""
    query, key, value = (
        (sequence @ projection(port, g).mT + positional(port, g, len(sequence))).unflatten(1, (g.num_heads, -1))
        for port in (module.query, module.key, module.value)
    )
    scores = torch.einsum("qhd,phd->hqp", query, key) * sees
    collected = torch.einsum("hqp,phd->qhd", scores, value).flatten(1)
    output = collected @ dense(module.output, collected.shape[1]).mT
    return torch.nn.functional.pad(output, (0, g.dim_sim - output.shape[-1]))


def who(num_prefix: int, *, asks: str) -> tuple[Tensor, Tensor]:
    """Who sees whom, and who is written: text sees the prefix, or the prefix sees the text."""
    is_text = torch.arange(num_prefix + NUM_TEXT) >= num_prefix
    asking = is_text if asks == "text" else ~is_text
    return (asking[:, None] & ~asking).double(), asking[:, None].double()


def check_nothing_else_is_written(written: Tensor, kept: slice) -> None:
    rest = written.clone()
    rest[kept] = 0
    assert bool((rest == 0).all())


SETTINGS = [
    ("lean", 1, 1, 1),
    ("lean", 1, 1, 3),
    ("lean", 3, 3, 3),
    ("lean", 4, 4, 5),
    ("paper", 1, 1, 2),
    ("paper", 3, 1, 3),
    ("paper", 4, 2, 5),
    ("paper", 3, 2, 4),
    ("paper", 3, 3, 3),
    ("paper", 2, 3, 3),
    ("paper", 1, 4, 4),
]
"""Layout, stack, shards, slots."""


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: "-".join(map(str, s)))
def test_forward(setting: tuple[LayoutName, int, int, int]) -> None:
    s = make_setting(*setting)
    g = s.geometry
    module = LinearForward(Layout(g), has_bias=True, weigh=linear)
    assert module.constant is not None
    sequence = s.embed({module.input: s.x + module.constant.value})
    sees, written = who(g.num_prefix, asks="text")
    output = written * attend(module.attention, sequence, g, sees)
    y = output[g.num_prefix :, coordinates(module.output, g)]
    torch.testing.assert_close(y, module(s.x, s.prefix)[0, 0], **TOLERANCE)
    expected = s.x[0, 0, :, :10] @ s.op.weight.source.mT + s.op.bias.source
    torch.testing.assert_close(y[:, :7], expected, **TOLERANCE)
    check_nothing_else_is_written(output, slice(g.num_prefix, None))


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: "-".join(map(str, s)))
def test_backward(setting: tuple[LayoutName, int, int, int]) -> None:
    s = make_setting(*setting)
    g = s.geometry
    module = LinearBackward(Layout(g), weigh=linear)
    sees, written = who(g.num_prefix, asks="text")
    value_alone = (torch.arange(g.dim_sim) < g.dim_aux).double()  # what stands beyond is the bias column's gradient
    output = written * value_alone * attend(module.attention, s.embed({module.gradient: s.dy}), g, sees)
    dx = output[g.num_prefix :, coordinates(module.input_gradient, g)]
    torch.testing.assert_close(dx, module(s.dy, s.prefix)[0, 0], **TOLERANCE)
    torch.testing.assert_close(dx[:, :10], s.dy[0, 0, :, :7] @ s.op.weight.source, **TOLERANCE)
    check_nothing_else_is_written(output, slice(g.num_prefix, None))


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s[3] > 1], ids=lambda s: "-".join(map(str, s)))
def test_descent(setting: tuple[LayoutName, int, int, int]) -> None:
    s = make_setting(*setting)
    g = s.geometry
    module = LinearDescent(Layout(g), has_bias=True, movement=Movement(RULE), weigh=linear)
    assert module.constant is not None
    sequence = s.embed({module.gradient: s.dy, module.input: s.x + module.constant.value})
    sees, written = who(g.num_prefix, asks="prefix")
    output = written * attend(module.attention, sequence, g, sees)
    after = (sequence + output)[: g.num_prefix, : g.stack * g.dim_slot]
    moved = module(s.dy, s.x, s.prefix)
    torch.testing.assert_close(after, prefix.tokens(moved, g)[0, 0], **TOLERANCE)
    change = prefix.read(s.wired, moved - s.prefix, g)
    x, dy = s.x[0, 0, :, :10], s.dy[0, 0, :, :7]
    torch.testing.assert_close(change[s.op.weight], -RULE.rate * dy.mT @ x, **TOLERANCE)
    torch.testing.assert_close(change[s.op.bias], -RULE.rate * dy.sum(0), **TOLERANCE)
    check_nothing_else_is_written(output, slice(None, g.num_prefix))
