# pyright: basic
"""Figures of a linear layer and of the H-split operation: their cells are those of the modules' own maps."""

from __future__ import annotations

import pytest
import torch
from drawings import linear as linear_figures
from drawings.linear import GEOMETRY, as_matrix, split_factors
from torch.testing import assert_close

from tintformer.simulator.modules.linear import from_heads
from tintformer.simulator.primitives.tokenwise import SplitWise

pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install 'tintformer[plots]'")

K, D, S, PARTS, d = 6, 11, 2, 3, 4


def test_the_example_is_that_of_the_paper() -> None:
    g = GEOMETRY
    assert (g.num_heads, g.num_prefix, g.head_dim, g.stack, g.shards, g.dim_aux) == (6, K, d, S, PARTS, D)


def numbers(step) -> list[list[int]]:
    return step.numbers.tolist()


def of_rows(head: int) -> list[int]:
    """The rows of a head's slot; -1 for those beyond D."""
    return [row if row < D else -1 for row in range(head // PARTS * K, head // PARTS * K + K)]


def of_part(head: int) -> list[int]:
    return list(range(head % PARTS * d, head % PARTS * d + d))


ROWS_BY_TOKEN = [[row if row < D else -1 for row in (j, K + j) for _ in range(PARTS * d)] for j in range(K)]
ONE_HOT = [[j if i == j else -1 for i in range(K)] for j in range(K)]
NOTHING = [-1] * 12


def test_forward() -> None:
    asks, query, key, value, gathered, output = linear_figures.forward_steps()
    assert numbers(asks) == [list(range(12)), NOTHING, NOTHING]
    assert numbers(query) == [of_part(head) for head in range(6)]
    assert numbers(key) == ROWS_BY_TOKEN
    assert numbers(value) == ONE_HOT
    assert numbers(gathered) == [of_rows(head) for head in range(6)]
    assert numbers(output) == [[*range(11), -1], NOTHING, NOTHING]


def test_backward_is_the_transpose() -> None:
    asks, query, key, value, gathered, output = linear_figures.backward_steps()
    assert numbers(asks) == [[*range(11), -1], NOTHING, NOTHING]
    assert numbers(query) == [of_rows(head) for head in range(6)]
    assert numbers(key) == ONE_HOT
    assert numbers(value) == ROWS_BY_TOKEN
    assert numbers(gathered) == [of_part(head) for head in range(6)]
    # The gradient of the constant goes nowhere.
    assert numbers(output) == [[*range(11), -1], NOTHING, NOTHING]


def test_descent_lands_on_the_row_that_it_updates() -> None:
    asks, text, key, value, gathered, moved = linear_figures.descent_steps()
    assert numbers(asks) == ONE_HOT
    assert numbers(text) == [[*range(11), -1], list(range(12)), NOTHING]
    assert numbers(key) == [of_rows(head) for head in range(6)]
    assert numbers(value) == [of_part(head) for head in range(6)]
    assert numbers(gathered) == numbers(moved) == ROWS_BY_TOKEN


def test_every_number_is_drawn() -> None:
    for name, steps in (
        ("linear-forward", linear_figures.forward_steps()),
        ("linear-backward", linear_figures.backward_steps()),
        ("linear-descent", linear_figures.descent_steps()),
    ):
        (panel,) = linear_figures.figures()[name]().axes
        cells = sum(int((step.shades > 0).sum()) for step in steps)
        numbers = [text for text in panel.texts if text.get_text().isdigit()]
        drawn = [text for text in numbers if text.get_horizontalalignment() == "center"]
        assert len(drawn) == cells
        titles = " ".join(text.get_text().replace("\n", " ") for text in panel.texts)
        assert all(step.title in titles for step in steps)


def test_factors_as_matrices_do_what_the_factors_do() -> None:
    factors = split_factors()
    heads = torch.randn(1, 1, 6, 1, 3, 6, dtype=torch.float64)
    expected, flat = heads, heads[0, 0, :, 0].transpose(0, 1).flatten(1)
    for factor in factors:
        expected, flat = factor(expected), flat @ as_matrix(factor).T
        assert_close(expected[0, 0, :, 0].transpose(0, 1).flatten(1), flat)
    assert_close(from_heads(expected, linear_figures.layout()).flatten(0, 2), flat[:, :12])


def test_the_split_figure_has_the_real_weights() -> None:
    factors = split_factors()
    matrices = [as_matrix(factor) for factor in factors]
    assert [isinstance(factor, SplitWise) for factor in factors] == [False, True, False]
    panels = linear_figures.split_figure().axes
    product = matrices[2] @ matrices[1] @ matrices[0]
    for panel, matrix in zip(panels, (product, *matrices[::-1]), strict=True):
        filled = torch.zeros_like(matrix, dtype=torch.bool)
        for path in panel.collections[0].get_paths():
            e = path.get_extents()
            filled[int(e.y0), int(e.x0) : int(e.x1)] = True
        assert torch.equal(filled, matrix != 0)
    texts = [panel.get_title(loc="left") for panel in panels]
    assert texts[0].endswith("1,296 entries, 36 not zero")
    for text, factor in zip(texts[:0:-1], factors, strict=True):
        assert f"{factor.weight.numel():,} stored" in text
