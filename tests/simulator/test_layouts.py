# pyright: basic
"""The maps and regions of both layouts by themselves: rows in the prefix, ports, linear modules of any stack."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import tintformer as tint
from tintformer.auxiliary.ops import Linear, Weight
from tintformer.simulator import prefix
from tintformer.simulator.geometry import Geometry
from tintformer.simulator.layouts import Layout
from tintformer.simulator.modules.linear import LinearBackward, LinearDescent, LinearForward
from tintformer.simulator.modules.movement import Movement
from tintformer.simulator.primitives.attention import Attention, Port, linear
from tintformer.simulator.regions import PREFIX, Cut, PieceStream
from tintformer.simulator.wiring import WiredOp

LAYOUTS = ["lean", "paper"]
MOVEMENT = Movement(tint.LearningRule(learning_rate=0.1))


@pytest.mark.parametrize("width", [1, 11, 12, 13, 24, 25, 40])
def test_values_of_any_width_are_cut_and_put_together(width: int) -> None:
    cut = Cut(width, 12)
    plain = torch.randn(2, 3, width, dtype=torch.float64)
    tokens = PieceStream.of(plain, cut, 15)
    assert tokens.data.shape == (2, cut.count, 3, 15) and cut.count == -(-width // 12)
    assert torch.equal(tokens.plain(), plain)
    assert bool((tokens.data[..., 12:] == 0).all())
    assert int((tokens.data != 0).sum()) == plain.numel()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_module_whose_regions_do_not_fit_cannot_be_built(layout: Any) -> None:
    narrow, wide = (Geometry(layout=layout, dim_aux=12, stack=1, shards=1, slots=slots) for slots in (1, 2))
    knobs: dict[str, Any] = {
        "has_bias": True,
        "movement": MOVEMENT,
        "weigh": linear,
    }
    with pytest.raises(tint.InputError, match="region 'input' needs slot 1, but an embedding has 1 slots"):
        LinearDescent(Layout(narrow), **knobs)
    module = LinearDescent(Layout(wide), **knobs)
    assert [(region.name, region.slot) for region in module.regions.declared] == [("gradient", 0), ("input", 1)]
    assert module.regions.needed == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_port_reads_declared_regions_alone(layout: Any) -> None:
    maps = Layout(Geometry(layout=layout, dim_aux=12, stack=2, shards=2))
    other = LinearDescent(maps, has_bias=False, movement=MOVEMENT, weigh=linear)
    module = LinearForward(maps, has_bias=False, weigh=linear)

    def attention(value: Port) -> Attention:
        return Attention(query=maps.columns(module.input), key=maps.content(), value=value, weigh=linear)

    module.attention = attention(Port(module.input))
    module.attention = attention(Port(PREFIX))
    with pytest.raises(tint.InputError, match="a port reads region 'gradient'; the module has declared input, output"):
        module.attention = attention(maps.rows(other.gradient))


@pytest.mark.parametrize(("stack", "shards"), list(itertools.product([1, 2, 3, 5], repeat=2)))
@pytest.mark.parametrize("dim_aux", [11, 7])
def test_a_linear_layer_for_any_stack_and_shards(stack: int, shards: int, dim_aux: int) -> None:
    """Prefixes longer than a part is wide (K > d) have their one-hot positions spread over the parts of a slot."""
    g = Geometry(layout="paper", dim_aux=dim_aux, stack=stack, shards=shards)
    assert g.slots == max(stack, shards, 2) and g.max_tokens == 2048 and g.row_dim == max(g.num_prefix, g.head_dim)
    w, b, x, dy = (torch.randn(shape, dtype=torch.float64) for shape in [(9, 2 * dim_aux), (9,), (2, 5, 22), (2, 5, 9)])
    x = x[..., : 2 * dim_aux]
    into, out = Cut(2 * dim_aux, dim_aux), Cut(9, dim_aux)
    op = Linear(name="layer", weight=Weight(name="w", source=w), bias=Weight(name="b", source=b))
    wired = WiredOp(op=op, into=into, out=out, keys=into, role="layer", block=0)
    tokens: Any = prefix.write(wired, g, torch.float64)
    layout, exact = Layout(g), {"rtol": 0, "atol": 1e-12}
    pieces, gradient = (PieceStream.of(value, cut, g.dim_slot).data for value, cut in ((x, into), (dy, out)))
    y = LinearForward(layout, has_bias=True, weigh=linear)(pieces, tokens)
    torch.testing.assert_close(PieceStream(y, out).plain(), x @ w.mT + b, **exact)
    dx = LinearBackward(layout, weigh=linear)(gradient, tokens)
    torch.testing.assert_close(PieceStream(dx, into).plain(), dy @ w, **exact)
    moved = LinearDescent(layout, has_bias=True, movement=MOVEMENT, weigh=linear)(gradient, pieces, tokens)
    for row in range(2):
        after: Any = prefix.read(wired, moved[row : row + 1], g)
        torch.testing.assert_close(after[op.weight], w - 0.1 * dy[row].mT @ x[row], **exact)
        torch.testing.assert_close(after[op.bias], b - 0.1 * dy[row].sum(0), **exact)


def test_a_lean_layout_reads_as_many_parts_as_it_stacks_rows() -> None:
    with pytest.raises(tint.InputError, match="shards=3 must be stack=2, or use layout='paper'"):
        Geometry(layout="lean", dim_aux=11, stack=2, shards=3)
    with pytest.raises(tint.InputError, match="stack=0 must be a whole number of at least 1"):
        Geometry(layout="paper", dim_aux=11, stack=0, shards=1)
