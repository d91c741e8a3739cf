"""Figures of the construction, drawn from the tensors and tables of built simulators."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from drawings.example import HeadWork, example, example_slots, head_work
from drawings.parts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    SKY,
    WIDTH,
    box,
    frame,
    new_figure,
    patch,
    runs,
    spans,
)
from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import TintError
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.geometry import Geometry
from tintformer.simulator.regions import PHASES
from tintformer.simulator.simulator import Simulator, build
from tintformer.storage.configs import meta_auxiliary
from tintformer.storage.foreign_markup import to_label
from tintlab.checks.accounting.paper_formula import Formula
from tintlab.checks.accounting.simulator_size import ENDS, KINDS, count
from tintlab.checks.inspect.inspection import plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYOUTS = ("lean", "paper")
SLOT_COLOURS = (SKY, ORANGE, GREEN)


def figures(auxiliary: Auxiliary) -> dict[str, Callable[[], Figure]]:
    """By name; the first two show a small example, the others the auxiliary."""
    if auxiliary.device.type != "meta":  # figures need shapes, and weights in the paper's layout take gigabytes
        auxiliary = meta_auxiliary(auxiliary.model.config, auxiliary.name)
    return {
        "prefix": prefix_figure,
        "heads": heads_figure,
        "modules": lambda: modules_figure(auxiliary),
        "parameters": lambda: parameters_figure(auxiliary),
    }


# Where a weight sits in the prefix.


def prefix_figure() -> Figure:
    """A matrix with its rows coloured, and the prefix tokens that hold it, in both layouts."""
    figure: Any = new_figure(WIDTH, 4.6)
    left, right = figure.subfigures(1, 2, width_ratios=(1, 2.4))
    _matrix_panel(left.subplots())
    for panel, layout in zip(right.subplots(2, 1), LAYOUTS, strict=True):
        _prefix_panel(panel, layout)
    return figure


def _matrix_panel(panel: Any) -> None:
    """The matrix, entry by entry where the lean prefix has it."""
    g = example("lean").geometry
    rows, columns = example_slots("lean")
    for token in range(g.num_prefix):
        for slot in range(g.stack):
            held = rows[token, slot] >= 0
            for row in rows[token, slot][held].unique().tolist():
                for start, width in runs(columns[token, slot][held], alone=g.dim_aux):
                    box(panel, start, row, width, 1, _shade(slot, token, g), f"{row}" if width > 1 else "")
    panel.set_title("W and its bias b", loc="left")
    frame(panel, g.dim_aux + 1, g.dim_aux)
    panel.set_xticks([g.dim_aux / 2, g.dim_aux + 0.5], ["column", "b"])
    panel.set_yticks([])
    panel.set_ylabel("row")


def _prefix_panel(panel: Any, layout: str) -> None:
    """One line a prefix token: its slots side by side, the heads' parts dotted."""
    g = example(layout).geometry
    rows, columns = example_slots(layout)
    for token in range(g.num_prefix):
        for slot in range(g.stack):
            held = (rows[token, slot] >= 0).nonzero().flatten()
            bias = int((columns[token, slot] == g.dim_aux).long().argmax())
            for start, width in runs(held, alone=bias):
                label = f"{int(rows[token, slot, start])}" if width > 1 else ""
                box(panel, slot * g.dim_slot + start, token, width, 1, _shade(slot, token, g), label)
    for part in range(1, g.stack * g.shards):
        ends_slot = part % g.shards == 0
        panel.axvline(part * g.head_dim, color="black", lw=1.2 if ends_slot else 0.6, ls="-" if ends_slot else ":")
    frame(panel, g.stack * g.dim_slot, g.num_prefix)
    places = [slot * g.dim_slot for slot in range(g.stack)]
    middles = [place + g.dim_aux / 2 for place in places]
    names = [f"slot {slot}" for slot in range(g.stack)]
    panel.set_xticks([*middles, *(place + g.dim_aux + 0.5 for place in places)], [*names, *("b" for _ in names)])
    panel.set_yticks([token + 0.5 for token in range(g.num_prefix)], range(g.num_prefix))
    panel.set_ylabel("prefix token")
    heads = f"{g.num_heads} heads = {g.stack} slots x {g.shards} parts"
    panel.set_title(f"layout {layout}: S = {g.stack}, K = {g.num_prefix}, {heads} (dotted)", loc="left")


