# pyright: basic
"""What a table says of several tasks: averages with their own spread and error."""

from __future__ import annotations

import math
from statistics import pstdev

import pytest

from tintlab.kinds.icl_tables import _average, _cell

ONE = [[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]]
"""Right or wrong, four examples for each of three seeds."""
OTHER = [[0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0]]


def numbers(cell: str) -> tuple[float, ...]:
    return tuple(float(each.strip("()")) for each in cell.replace("±", "").split())


def test_a_cell_has_the_spread_of_seeds_and_the_error_of_examples() -> None:
    mean, spread, error = numbers(_cell(ONE, "right"))
    assert (mean, spread) == (75.0, pytest.approx(100 * pstdev((0.75, 1.0, 0.5)), abs=0.05))
    examples = [2 / 3, 1 / 3, 1.0, 1.0]
    assert error == pytest.approx(100 * math.sqrt(sum((each - 0.75) ** 2 for each in examples) / 3 / 4), abs=0.05)
    assert _cell(ONE[:1], "right").startswith("75.0 ± ")


def test_the_papers_spreads_divide_by_the_number_of_seeds() -> None:
    """Of accuracies of 200 examples no spread of three seeds is 0.2 if it divides by two; the paper prints many."""
    seeds = [[1.0] * right + [0.0] * (200 - right) for right in (127, 127, 128)]
    assert _cell(seeds, "right").startswith("63.7 (0.2) ± ")


def test_the_average_has_the_spread_of_the_seeds_averages() -> None:
    mean, spread, error = numbers(_average([ONE, OTHER], "right"))
    averages = [(0.75 + 0.5) / 2, (1.0 + 0.5) / 2, (0.5 + 0.75) / 2]
    assert mean == pytest.approx(100 * sum(averages) / 3, abs=0.05)
    assert spread == pytest.approx(100 * pstdev(averages), abs=0.05)
    errors = [numbers(_cell(each, "right"))[2] for each in (ONE, OTHER)]
    assert error == pytest.approx(math.hypot(*errors) / 2, abs=0.1)
    assert "(" not in _average([ONE, OTHER[:1]], "right")
