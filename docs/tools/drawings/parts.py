"""What figures of the construction share: colours, boxes, grids of cells, and how they are written."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Bool
from torch import Tensor

from tintformer.errors import TintError
from tintformer.storage.whole_files import check_directory, whole_files
from tintlab.show.plot_style import import_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 10.0
BLUE, ORANGE, GREEN, SKY, GREY, PALE = "#0072B2", "#E69F00", "#009E73", "#56B4E9", "#BBBBBB", "#E3C9D9"
"""Okabe and Ito's colours, which colour-blind people can tell apart, and two shades."""
LIGHT = "#F2F2F2"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "tintformer",  # names inside of the file are the same on every run
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "hatch.linewidth": 0.5,
}


def write_figures(figures: Mapping[str, Callable[[], Figure]], directory: Path) -> list[Path]:
    """Write figures by name, all together, the same bytes on every run."""
    matplotlib = import_matplotlib("figures")
    files = {f"{name}.svg": io.BytesIO() for name in figures}
    check_directory(directory, files)
    for file, make in zip(files.values(), figures.values(), strict=True):
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(STYLE)
            make().savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    try:
        with whole_files(directory, list(files)) as folder:
            for name, file in files.items():
                (folder / name).write_bytes(file.getvalue())
    except OSError as error:
        raise TintError(f"cannot write figures into {directory}: {error}") from error
    return [directory / file for file in files]


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def box(
    panel: Any, x: float, y: float, width: float, height: float, colour: Any, text: str = "", *, edge: str = "white"
) -> None:
    """A rectangle with a text in its middle."""
    from matplotlib.patches import Rectangle

    panel.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=edge, linewidth=0.5, clip_on=False))
    if text:
        panel.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=6)


def patch(colour: str, *, hatch: str = "") -> Any:
    """The sample of a legend."""
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, hatch=hatch, edgecolor="black" if hatch else None, linewidth=0.3)


def frame(panel: Any, width: float, height: float) -> None:
    """Rows downwards, columns to the right, and no ticks."""
    panel.set_xlim(0, width)
    panel.set_ylim(height, 0)
    panel.tick_params(length=0)


def fill_cells(panel: Any, cells: Bool[Tensor, "rows columns"], colour: Any) -> None:
    """Fill the cells of a grid, all as one drawing: neighbours of a row become one rectangle."""
    from matplotlib.collections import PolyCollection

    corners = [
        [(left, row), (left + width, row), (left + width, row + 1), (left, row + 1)]
        for row, line in enumerate(cells)
        for left, width in spans(line)
    ]
    panel.add_collection(PolyCollection(corners, facecolors=colour, edgecolors="none"))


def runs(numbers: Tensor, *, alone: int = -1) -> list[tuple[int, int]]:
    """Neighbouring numbers as (start, length); the number `alone` is a run of its own."""
    found: list[tuple[int, int]] = []
    for number in numbers.tolist():
        joins = found and sum(found[-1]) == number and alone not in (number, found[-1][0])
        found = [*found[:-1], (found[-1][0], found[-1][1] + 1)] if joins else [*found, (number, 1)]
    return found


def spans(mask: Tensor) -> list[tuple[int, int]]:
    """Where a line of a mask is set, as (start, length)."""
    return runs(mask.nonzero().flatten())
