"""Figures of a linear layer and of the H-split operation, drawn from modules of the paper's own example.

D = 11, S = 2, S' = 3: six heads, six prefix tokens. What stands in a cell is found by sending numbers that name
themselves through the module's own maps, so that a figure shows what the weights do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from drawings.grids import Grid, grid_figure
from drawings.parts import BLUE, GREY, ORANGE, WIDTH, fill_cells, new_figure
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.geometry import Geometry
from tintformer.simulator.layouts import HeadMaps, Layout
from tintformer.simulator.modules.linear import LinearBackward, LinearDescent, LinearForward, by_heads
from tintformer.simulator.modules.movement import Movement
from tintformer.simulator.primitives.attention import Attention, Port, linear
from tintformer.simulator.primitives.tokenwise import Constant, DimensionWise, SplitWise
from tintformer.simulator.regions import PREFIX, Region

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GEOMETRY = Geometry(layout="paper", dim_aux=11, stack=2, shards=3, max_tokens=4)
RATE = 0.1


def figures() -> dict[str, Callable[[], Figure]]:
    """By name."""
    return {
        "linear-forward": lambda: grid_figure(_rows(forward_steps(), 3)),
        "linear-backward": lambda: grid_figure(_rows(backward_steps(), 3)),
        "linear-descent": lambda: grid_figure(_rows(descent_steps(), 4)),
        "h-split": split_figure,
    }


def _rows(steps: Sequence[Grid], first: int) -> list[Sequence[Grid]]:
    return [steps[:first], steps[first:]]


@cache
def layout() -> Layout:
    return Layout(GEOMETRY)


# What stands in the cells of a module, step by step.


def names(count: int = GEOMETRY.dim_slot) -> Float[Tensor, "1 1 1 Dslot"]:
    """A token whose coordinate i holds i + 1."""
    return torch.arange(1.0, count + 1, dtype=torch.float64)[None, None, None]


def named(heads: Tensor) -> Tensor:
    """The coordinates that cells name; -1 where nothing arrives."""
    return heads.round().long() - 1


@cache
def prefix_of_names() -> Tensor:
    """The example's prefix `[1, 1, H, 1, K, d]`: entries of row i of W hold i + 1."""
    g = GEOMETRY
    rows = torch.arange(1.0, g.dim_slot + 1, dtype=torch.float64).view(g.stack, g.num_prefix)
    slots = rows[:, None, :, None].expand(g.stack, g.shards, g.num_prefix, g.head_dim)
    held = slots.reshape(g.num_heads, g.num_prefix, g.head_dim).clone()
    held[held > g.dim_aux] = 0  # rows beyond D are padding
    return held[None, None, :, None]


def port_cells(port: Any, value: Tensor, *, factor: float = 1.0, output: bool = False) -> Tensor:
    """What a port brings to each head of a token that holds `value`: `[H, width]`."""
    assert isinstance(port, Port)
    heads = port({port.reads[0]: by_heads(value, layout(), output=output)})
    return named(heads.flatten(0, -2) / factor)


def content_cells(port: Any) -> Tensor:
    """Prefix tokens as a port reads them: `[K, H d]`."""
    return _by_token(named(port({PREFIX: prefix_of_names()})))


def position_cells(port: Any) -> Tensor:
    """One-hot positions of the first head: `[K, width]`, numbered where they are 1."""
    table = port({})[0, 0, 0, 0]
    return torch.where(table != 0, torch.arange(len(table))[:, None], -1)


def _by_token(heads: Tensor) -> Tensor:
    return heads[0, 0, :, 0].transpose(0, 1).flatten(1)


def embedding_cells(*regions: tuple[Region, Tensor]) -> Tensor:
    """A text token `[slots, D~]`, with what stands in the slots of regions."""
    cells = torch.full((GEOMETRY.slots, GEOMETRY.dim_slot), -1)
    for region, content in regions:
        cells[region.slot] = content.flatten()
    return cells


def gathered_heads(attention: Attention, asking: Any, answering: Any) -> Tensor:
    """What each head gathers before its output map."""
    bare = Attention(query=attention.query, key=attention.key, value=attention.value, weigh=linear)
    return bare(asking, answering)


def _numbered(responses: Sequence[Tensor]) -> Tensor:
    """By cell, the number of the one response that is not zero there."""
    cells = torch.full(responses[0].shape, -1)
    for number, response in enumerate(responses):
        cells[response.abs() > 1e-12] = number
    return cells


