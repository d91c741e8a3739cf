"""Figures made of grids of cells: tokens, heads and matrices side by side, all cells of one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from jaxtyping import Float, Int
from torch import Tensor

from drawings.parts import WIDTH, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP, NARROWEST, TITLE = 4.0, 9.0, 3.6
"""In cells: between grids, what a title needs at least, and the height of a title."""
LETTER = 0.062
"""Inches of a letter of a title, on average and a little more."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Grid:
    """Cells of tokens, heads or a matrix."""

    title: str
    shades: Float[Tensor, "rows columns"]
    """From 0, where nothing stands and nothing is drawn, to 1."""
    numbers: Int[Tensor, "rows columns"] | None = None
    """Written into the cells where a shade is."""
    colour: str
    line: str
    """What a line of cells is."""
    labels: Sequence[str] = ()
    """Of the lines; without any they are counted."""
    group: int
    """Columns that belong together."""

    @property
    def size(self) -> tuple[int, int]:
        rows, columns = self.shades.shape
        return rows, columns


def grid_figure(rows: Sequence[Sequence[Grid]]) -> Figure:
    """Grids in rows, from left to right."""
    places = [[max(grid.size[1], NARROWEST) + GAP for grid in row] for row in rows]
    across = max(sum(row) for row in places)
    heights = [TITLE + max(grid.size[0] for grid in row) for row in rows]
    unit = WIDTH / across
    figure = new_figure(WIDTH, unit * (sum(heights) + 0.8))
    panel: Any = figure.subplots()
    for row, widths, top in zip(rows, places, _starts(heights), strict=True):
        for grid, width, left in zip(row, widths, _starts(widths), strict=True):
            letters = int(max(width - 1, 1) * unit / LETTER)
            _draw(panel, grid, left, top + TITLE, "\n".join(wrap(grid.title, letters)))
    panel.set_aspect("equal")
    panel.set_xlim(-2.6, across - 2.6)
    panel.set_ylim(sum(heights) + 0.4, -0.4)
    panel.axis("off")
    return figure


def _starts(sizes: Sequence[float]) -> list[float]:
    return [sum(sizes[:number]) for number in range(len(sizes))]


def _draw(panel: Any, grid: Grid, left: float, top: float, title: str) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    rows, columns = grid.size
    filled = (grid.shades > 0).nonzero().tolist()
    corners, faces = [], []
    for row, column in filled:
        x, y, shade = left + column, top + row, float(grid.shades[row, column])
        face = tuple(round(1 - shade * (1 - part), 3) for part in to_rgb(grid.colour))
        corners.append([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)])
        faces.append(face)
        if grid.numbers is not None:
            ink = "white" if sum(face) < 1.3 else "black"
            number = str(int(grid.numbers[row, column]))
            panel.text(x + 0.5, y + 0.55, number, ha="center", va="center", fontsize=5.5, color=ink)
    panel.add_collection(PolyCollection(corners, facecolors=faces, edgecolors="none"))
    panel.vlines([left + x for x in (*range(0, columns, grid.group), columns)], top, top + rows, color="black", lw=0.5)
    panel.hlines([top + y for y in range(rows + 1)], left, left + columns, color="black", lw=0.25)
    labels = grid.labels or [str(row) for row in range(rows)]
    for row, label in enumerate(labels):
        panel.text(left - 0.3, top + row + 0.55, label, ha="right", va="center", fontsize=5.5)
    panel.text(left - 1.9, top + rows / 2, grid.line, ha="center", va="center", rotation=90, fontsize=6.5)
    panel.text(left, top - 0.4, title, ha="left", va="bottom", fontsize=7.5)
