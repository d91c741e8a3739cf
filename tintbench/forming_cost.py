"""What forming an updated matrix costs besides its products: the constant `TRAFFIC` of the fast engine's cost model.

Times W - rate * G^T X over the number n of trained tokens and fits a line: its intercept over its slope is the fixed
cost, in multiply-adds an element. The argument is the number of threads:
`python -m tintbench.forming_cost 2`.
"""

from __future__ import annotations

import sys
from functools import partial
from statistics import linear_regression

import torch

from tintbench.measuring import median_seconds

SHAPES = ((768, 768), (768, 3072), (3072, 768))
RANKS = (16, 32, 64, 128, 256, 512)


def fixed_cost(inputs: int, outputs: int) -> float:
    """Multiply-adds an element that take as long as everything but the products."""
    weight = torch.randn(1, outputs, inputs)
    times: list[float] = []
    for rank in RANKS:
        x, g = torch.randn(1, rank, inputs), torch.randn(1, rank, outputs)
        times.append(median_seconds(partial(torch.baddbmm, weight, g.mT, x, alpha=-0.1), 7))
    slope, intercept = linear_regression(RANKS, times)
    return intercept / slope


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    for inputs, outputs in SHAPES:
        print(f"{outputs} x {inputs}: {fixed_cost(inputs, outputs):.0f}")
