# pyright: basic
"""A product with a one-hot table is a selection: linear modules with and without such products give the same numbers.

On whole numbers every sum is exact in both dtypes, so that the two must agree bit by bit; on others they differ by the
order of their sums alone.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from cases import call, covering, make_batch, make_model, make_rule
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import tintformer as tint
from tintformer.auxiliary.ops import Linear, Weight
from tintformer.simulator import prefix
from tintformer.simulator.construction import Construction
from tintformer.simulator.geometry import Geometry
from tintformer.simulator.layouts import Layout
from tintformer.simulator.modules.linear import LinearBackward, LinearDescent, LinearForward
from tintformer.simulator.modules.movement import Movement
from tintformer.simulator.primitives.attention import Attention, linear
from tintformer.simulator.regions import Cut, PieceStream
from tintformer.simulator.wiring import WiredOp

DTYPES = [torch.float64, torch.float32]
DIRECTIONS = ["forward", "backward", "descent"]
PIECES = {"one piece": (11, 9), "many pieces": (33, 25)}
"""Inputs and outputs of a layer; a slot holds 11 coordinates."""
RATE = 0.25
"""A power of two, so that its products with whole numbers are exact."""


def geometry(stack: int) -> Geometry:
    return Geometry(layout="lean", dim_aux=11, stack=stack, shards=stack, slots=max(stack, 2))


def make(direction: str, stack: int, dtype: torch.dtype, **knobs: Any) -> Any:
    layout, weigh = Layout(geometry(stack)), knobs.get("weigh", linear)
    match direction:
        case "forward":
            module = LinearForward(layout, has_bias=True, weigh=weigh)
        case "backward":
            module = LinearBackward(layout, weigh=weigh)
        case _:
            module = LinearDescent(
                layout, has_bias=True, movement=Movement(tint.LearningRule(learning_rate=RATE)), weigh=weigh
            )
    return module.to(dtype)


def arguments(direction: str, stack: int, dtype: torch.dtype, sizes: tuple[int, int], *, whole: bool) -> list[Tensor]:
    """What a module is called with: two sequences of five tokens."""

    def some(*shape: int) -> Tensor:
        source = torch.Generator().manual_seed(sum(shape))
        values = torch.randn(shape, dtype=torch.float64, generator=source)
        return (3 * values).round().to(dtype) if whole else values.to(dtype)

    g, (into, out) = geometry(stack), (Cut(size, 11) for size in sizes)
    op = Linear(
        name="layer",
        weight=Weight(name="w", source=some(sizes[1], sizes[0])),
        bias=Weight(name="b", source=some(sizes[1])),
    )
    tokens: Any = prefix.write(WiredOp(op=op, into=into, out=out, keys=into, role="layer", block=0), g, dtype)
    x = PieceStream.of(some(2, 5, sizes[0]), into, g.dim_slot).data
    dy = PieceStream.of(some(2, 5, sizes[1]), out, g.dim_slot).data
    return {"forward": [x, tokens], "backward": [dy, tokens], "descent": [dy, x, tokens]}[direction]


def multiplied(module: Any, given: list[Tensor]) -> Tensor:
    """The same module by its attention, every table multiplied."""
    product, module.attention.product = module.attention.product, None
    try:
        return module(*given)
    finally:
        module.attention.product = product


@pytest.mark.parametrize("sizes", list(PIECES.values()), ids=list(PIECES))
@pytest.mark.parametrize("stack", [1, 2, 3, 4, 11])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_selection_gives_what_multiplication_gives(
    direction: str, dtype: torch.dtype, stack: int, sizes: tuple[int, int]
) -> None:
    module = make(direction, stack, dtype)
    for whole, own in itertools.product([True, False], repeat=2):
        given = arguments(direction, stack, dtype, sizes, whole=whole)
        if own:  # as behind a step: every sequence has prefix tokens of its own
            given[-1] = torch.cat((given[-1], 2 * given[-1]))
        assert module.attention.product.replaces(module.attention)
        found, expected = module(*given), multiplied(module, given)
        assert found.shape == expected.shape and found.dtype == dtype
        if whole:
            assert torch.equal(found, expected)
        round_off = 100 * torch.finfo(dtype).eps * float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=0, atol=round_off)


@pytest.mark.parametrize("stack", [1, 3, 4])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_only_the_matrix_itself_is_multiplied(direction: str, stack: int) -> None:
    """Ten tokens times all pieces of the padded matrix, and not one multiply-add more."""
    module = make(direction, stack, torch.float64)
    given = arguments(direction, stack, torch.float64, PIECES["many pieces"], whole=True)
    module(*given)
    side = geometry(stack).dim_slot
    counts = []
    for run in (lambda: module(*given), lambda: multiplied(module, given)):
        with FlopCounterMode(display=False) as count:
            run()
        counts.append(count.get_total_flops())
    assert counts[0] == 2 * 10 * 3 * 3 * side**2
    assert counts[1] > counts[0]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_table_that_does_not_only_select_is_multiplied(direction: str) -> None:
    """The parameters are the truth: whoever changes one gets its product, and the selection again when it is back."""
    module = make(direction, 3, torch.float64)
    given = arguments(direction, 3, torch.float64, PIECES["one piece"], whole=True)
    attention, before = module.attention, module(*given)
    tables = dict(attention.named_parameters())
    assert len(tables) == 4
    for name, table in tables.items():
        original = table.clone()
        table[(-1,) * table.dim()] += 1
        assert not attention.product.replaces(attention), name
        assert torch.equal(module(*given), multiplied(module, given))
        table.copy_(original)
        assert attention.product.replaces(attention), name
    assert torch.equal(module(*given), before)


def test_other_constructions_multiply() -> None:
    softmax = Construction(attention="softmax").weigh(torch.float64)
    assert make("forward", 2, torch.float64, weigh=softmax).attention.product is None
    paper = Layout(Geometry(layout="paper", dim_aux=11, stack=2, shards=2))
    assert LinearForward(paper, has_bias=True, weigh=linear).attention.product is None


def test_prefix_tokens_are_never_copied() -> None:
    """As a matrix they stand where they stand as tokens, before a step and behind it."""
    model, batch = make_model("gpt2"), make_batch()
    simulator = tint.build(model, make_rule("default"))
    seen: list[bool] = []

    def look(module: Any, given: Any) -> None:
        tokens, product = given[-1], module.attention.product
        seen.append(product._matrix(tokens).data_ptr() == tokens.data_ptr())

    for module in simulator.modules():
        if isinstance(module, LinearForward | LinearBackward):
            module.register_forward_pre_hook(look)
    call(simulator, batch)
    assert len(seen) > 20 and all(seen)


@pytest.mark.parametrize(("name", "dtype"), covering(["gpt2", "llama-grouped", "opt-350m-kind", "bloom"], DTYPES))
def test_a_whole_pass_is_the_same(name: str, dtype: torch.dtype) -> None:
    model = make_model(name, dtype)
    selecting, multiplying = (tint.build(model, make_rule("default", steps=2)) for _ in range(2))
    for module in multiplying.modules():
        if isinstance(module, Attention):
            module.product = None
    found, expected = (call(simulator, make_batch()) for simulator in (selecting, multiplying))
    close = {"rtol": 0, "atol": 1e-12 if dtype == torch.float64 else 1e-4}
    torch.testing.assert_close(found.logits, expected.logits, **close)
    before, after = (dict(out.updates(0)) for out in (expected, found))
    assert before.keys() == after.keys() and before
    for weight, change in before.items():
        torch.testing.assert_close(after[weight], change, **close)
