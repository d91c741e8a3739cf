# pyright: basic
"""Figures of the compiled network: every bar is a layer, a slot or prefix tokens of the network itself."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from drawings import network as network_figures
from drawings.network import LOOKS, UNREAD, Stay, example_network, stays, work

from tintlab.checks.inspect.layer_listing import list_layers

pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install 'tintformer[plots]'")


def bars(figure: Any) -> list[list[tuple[float, float, float, float]]]:
    """Left, right, top and bottom of every bar, by look."""
    found = []
    for collection in figure.axes[0].collections:
        if type(collection).__name__ == "PolyCollection":
            extents = [path.get_extents() for path in collection.get_paths()]
            found.append([(e.x0, e.x1, e.y0, e.y1) for e in extents])
    return found


@pytest.fixture(scope="module")
def found() -> list[Stay]:
    return stays(example_network())


def test_no_slot_holds_two_things_at_once(found: list[Stay]) -> None:
    network = example_network()
    assert {stay.slot for stay in found} == set(range(network.frame.num_slots))
    by_slot: dict[int, list[Stay]] = {}
    for stay in found:
        assert 0 <= stay.start < stay.last <= stay.end <= len(network.layers)
        by_slot.setdefault(stay.slot, []).append(stay)
    for held in by_slot.values():
        for before, after in pairwise(held):
            assert before.end <= after.start


def test_what_a_layer_reads_stands_there(found: list[Stay]) -> None:
    rows = list_layers(example_network())
    for row in rows:
        for slot, _ in row.reads:
            assert any(stay.slot == slot and stay.start <= row.number < stay.last for stay in found), row
        for slot, _ in row.writes:
            assert any(stay.slot == slot and stay.start <= row.number < stay.last for stay in found), row
        for slot, _ in row.cleared:
            assert any(stay.slot == slot and stay.end == row.number for stay in found), row


def test_kinds_are_those_of_the_layers(found: list[Stay]) -> None:
    rows = list_layers(example_network())
    first_backward = next(row.number for row in rows if row.phase == "backward")
    by_kind = {kind: [stay for stay in found if stay.kind == kind] for kind in LOOKS}
    assert all(by_kind[kind] for kind in LOOKS if kind != UNREAD)
    assert all(s.start < first_backward < s.last for s in by_kind["activation, kept for backward"])
    # Two blocks store 2 heads x 8 tokens each, in slots of 12 coordinates.
    assert len(by_kind["stored attention weights"]) == 2 * 2
    # Flags, tokens, positions and targets.
    assert [(s.slot, s.start) for s in by_kind["given by the embedding"]] == [(slot, 0) for slot in range(4)]


def test_the_head_reads_what_stands_at_the_end(found: list[Stay]) -> None:
    network = example_network()
    (last,) = [s for s in found if s.slot == network.head.slot and s.end == len(network.layers)]
    assert last.last == len(network.layers)


def test_the_slots_figure_draws_every_stay(found: list[Stay]) -> None:
    drawn = bars(network_figures.slots_figure())
    expected = [[s for s in found if s.kind == kind] for kind in LOOKS if kind != UNREAD]
    assert [len(each) for each in drawn[:-1]] == [len(each) for each in expected]
    assert len(drawn[-1]) == sum(s.end > s.last for s in found)
    for got, wanted in zip(drawn, expected, strict=False):
        assert [(x0, x1, int(y0)) for x0, x1, y0, _ in got] == [(s.start, s.last, s.slot) for s in wanted]


def test_the_pass_is_drawn_layer_by_layer() -> None:
    rows = list_layers(example_network())
    figure = network_figures.pass_figure()
    drawn = bars(figure)
    starts = {name: [row.number for row in rows if work(row) == name] for name in network_figures.WORK}
    assert [[bar[0] for bar in each] for each in drawn] == list(starts.values())
    assert sum(map(len, drawn)) == len(rows)
    texts = " ".join(text.get_text() for text in figure.axes[0].texts)
    for phase in ("forward: 57 layers", "backward and descent: 96 layers", "forward, updated weights: 42 layers"):
        assert phase in texts
    assert len(rows) == 57 + 96 + 42


def test_the_prefix_figure_has_the_tokens_of_the_op_of_each_layer() -> None:
    network, rows = example_network(), list_layers(example_network())
    read, changed = bars(network_figures.prefix_figure())
    touching = [row for row in rows if row.blocks]
    assert len(read) + len(changed) == len(touching)
    assert [bar[0] for bar in changed] == [row.number for row in rows if row.changes_prefix]
    for bar in (*read, *changed):
        (block,) = rows[int(bar[0])].blocks
        place = network.frame.block(list(network.shapes).index(block))
        assert (bar[2], bar[3]) == (place.start, place.stop)
