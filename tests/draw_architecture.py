# pyright: basic
"""Draw the layers of both packages and the imports between them, from the code itself.

    python tests/draw_architecture.py      # writes docs/figures/architecture.svg

Layers are those of the import contracts in pyproject.toml, texts the folders' own docstrings, arrows the imports
between folders that no chain of other arrows implies. The lowest row may be used by all, so it has no arrows.
"""

from __future__ import annotations

import ast
import tomllib
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
FIGURE = ROOT / "docs" / "figures" / "architecture.svg"
WIDTH, BOX, HEIGHT, GAP, LANE = 760, 560, 40, 16, 22
"""Pixels: of the picture, of the column of boxes, of a box, between rows, between arrows beside the boxes."""


def layers() -> dict[str, list[list[str]]]:
    """By package, the rows of its import contract from top to bottom; folders of one row do not import each other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    stacks = [each for each in contracts if each["type"] == "layers"]
    return {each["containers"][0]: [row.split(" | ") for row in each["layers"]] for each in stacks}


def imports(package: str) -> set[tuple[str, str]]:
    """Which folder of a package imports which."""
    graph = grimp.build_graph(package, cache_dir=None)
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


def caption(package: str, name: str) -> str:
    """The first sentence of the docstring of a folder or a module, without its full stop."""
    place = ROOT / package / name
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = text.split("\n\n")[0].replace("\n", " ").split("; ")[0].split(". ")[0].rstrip(".")
    return sentence if len(sentence) <= 96 else sentence[:95].rsplit(" ", 1)[0] + " …"


def box(x: float, y: float, width: float, name: str, text: str) -> str:
    lines = f'<text x="{x + 10}" y="{y + 16}" class="name">{escape(name)}</text>'
    if text:
        lines += f'<text x="{x + 10}" y="{y + 31}" class="caption">{escape(text)}</text>'
    return f'<rect x="{x}" y="{y}" width="{width}" height="{HEIGHT}" rx="4"/>{lines}'


def draw_package(package: str, rows: list[list[str]], above: float) -> tuple[list[str], float]:
    """The boxes of a package and the arrows between them, below a height of the picture; and where they end."""
    arrows = reduced(imports(package))
    top = {name: above + number * (HEIGHT + GAP) for number, row in enumerate(rows) for name in row}
    row_of = {name: number for number, row in enumerate(rows) for name in row}
    parts: list[str] = []
    shared = rows[-1] if len(rows[-1]) > 1 else []
    for (name,) in rows[: len(rows) - bool(shared)]:
        parts.append(box(10, top[name], BOX, name, caption(package, name)))
    if shared:
        parts.append(box(10, top[shared[0]], BOX, ", ".join(f"{name}.py" for name in shared), "used by all"))
    lane = 0
    for source, target in sorted(arrows, key=lambda edge: (row_of[edge[1]] - row_of[edge[0]], row_of[edge[0]], edge)):
        if target in shared:
            continue
        start, end = top[source] + HEIGHT, top[target]
        if row_of[target] - row_of[source] == 1:
            parts.append(f'<path d="M {10 + BOX / 2} {start} V {end - 2}" marker-end="url(#head)"/>')
            continue
        lane += 1
        x = 10 + BOX + 8 + LANE * ((lane - 1) % 7)
        parts.append(
            f'<path d="M {10 + BOX} {start - 10 - lane % 3 * 6} H {x + 8} V {end + 10 + lane % 4 * 6} H {12 + BOX}" '
            'marker-end="url(#head)"/>'
        )
    return parts, top[rows[-1][0]] + HEIGHT


def draw() -> str:
    parts: list[str] = []
    height = 0.0
    for package, rows in layers().items():
        said = f"{package}, which imports nothing of the laboratory" if parts else f"{package}, the laboratory"
        parts.append(f'<text x="10" y="{height + 24}" class="title">{escape(said)}</text>')
        more, height = draw_package(package, rows, height + 36)
        parts += more
    height += 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="Folders of the two packages from top to bottom, and which imports which">'
        "<style>rect{fill:#eef3f8;stroke:#667079}path{fill:none;stroke:#667079;stroke-width:1.2}"
        "text{font-family:sans-serif;fill:#1f2329}.title{font-size:15px;font-weight:bold}"
        ".name{font-size:13px;font-weight:bold}.caption{font-size:10.5px}"
        '</style><defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M 0 0 L 8 4 L 0 8 z" style="fill:#667079;stroke:none"/></marker></defs>'
        f'<rect width="{WIDTH}" height="{height}" style="fill:#ffffff;stroke:none"/>' + "\n".join(parts) + "</svg>\n"
    )


if __name__ == "__main__":
    FIGURE.write_text(draw(), encoding="utf-8")
    print(f"wrote {FIGURE.relative_to(ROOT)}")
