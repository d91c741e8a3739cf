"""Figures of the compiled network, drawn from the layers of one that was compiled for a small model.

The structure of a pass, what stands in which slot from layer to layer, and whose prefix tokens a layer reads or
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from drawings.parts import BLUE, GREEN, GREY, LIGHT, ORANGE, PALE, SKY, WIDTH, new_figure, patch
from tintformer.network.network import Network
from tintformer.rule.learning_rule import LearningRule
from tintformer.storage.configs import meta_auxiliary
from tintlab.checks.inspect.layer_listing import LayerRow, Place, list_layers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_TOKENS = 8
TITLES = {
    "below": "forward",
    "forward": "forward",
    "backward": "backward and descent",
    "after": "forward, updated weights",
}
UNREAD = "read by nobody, not yet cleared"
LOOKS: dict[str, tuple[str, str]] = {
    "given by the embedding": (ORANGE, "\\\\\\\\"),
    "activation, kept for backward": (BLUE, ""),
    "activation": (SKY, ""),
    "row of a norm, read from the prefix": (GREEN, "xxxx"),
    "gradient, or on the way to one": (PALE, "////"),
    "stored attention weights": ("black", ""),
    UNREAD: ("#E8E8E8", ""),
}
"""Colour and hatching of what stands in a slot; shades differ in print without colours too."""

Bar = tuple[float, float, float, float]
"""Top, bottom, start and end."""


def figures() -> dict[str, Callable[[], Figure]]:
    """By name."""
    return {"pass-layers": pass_figure, "network-slots": slots_figure, "network-prefix": prefix_figure}


@cache
def example_network() -> Network:
    """Two blocks in the shape of GPT-2, of which only the shapes are there; one step."""
    from transformers import GPT2Config

    config = GPT2Config(vocab_size=16, n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    auxiliary = meta_auxiliary(config, "two blocks")
    with auxiliary.device:
        return Network(auxiliary, LearningRule(learning_rate=0.1), max_tokens=MAX_TOKENS)


# What stands in which slot.


@dataclass(frozen=True, kw_only=True)
class Stay:
    """What stands in a slot from the layer that writes it to the one behind which the slot is clean."""

    slot: int
    kind: str
    start: int
    """The layer that writes it; 0 also for what the embedding gives."""
    last: int
    """The last layer that reads it, or adds to it."""
    end: int
    """The layer that clears the slot; the number of layers, if none does."""


def stays(network: Network) -> list[Stay]:
    """What every slot holds in the course of the layers."""
    rows = list_layers(network)
    open_at: dict[Place, list[LayerRow]] = {}
    found: list[Stay] = []

    def close(place: Place, end: int) -> None:
        touched = open_at.pop(place)
        last = end if place[0] == network.head.slot and end == len(rows) else touched[-1].number + 1
        start = touched[0].number if place in touched[0].writes else 0
        found.append(Stay(slot=place[0], kind=_kind(place, touched), start=start, last=last, end=end))

    for row in rows:
        for place in (*row.reads, *row.writes):
            open_at.setdefault(place, []).append(row)
        for place in row.cleared:
            close(place, row.number)
    for place in list(open_at):
        close(place, len(rows))
    return sorted(found, key=lambda stay: (stay.slot, stay.start))


def _kind(place: Place, touched: Sequence[LayerRow]) -> str:
    """What it is, by the layer that writes it and the phases that read it."""
    first = touched[0]
    if place not in first.writes:
        return "given by the embedding"
    if first.kind == "ReadRows":
        return "row of a norm, read from the prefix"
    if first.phase == "backward":
        stores = first.kind == "SoftmaxAttention"
        return "stored attention weights" if stores else "gradient, or on the way to one"
    kept = any(row.phase == "backward" for row in touched)
    return "activation, kept for backward" if kept else "activation"


def slots_figure() -> Figure:
    """Layers to the right, slots downwards; the colour says what stands there, white is clean."""
    network = example_network()
    rows = list_layers(network)
    figure = new_figure(WIDTH, 5.2)
    panel: Any = figure.subplots()
    by_kind: dict[str, list[Bar]] = {kind: [] for kind in LOOKS}
    for stay in stays(network):
        by_kind[stay.kind].append(_line(stay.slot, stay.start, stay.last))
        if stay.end > stay.last:
            by_kind[UNREAD].append(_line(stay.slot, stay.last, stay.end))
    for kind, bars in by_kind.items():
        _bars(panel, bars, *LOOKS[kind])
    _phases(panel, rows, network.frame.num_slots)
    panel.set_ylabel("slot of the text tokens")
    named = range(0, network.frame.num_slots, 4)
    panel.set_yticks([slot + 0.5 for slot in named], named)
    _legend(figure, LOOKS)
    return figure


def _bars(panel: Any, bars: Sequence[Bar], colour: str, hatch: str = "") -> None:
    """Bars of one look, all of them one drawing."""
    from matplotlib.collections import PolyCollection

    corners = [[(start, top), (end, top), (end, bottom), (start, bottom)] for top, bottom, start, end in bars]
    edge = "black" if hatch else "white"
    panel.add_collection(
        PolyCollection(corners, facecolors=colour, edgecolors=edge, linewidths=0.3, hatch=hatch or None)
    )


def _line(number: int, start: int, end: int) -> Bar:
    """A bar in the line of this number, with a little room above and below."""
    return number + 0.06, number + 0.94, start, end


def _legend(figure: Any, looks: dict[str, tuple[str, str]]) -> None:
    handles = [patch(colour, hatch=hatch) for colour, hatch in looks.values()]
    figure.legend(handles, list(looks), loc="outside lower center", ncols=4, frameon=False)


def _phases(panel: Any, rows: Sequence[LayerRow], height: int) -> None:
    """Lines between phases, and their names above."""
    titles = [TITLES[row.phase] for row in rows]
    starts = [number for number in range(1, len(rows)) if titles[number] != titles[number - 1]]
    for start, end in zip([0, *starts], [*starts, len(rows)], strict=True):
        if start:
            panel.axvline(start, color="black", lw=1.0)
        middle, above = (start + end) / 2, (0, 4)
        text = f"{titles[start]}: {end - start} layers"
        panel.annotate(
            text, (middle, 1), above, xycoords=("data", "axes fraction"), textcoords="offset points", ha="center"
        )
    panel.set_xlim(0, len(rows))
    panel.set_ylim(height, 0)
    panel.set_xlabel("layer")
    panel.tick_params(length=2)


# Which op runs when, and whose prefix tokens are touched.

WORK: dict[str, tuple[str, str]] = {
    "forward": (SKY, ""),
    "backward": (PALE, "////"),
    "descent: changes prefix tokens": ("black", ""),
    "slots cleared for it": (GREY, ""),
}


def work(row: LayerRow) -> str:
    """What a layer does for its op."""
    if row.cleared:
        return "slots cleared for it"
    if row.changes_prefix:
        return "descent: changes prefix tokens"
    return "backward" if row.phase == "backward" else "forward"


def pass_figure() -> Figure:
    """Layers to the right, ops of the auxiliary upwards: which layers run for which op, in which phase."""
    network = example_network()
    rows = list_layers(network)
    ops = list(dict.fromkeys(row.op for row in rows if row.phase in ("below", "forward", "backward")))
    figure = new_figure(WIDTH, 5.2)
    panel: Any = figure.subplots()
    by_work: dict[str, list[Bar]] = {name: [] for name in WORK}
    for row in rows:
        by_work[work(row)].append(_line(len(ops) - 1 - ops.index(row.op), row.number, row.number + 1))
    _op_lines(panel, ops[::-1])
    for name, bars in by_work.items():
        _bars(panel, bars, *WORK[name])
    _phases(panel, rows, len(ops))
    _legend(figure, WORK)
    return figure


TOUCHES: dict[str, tuple[str, str]] = {"read by the text": (SKY, ""), "changed": ("black", "")}


def prefix_figure() -> Figure:
    """Layers to the right, the prefix tokens of every op downwards, as many as it has: who is read, who is changed."""
    network = example_network()
    rows = list_layers(network)
    ops = list(network.shapes)
    starts = [network.frame.block(number).start for number in range(len(ops))]
    figure = new_figure(WIDTH, 5.6)
    panel: Any = figure.subplots()
    by_touch: dict[str, list[Bar]] = {name: [] for name in TOUCHES}
    for row in rows:
        for block in row.blocks:
            place = network.frame.block(ops.index(block))
            touch = "changed" if row.changes_prefix else "read by the text"
            by_touch[touch].append((place.start, place.stop, row.number, row.number + 1))
    panel.hlines(starts[1:], 0, len(rows), color=GREY, lw=0.4)
    for name, bars in by_touch.items():
        _bars(panel, bars, *TOUCHES[name])
    _phases(panel, rows, network.frame.num_prefix)
    middles = [start + size / 2 for start, size in zip(starts, network.frame.blocks, strict=True)]
    labels = [f"{op.removeprefix('blocks.')} ({size})" for op, size in zip(ops, network.frame.blocks, strict=True)]
    panel.set_yticks(middles, labels, fontsize=6.5)
    panel.set_ylabel("prefix tokens of an op (how many)")
    _legend(figure, TOUCHES)
    return figure


def _op_lines(panel: Any, ops: Sequence[str]) -> None:
    """A line for each op, and its name."""
    panel.hlines(range(1, len(ops)), 0, 1, color=LIGHT, lw=0.5, transform=panel.get_yaxis_transform())
    panel.set_yticks([y + 0.5 for y in range(len(ops))], [op.removeprefix("blocks.") for op in ops], fontsize=6.5)
