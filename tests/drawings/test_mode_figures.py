# pyright: basic
"""The figure of few-shot settings: it shows what packed prompts are, token by token."""

from __future__ import annotations

import pytest
import torch
from drawings.modes import SHOWN, example_mode, modes_figure

from tintlab.data.packing import SHARED
from tintlab.data.prompts import Role

pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install 'tintformer[plots]'")


def roles(mode: str, *wanted: Role) -> list[bool]:
    return [role in wanted for role in example_mode(mode).packed.roles]


def test_single_has_segments_that_see_themselves_and_the_first_token() -> None:
    mode = example_mode("single")
    segments = mode.packed.segments
    assert sorted(set(segments)) == [SHARED, *range(len(SHOWN) + 1)]
    for t, j in torch.cartesian_prod(*[torch.arange(len(segments))] * 2).tolist():
        assert bool(mode.visible[t, j]) == (j <= t and segments[j] in (SHARED, segments[t]))


def test_multi_is_one_causal_text() -> None:
    mode = example_mode("multi")
    assert set(mode.packed.segments) == {0}
    assert torch.equal(mode.visible, torch.ones_like(mode.visible).tril())


@pytest.mark.parametrize("name", ["single", "multi"])
def test_targets_follow_the_roles(name: str) -> None:
    columns = {title: marked.tolist() for title, marked in example_mode(name).columns.items()}
    assert columns["label loss"] == roles(name, Role.LABEL)
    assert columns["scored"] == roles(name, Role.ANSWER)
    assert sum(columns["label loss"]) == len(SHOWN) and columns["scored"][-1]
    full, more = columns["full loss"], columns["full loss, test text"]
    assert full != more and all(b or not a for a, b in zip(full, more, strict=True))
    context = roles(name, Role.CONTEXT, Role.LABEL)
    assert all(b or not a for a, b in zip(full, context, strict=True))


def test_the_figure_has_every_token_and_every_cell() -> None:
    for panel, name in zip(modes_figure().axes, ("single", "multi"), strict=True):
        mode = example_mode(name)
        assert [label.get_text() for label in panel.get_yticklabels()] == mode.words
        filled = torch.zeros_like(mode.visible)
        for collection in panel.collections:
            for path in collection.get_paths():
                e = path.get_extents()
                filled[int(e.y0), int(e.x0) : int(e.x1)] = True
        assert torch.equal(filled, mode.visible)
        assert len(panel.patches) == sum(int(marked.sum()) for marked in mode.columns.values())
