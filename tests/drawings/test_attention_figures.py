# pyright: basic
"""Figures of self-attention: what they show of a pass is what attention and its gradient are."""

from __future__ import annotations

import pytest
import torch
from drawings import attention as attention_figures
from drawings.attention import NUM_HEADS, NUM_TOKENS, example_pass, prefix_moves, shaded
from torch.testing import assert_close

pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install 'tintformer[plots]'")

T, H = NUM_TOKENS, NUM_HEADS


def by_head(values: torch.Tensor) -> torch.Tensor:
    """`[H, T, columns]` from heads side by side."""
    return values.unflatten(1, (H, -1)).transpose(0, 1)


def test_forward_weights_are_causal_and_gather_the_values() -> None:
    call = example_pass().forward
    weights = by_head(call.weights())
    assert_close(weights.sum(-1), torch.ones(H, T, dtype=torch.float64))
    assert not weights.triu(1).any() and (weights.tril() + torch.ones(T, T).triu(1) > 0).all()
    result = call.result[0, :, 0, 0] if call.result.shape[1] == H else call.result[0, 0, :, 0]
    assert_close(weights @ by_head(call.value()), result)


def test_the_store_holds_the_weights_and_reading_transposes_them() -> None:
    seen = example_pass()
    weights = by_head(seen.forward.weights())
    *_, store = attention_figures.store_grids()
    held = by_head(seen.store.result[0, :, :, 0].flatten(0, 1).transpose(0, 1).flatten(1))
    assert_close(held[..., :T], weights)
    assert not held[..., T:].any() and "20 places" in store.title
    assert torch.equal(store.shades > 0, by_head_back(held) > 0)
    read = by_head(seen.read.weights())
    assert_close(read, weights.mT)
    dv = seen.read.result[0, :, 0, 0]
    assert_close(dv, weights.mT @ by_head(seen.read.value()))


def by_head_back(values: torch.Tensor) -> torch.Tensor:
    return values.transpose(0, 1).flatten(1)


def test_values_and_output_move_and_queries_and_keys_stay() -> None:
    moves = prefix_moves()
    assert {name: bool(move.any()) for name, move in moves.items()} == {
        "value": True,
        "query": False,
        "key": False,
        "output": True,
    }
    dv, x, _, _ = example_pass().descents["value"]
    g = example_pass().simulator.geometry
    gradient = (dv[0, 0].T @ (x[0, 0] + torch.eye(g.dim_slot, dtype=torch.float64)[g.dim_aux]))[: g.dim_slot]
    rows = gradient.view(g.stack, g.num_prefix, g.dim_slot).transpose(0, 1).flatten(1)
    assert_close(moves["value"], -0.1 * rows)
    titles = [grid.title for grid in attention_figures.descent_grids()]
    assert [title.split(":")[0] for title in titles] == ["3 W_v", "4 W_q", "5 W_k", "6 W_o"]
    assert ["no descent" in title for title in titles] == [False, True, True, False]


def test_shades_tell_zero_from_the_rest() -> None:
    shades = shaded(torch.tensor([[0.0, 1e-3, -2.0]]))
    assert shades[0, 0] == 0 and 0.1 < shades[0, 1] < 0.2 and shades[0, 2] == 1
    assert not shaded(torch.zeros(2, 2)).any()


@pytest.mark.parametrize("name", attention_figures.figures())
def test_every_cell_that_is_not_zero_is_drawn(name: str) -> None:
    grids = {
        "attention-forward": attention_figures.forward_grids(),
        "attention-backward": [*attention_figures.store_grids(), *attention_figures.read_grids()],
        "attention-descent": [*attention_figures.descent_inputs(), *attention_figures.descent_grids()],
    }[name]
    (panel,) = attention_figures.figures()[name]().axes
    drawn = [len(each.get_paths()) for each in panel.collections if type(each).__name__ == "PolyCollection"]
    assert drawn == [int((grid.shades > 0).sum()) for grid in grids]
