# pyright: basic
"""The documentation's table of what differs from print: a row for every check, and every row holds of what is built."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import make_model, make_rule

import tintformer as tint
from tintformer.auxiliary.ops import Activation, Attend, Linear, Norm
from tintformer.simulator import prefix
from tintformer.simulator.modules.differences import Difference
from tintformer.simulator.modules.linear import LinearForward
from tintformer.simulator.modules.norm import Normalise
from tintformer.simulator.modules.self_attention import AttentionBackward, StoreThenRead, ToHeads, TransposedScores
from tintformer.simulator.primitives.attention import Attention, Port, Positional
from tintformer.simulator.primitives.tokenwise import Combine, DimensionWise, SplitWise

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"


@cache
def simulator(name: str = "gpt2", **knobs: Any) -> Any:
    return tint.build(make_model(name), make_rule("paper"), layout="paper", stack=2, **knobs)


def of_kind(kind: type, phase: str) -> list[Any]:
    wired = [each.op for each in simulator().wired.values() if isinstance(each.op, kind)]
    modules = [simulator().modules_of(op).by_phase().get(phase) for op in wired]
    return [module for module in modules if module is not None]


def parts(kind: type, owner: torch.nn.Module | None = None) -> list[Any]:
    return [part for part in (owner or simulator().structure).modules() if isinstance(part, kind)]


def width() -> None:
    g = simulator().geometry
    assert g.dim_slot > g.dim_aux and g.dim_slot % g.stack == g.dim_slot % g.shards == 0
    assert g.slots > g.stack and g.dim_sim == g.slots * g.dim_slot != g.stack * g.dim_aux


def bias() -> None:
    wired = simulator().wired["blocks.0.query"]
    matrix = prefix.tokens(simulator().prefix_of(wired.op), simulator().geometry)
    g = simulator().geometry
    rows = matrix[0, 0].unflatten(-1, (g.stack, g.dim_slot)).transpose(0, 1).flatten(0, 1)
    assert torch.equal(rows[: g.dim_aux, g.dim_aux], wired.op.bias.read())
    module = simulator().modules_of(wired.op).forward_module
    assert module.constant.value[g.dim_aux] == 1 and len(parts(Attention, module)) == 1


def order_of_rows() -> None:
    wired, g = simulator().wired["blocks.0.query"], simulator().geometry
    token = prefix.tokens(simulator().prefix_of(wired.op), g)[0, 0, 1].view(g.stack, g.dim_slot)
    for slot in range(g.stack):
        assert torch.equal(token[slot, : g.dim_aux], wired.op.weight.read()[slot * g.num_prefix + 1])


def split_maps() -> None:
    (attention,) = parts(Attention, of_kind(Linear, "forward")[0])
    assert [type(each) for each in attention.query.factors] == [SplitWise, DimensionWise]
    assert [type(each) for each in attention.output] == [DimensionWise, SplitWise, DimensionWise]


def biases_of_maps() -> None:
    for each in parts((DimensionWise, SplitWise)):  # pyright: ignore[reportArgumentType]
        assert [name for name, _ in each.named_parameters()] == ["weight"]
    for port in parts(Port):
        assert port.positional is None or isinstance(port.positional, Positional)


def softmax_attention() -> None:
    g = simulator().geometry
    for module in of_kind(Attend, "forward"):
        assert not parts(Positional, module)
        for route in parts(ToHeads, module):
            assert route.shift.weight.shape[:2] == (route.num_heads, route.op.head_dim)
            assert route.op.num_heads != g.num_heads


def scale_of_scores() -> None:
    (op,) = {each.op.scale for each in simulator().wired.values() if isinstance(each.op, Attend)}
    (attention,) = parts(Attention, of_kind(Attend, "forward")[0])
    assert float(attention.query.factors[0].weight) == op != 1


def transposed_scores() -> None:
    (module,) = {id(each): each for each in of_kind(Attend, "backward")}.values()
    assert isinstance(module, AttentionBackward) and isinstance(module.value_gradient, StoreThenRead)
    assert isinstance(module.beyond_store, TransposedScores) and module.value_gradient.stored.beside
    assert module.store_capacity == simulator().geometry.dim_sim // 3
    assert simulator(transposition="stored").store_capacity == module.store_capacity


def attention_descent() -> None:
    assert of_kind(Attend, "backward") and not of_kind(Attend, "descent")


def epsilon_of_norms() -> None:
    norms = [part.norm for part in parts(Normalise)]
    assert norms and all(norm.coordinate > 0 for norm in norms)


def differences() -> None:
    for kind in (Norm, Activation):
        for module in of_kind(kind, "backward"):
            (difference,) = parts(Difference, module)
            assert isinstance(difference.before, Combine) and isinstance(difference.after, Combine)
            assert difference.before.weight.shape == (2, 2) and difference.after.weight.shape == (1, 2)


def activation() -> None:
    assert all(not list(module.parameters()) for module in of_kind(Activation, "forward"))


def gated_units() -> None:
    """The gate and its activation are modules of their own."""
    assert {"block/activation", "block/product", "block/product/linear"} <= set(simulator("llama").structure)


def loss() -> None:
    (attention,) = parts(Attention, simulator().loss_gradient)
    assert attention.value.reads == (simulator().loss_gradient.target,)
    assert simulator().loss_gradient.gate is not None


def position_of_the_next_token() -> None:
    attention = simulator().loss_gradient.next_token
    assert not parts(Positional, attention)


def sequence() -> None:
    (first, *_) = parts(LinearForward)
    assert first.attention.query.reads and first.attention.key.reads[0].name == "rows"


def feed_forward() -> None:
    odd = simulator("gpt2-odd")
    into = odd.wired["blocks.0.down"].into
    assert into.count * into.step > into.width


CHECKS: dict[str, Callable[[], None]] = {
    check.__name__.replace("_", " ").replace("feed forward", "feed-forward"): check
    for check in (
        width,
        bias,
        order_of_rows,
        split_maps,
        biases_of_maps,
        softmax_attention,
        scale_of_scores,
        transposed_scores,
        attention_descent,
        epsilon_of_norms,
        differences,
        activation,
        gated_units,
        loss,
        position_of_the_next_token,
        sequence,
        feed_forward,
    )
}


def rows_of_the_page() -> list[list[str]]:
    text = PAGE.read_text().split("### What differs from print")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_row_of_the_table_has_its_check() -> None:
    rows = rows_of_the_page()
    assert all(len(row) == 4 and all(row) for row in rows)
    assert [row[0] for row in rows] == list(CHECKS)


@pytest.mark.parametrize("row", CHECKS)
def test_a_row_holds_of_what_is_built(row: str) -> None:
    CHECKS[row]()