def _shade(slot: int, token: int, g: Geometry) -> tuple[float, ...]:
    """A colour of the slot, the lighter the later the token."""
    from matplotlib.colors import to_rgb

    lightness = 0.75 * token / g.num_prefix
    return tuple(part + (1 - part) * lightness for part in to_rgb(SLOT_COLOURS[slot]))


# What each head computes.


def heads_figure() -> Figure:
    """For every head (s, q): the entries of the matrix it holds, what it reads from the text, what it writes."""
    figure = new_figure(WIDTH, 7.0)
    for row, layout in zip(figure.subplots(2, 3), LAYOUTS, strict=True):
        for panel, work in zip(row, head_work(layout), strict=True):
            _heads_panel(panel, work, example(layout).geometry)
            panel.set_title(f"{layout}, {work.phase}: {work.text}", loc="left")
    handles = [patch(colour) for colour in (BLUE, GREY, ORANGE)]
    labels = ["read from text tokens", "read from the head's prefix tokens", "written"]
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _heads_panel(panel: Any, work: HeadWork, g: Geometry) -> None:
    """Squares are W: output coordinates downwards, input coordinates to the right; strips are the text's side."""
    strip, gap = 2.0, 0.7
    stride = g.dim_slot + strip + 3.5
    colour = {name: ORANGE if name == work.writes else BLUE for name in ("rows", "columns")}
    for head in range(g.num_heads):
        x, y = head % g.shards * stride, head // g.shards * stride
        for top, height in spans(work.block[head].any(1)):
            for left, width in spans(work.block[head].any(0)):
                box(panel, x + left, y + top, width, height, ORANGE if work.writes == "block" else GREY)
        for left, width in spans(work.columns[head]):
            box(panel, x + left, y - strip - gap, width, strip, colour["columns"])
        for top, height in spans(work.rows[head]):
            box(panel, x - strip - gap, y + top, strip, height, colour["rows"])
        box(panel, x, y, g.dim_slot, g.dim_slot, "none", edge="black")
        name = f"{head // g.shards}, {head % g.shards}"
        below = head // g.shards < g.stack - 1  # where the head has no entries
        label = y + (g.dim_slot - 0.6 if below else 0.6)
        panel.text(x + g.dim_slot - 0.6, label, name, ha="right", va="bottom" if below else "top", fontsize=7)
    panel.set_aspect("equal")
    panel.set_xlim(-strip - gap, g.stack * stride)
    panel.set_ylim(g.stack * stride - 2, -strip - gap)
    panel.axis("off")


# The modules of a block.


def modules_figure(auxiliary: Auxiliary) -> Figure:
    """The modules of the last block, and what stands in which slot at first and at last."""
    last = len(auxiliary.blocks) - 1
    simulator = _built(auxiliary, layout="lean", tie_blocks=True)
    ops = plan(simulator, lambda wired: wired.block == last)
    slots = simulator.geometry.slots
    figure = new_figure(WIDTH, 0.8 + 0.42 * len(ops))
    panel = figure.subplots()
    panel.set_title(to_label(f"{auxiliary.name}: block {last}"), loc="left")
    for row, op in enumerate(ops):
        panel.text(-0.15, row + 0.5, op.op.partition(".")[2].partition(".")[2], ha="right", va="center")
        for module in op.modules:
            left = PHASES.index(module.phase) * (slots + 0.5)
            for slot in range(slots):
                here = [region for region in module.regions if region.slot == slot and not region.beside]
                if not here:
                    box(panel, left + slot, row + 0.08, 1, 0.84, "none", edge=GREY)
                    continue
                pieces = "" if here[0].pieces == 1 else f" x {here[0].pieces}"
                last = "" if len(here) == 1 else f", then {here[-1].name}"
                text = "\n".join(wrap(here[0].name + last + pieces, 14))
                colour = _REGION_COLOURS.get(here[0].name, PALE)
                box(panel, left + slot, row + 0.08, 1, 0.84, colour, text, edge="black")
    for number, phase in enumerate(PHASES):
        left = number * (slots + 0.5)
        panel.text(left, -0.6, _DIRECTIONS[phase], weight="bold", va="bottom")
        for slot in range(slots):
            panel.text(left + slot + 0.5, -0.1, f"slot {slot}", ha="center", va="bottom", fontsize=6.5)
    panel.set_xlim(-2.2, 3 * slots + 1.1)
    panel.set_ylim(len(ops) + 0.1, -1.1)
    panel.axis("off")
    return figure