def forward_steps() -> list[Grid]:
    """W x: text asks with x, prefix tokens answer with their positions."""
    module, g = LinearForward(layout(), has_bias=True, weigh=linear), GEOMETRY
    attention, x = module.attention, _with_constant(module.constant)
    asking = {module.input: by_heads(torch.ones_like(x), layout())}
    # One row of W after the other alone: the head's cell that is not zero then holds that row's partial sum.
    single = [(prefix_of_names() == row + 1).double() for row in range(g.dim_aux)]
    heads = [gathered_heads(attention, asking, {PREFIX: prefix}) for prefix in single]
    written = [module(torch.ones_like(x), prefix).flatten() for prefix in single]
    asks = embedding_cells((module.input, named(x)))
    return [
        _text("1 A text token asks with x, and a 1 for the bias.", asks, BLUE),
        _heads("2 Query: head (s, q) gets part q of x.", port_cells(attention.query, x), BLUE),
        _prefix("3 Key: rows of W in the prefix tokens, by heads (number: row).", content_cells(attention.key)),
        _positions("4 Value: one-hot(j).", position_cells(attention.value)),
        _heads("5 A head gathers part q of W x (number: row).", _by_head(heads), ORANGE),
        _text("6 The output map adds the parts: W x.", embedding_cells((module.output, _numbered(written))), ORANGE),
    ]


def backward_steps() -> list[Grid]:
    """W^T dy: text asks with dy, prefix tokens answer with their rows."""
    module, g = LinearBackward(layout(), weigh=linear), GEOMETRY
    attention, dy = module.attention, _with_constant(None)
    asking = {module.gradient: by_heads(torch.ones_like(dy), layout(), output=True)}
    columns = torch.arange(g.dim_slot).view(g.shards, g.head_dim).repeat(g.stack, 1)[None, None, :, None, None]
    single = [(columns == column) * (prefix_of_names() > 0).double() for column in range(g.dim_slot)]
    heads = [gathered_heads(attention, asking, {PREFIX: prefix}) for prefix in single]
    written = _numbered([module(torch.ones_like(dy), prefix).flatten() for prefix in single])
    asks, rows = embedding_cells((module.gradient, named(dy))), port_cells(attention.query, dy, output=True)
    return [
        _text("1 A text token asks with dy.", asks, BLUE),
        _heads("2 Query: head (s, q) gets the rows of slot s.", rows, BLUE),
        _positions("3 Key: one-hot(j).", position_cells(attention.key)),
        _prefix("4 Value: rows of W in the prefix tokens, by heads (number: row).", content_cells(attention.value)),
        _heads("5 A head gathers part q of its rows (number: column).", _by_head(heads), ORANGE),
        _text("6 The output map adds the slots: dx.", embedding_cells((module.input_gradient, written)), ORANGE),
    ]


def descent_steps() -> list[Grid]:
    """W - rate dy x^T: prefix tokens ask with their positions, text answers."""
    module = LinearDescent(layout(), has_bias=True, movement=Movement(LearningRule(learning_rate=RATE)), weigh=linear)
    attention, dy, x = module.attention, _with_constant(None), _with_constant(module.constant)
    text = {
        module.gradient: by_heads(dy, layout(), output=True),
        module.input: by_heads(torch.ones_like(x), layout()),
    }
    change = gathered_heads(attention, {}, text) / -RATE
    moved = module(dy, torch.ones_like(x) - constant_of(module.constant), torch.zeros_like(prefix_of_names())) / -RATE
    stands = embedding_cells((module.gradient, named(dy)), (module.input, named(x)))
    return [
        _positions("1 Prefix tokens ask: one-hot(j).", position_cells(attention.query)),
        _text("2 A text token answers with dy and x.", stands, BLUE),
        _heads("3 Key: the rows of slot s of dy.", port_cells(attention.key, dy, output=True), BLUE),
        _heads("4 Value: part q of x, times -rate.", port_cells(attention.value, x, factor=-RATE), BLUE),
        _prefix("5 Heads gather dy x^T, summed over the text (number: row).", _by_token(named(change)), ORANGE),
        _prefix("6 The residual adds it to the prefix tokens, row by row.", _by_token(named(moved)), ORANGE),
    ]


def _with_constant(constant: Constant | None) -> Tensor:
    """A value of D coordinates that name themselves, and the homogeneous one if a module sets it."""
    held = (names() <= GEOMETRY.dim_aux) | (constant_of(constant) != 0)
    return names() * held


