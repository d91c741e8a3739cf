# pyright: basic
"""Draw the layers of the package and the imports between them, from the code itself.

    python tests/draw_architecture.py      # writes docs/figures/architecture.svg

Layers are those of the import contract in pyproject.toml, texts the folders' own docstrings, arrows the imports between
folders that no chain of other arrows implies. The lowest row may be used by all, so it has no arrows.
"""

from __future__ import annotations

import ast
import tomllib
from html import escape
from itertools import pairwise
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
FIGURE = ROOT / "docs" / "figures" / "architecture.svg"
WIDTH, BOX, HEIGHT, GAP, LANE = 760, 560, 40, 16, 22
"""Pixels: of the picture, of the column of boxes, of a box, between rows, between arrows beside the boxes."""


def layers() -> list[list[str]]:
    """Folders from the top of the import contract to its bottom; those of one row do not import each other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract, *_ = project["tool"]["importlinter"]["contracts"]
    return [row.split(" | ") for row in contract["layers"]]


def imports() -> set[tuple[str, str]]:
    """Which folder imports which."""
    graph = grimp.build_graph("tintformer", cache_dir=None)
    found = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            ends = [name.split(".")[1] for name in (module, imported) if "." in name]
            if len(ends) == 2 and ends[0] != ends[1]:
                found.add((ends[0], ends[1]))
    return found


def reduced(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The edges that no longer path between the same two folders implies."""
    below: dict[str, set[str]] = {}
    for source, target in edges:
        below.setdefault(source, set()).add(target)

    def reaches(source: str, target: str) -> bool:
        return target in below.get(source, ()) or any(reaches(middle, target) for middle in below.get(source, ()))

    return {
        (source, target)
        for source, target in edges
        if not any(reaches(middle, target) for middle in below[source] - {target})
    }


def caption(folder: str) -> str:
    """The first sentence of a folder's docstring, without its full stop."""
    source = (ROOT / "tintformer" / folder / "__init__.py").read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source)) or ""
    sentence = text.split("\n\n")[0].replace("\n", " ").split("; ")[0].split(". ")[0].rstrip(".")
    return sentence if len(sentence) <= 96 else sentence[:95].rsplit(" ", 1)[0] + " …"


def box(x: float, y: float, width: float, name: str, text: str) -> str:
    lines = f'<text x="{x + 10}" y="{y + 16}" class="name">{escape(name)}</text>'
    if text:
        lines += f'<text x="{x + 10}" y="{y + 31}" class="caption">{escape(text)}</text>'
    return f'<rect x="{x}" y="{y}" width="{width}" height="{HEIGHT}" rx="4"/>{lines}'


def draw() -> str:
    rows = layers()
    arrows = reduced(imports())
    top = {name: 10 + number * (HEIGHT + GAP) for number, row in enumerate(rows) for name in row}
    row_of = {name: number for number, row in enumerate(rows) for name in row}
    parts: list[str] = []
    for row in rows[:-1]:
        width = (BOX - 10 * (len(row) - 1)) / len(row)
        for number, name in enumerate(row):
            text = caption(name) if len(row) == 1 else ""
            parts.append(box(10 + number * (width + 10), top[name], width, name, text))
    parts.append(box(10, top[rows[-1][0]], BOX, ", ".join(f"{name}.py" for name in rows[-1]), "used by all"))
    lane = 0
    for source, target in sorted(arrows, key=lambda edge: (row_of[edge[1]] - row_of[edge[0]], row_of[edge[0]], edge)):
        if row_of[target] == len(rows) - 1:
            continue
        start, end = top[source] + HEIGHT, top[target]
        if row_of[target] - row_of[source] == 1 and len(rows[row_of[source]]) == len(rows[row_of[target]]) == 1:
            parts.append(f'<path d="M {10 + BOX / 2} {start} V {end - 2}" marker-end="url(#head)"/>')
            continue
        lane += 1
        x = 10 + BOX + 8 + LANE * ((lane - 1) % 7)
        parts.append(
            f'<path d="M {10 + BOX} {start - 10 - lane % 3 * 6} H {x + 8} V {end + 10 + lane % 4 * 6} H {12 + BOX}" '
            'marker-end="url(#head)"/>'
        )
    height = top[rows[-1][0]] + HEIGHT + 10
    assert all(row_of[a] < row_of[b] for a, b in pairwise(name for row in rows for name in row[:1]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="Folders of the package from top to bottom, and which imports which">'
        "<style>rect{fill:#eef3f8;stroke:#667079}path{fill:none;stroke:#667079;stroke-width:1.2}"
        "text{font-family:sans-serif;fill:#1f2329}.name{font-size:13px;font-weight:bold}.caption{font-size:10.5px}"
        '</style><defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M 0 0 L 8 4 L 0 8 z" style="fill:#667079;stroke:none"/></marker></defs>'
        f'<rect width="{WIDTH}" height="{height}" style="fill:#ffffff;stroke:none"/>' + "\n".join(parts) + "</svg>\n"
    )


if __name__ == "__main__":
    FIGURE.write_text(draw(), encoding="utf-8")
    print(f"wrote {FIGURE.relative_to(ROOT)}")