_REGION_COLOURS = {"gradient": SKY, "input": "#A6DBC8", "scale": "#F4D58D", "bias": "#F4D58D"}
_DIRECTIONS = {"forward": "forward, downwards", "backward": "backward, upwards", "descent": "descent, beside it"}


# Parameters.


def parameters_figure(auxiliary: Auxiliary) -> Figure:
    """Constructed parameters by kind of module, against the paper's formula."""
    figure = new_figure(WIDTH, 3.6)
    panel = figure.subplots()
    counts = parameter_counts(auxiliary)
    names = sorted({name for column in counts.values() for name in column}, key=[*KINDS.values(), "all"].index)
    colours = dict(zip(counts, (GREY, BLUE, ORANGE, GREEN), strict=True))
    width = 0.8 / len(counts)
    for number, (label, column) in enumerate(counts.items()):
        places = [names.index(name) + (number - 1.5) * width for name in column]
        panel.bar(places, list(column.values()), width=width, color=colours[label], label=label)
        for place, value in zip(places, column.values(), strict=True):
            panel.text(place, max(1.2 * value, 0.6), short(value), ha="center", va="bottom", fontsize=6, rotation=90)
    panel.set_yscale("log")
    panel.set_ylim(0.5, 100 * max(value for column in counts.values() for value in column.values()))
    panel.set_xticks(range(len(names)), names)
    panel.set_ylabel("parameters")
    panel.set_title(to_label(f"{auxiliary.name}: all modules of a kind, forward + backward + descent"), loc="left")
    panel.legend(frameon=False, ncols=4, loc="upper left")
    panel.spines[["top", "right"]].set_visible(False)
    return figure


def parameter_counts(auxiliary: Auxiliary) -> dict[str, dict[str, int]]:
    """Parameters by kind of module: the paper's formula, its layout as built, the lean layout untied and tied."""
    return {
        "paper, formula": formula_counts(auxiliary),
        "paper, constructed": _constructed(auxiliary, layout="paper", tie_blocks=False),
        "lean, untied": _constructed(auxiliary, layout="lean", tie_blocks=False),
        "lean, tied": _constructed(auxiliary, layout="lean", tie_blocks=True),
    }


def formula_counts(auxiliary: Auxiliary) -> dict[str, int]:
    """The paper's formula by kind: a block has four linear modules, two norms, an attention and an activation."""
    try:
        formula = Formula.of(auxiliary.model.config)
    except TintError:  # the formula knows no padding
        return {}
    one = {row.module: row.total for row in formula.rows()}
    block = {
        "linear": 4 * one["linear"],
        "norm": 2 * one["layer norms"],
        "attention": one["self-attention"] - one["linear"],
        "activation": one["activation"],
    }
    return {**{kind: number * formula.num_layers for kind, number in block.items()}, "all": one["transformer"]}


def _constructed(auxiliary: Auxiliary, **construction: Any) -> dict[str, int]:
    simulator = _built(auxiliary, **construction)
    none = dict.fromkeys((KINDS[type(wired.op)] for wired in simulator.wired.values()), 0)
    rows = count(simulator).by_kind()
    return none | {row["module"]: row["total"] for row in rows if row["module"] != ENDS}


def _built(auxiliary: Auxiliary, **construction: Any) -> Simulator:
    with auxiliary.device:
        return build(auxiliary, LearningRule(learning_rate=0.0), **construction)


def short(number: int) -> str:
    """A number in a few characters."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)