def constant_of(constant: Constant | None) -> Tensor:
    """What a module adds to its input."""
    nothing = torch.zeros_like(names())
    return nothing if constant is None else constant(nothing)


def _by_head(responses: Sequence[Tensor]) -> Tensor:
    return _numbered([each[0, 0, :, 0, 0] for each in responses])


def _text(title: str, cells: Tensor, colour: str) -> Grid:
    return _grid(title, cells, colour, "slot", GEOMETRY.head_dim)


def _heads(title: str, cells: Tensor, colour: str) -> Grid:
    labels = [f"{head // GEOMETRY.shards}, {head % GEOMETRY.shards}" for head in range(len(cells))]
    return _grid(title, cells, colour, "head (s, q)", cells.shape[1], labels)


def _prefix(title: str, cells: Tensor, colour: str = GREY) -> Grid:
    return _grid(title, cells, colour, "prefix token", GEOMETRY.head_dim)


def _positions(title: str, cells: Tensor) -> Grid:
    return _grid(title, cells, GREY, "prefix token", cells.shape[1])


def _grid(title: str, cells: Tensor, colour: str, line: str, group: int, labels: Sequence[str] = ()) -> Grid:
    shades = (cells >= 0).double()
    return Grid(title=title, shades=shades, numbers=cells, colour=colour, line=line, group=group, labels=labels)


# The H-split operation.


def as_matrix(factor: DimensionWise | SplitWise) -> Tensor:
    """A factor as the one matrix that it is between heads written one after the other."""
    weight = factor.weight.detach()
    if isinstance(factor, SplitWise):
        return torch.block_diag(*weight)
    return torch.einsum("dgh,de->gdhe", weight, torch.eye(len(weight), dtype=weight.dtype)).flatten(2).flatten(0, 1)


def split_factors() -> HeadMaps:
    """The output map of the forward module: dimension-wise, split-wise, dimension-wise."""
    return layout().from_rows()


def split_figure() -> Figure:
    """The three factors of an output map as matrices, and their product."""
    factors = split_factors()
    matrices = [as_matrix(factor) for factor in factors]
    product = matrices[2] @ matrices[1] @ matrices[0]
    figure: Any = new_figure(WIDTH, 3.4)
    panels = figure.subplots(1, 4, width_ratios=[each.shape[1] for each in (product, *reversed(matrices))])
    widths = _head_widths(factors)
    _matrix(
        panels[0],
        product,
        (widths[3], widths[0]),
        f"the whole map\n{product.numel():,} entries, {_set(product)} not zero",
    )
    for panel, number in zip(panels[1:], (2, 1, 0), strict=True):
        factor, matrix = factors[number], matrices[number]
        kind = "split-wise" if isinstance(factor, SplitWise) else "dimension-wise"
        sign = "= " if number == 2 else "x "
        title = f"{sign}{kind}\n{factor.weight.numel():,} stored, {_set(matrix)} not zero"
        _matrix(panel, matrix, (widths[number + 1], widths[number]), title)
    return figure


def _head_widths(factors: HeadMaps) -> list[int]:
    """The width of a head in front of every factor, and behind the last."""
    widths = [GEOMETRY.row_dim]
    for factor in factors:
        widths.append(factor.weight.shape[1] if isinstance(factor, SplitWise) else len(factor.weight))
    return widths


def _set(matrix: Tensor) -> int:
    return int((matrix != 0).sum())


def _matrix(panel: Any, matrix: Tensor, head: tuple[int, int], title: str) -> None:
    rows, columns = matrix.shape
    fill_cells(panel, matrix != 0, "black")
    panel.vlines(range(0, columns + 1, head[1]), 0, rows, color=GREY, lw=0.5, zorder=0)
    panel.hlines(range(0, rows + 1, head[0]), 0, columns, color=GREY, lw=0.5, zorder=0)
    panel.set_title(title, loc="left", fontsize=7.5)
    panel.set_xlabel(f"{columns // head[1]} heads of {head[1]}", fontsize=7)
    panel.set_ylabel(f"{rows // head[0]} heads of {head[0]}", fontsize=7)
    panel.set_aspect("equal")
    panel.set_xlim(0, columns)
    panel.set_ylim(rows, 0)
    panel.set_xticks([])
    panel.set_yticks([])
