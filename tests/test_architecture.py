# pyright: basic
"""The house keeps its order: one picture of it that is true, names that are found once, tests where their code is."""

from __future__ import annotations

import ast
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import draw_architecture
import pytest

import tintformer
import tintlab

ROOT = Path(__file__).parent.parent
PACKAGES = (tintformer, tintlab)
PLACES = {name: ROOT / name for name in ("tintlab", "tintbench", "training")} | {
    "drawings": ROOT / "docs" / "tools" / "drawings"
}
"""By a folder of tests, whose tests it has; those of all others are of the same folder in tintformer."""


def test_the_published_picture_is_drawn_from_this_code() -> None:
    published = draw_architecture.FIGURE.read_text(encoding="utf-8")
    assert published == draw_architecture.draw(), "draw it again: python tests/draw_architecture.py"


def test_the_arrows_of_the_picture_lead_down() -> None:
    for package, rows in draw_architecture.layers().items():
        row = {name: number for number, names in enumerate(rows) for name in names}
        edges = draw_architecture.imports(package)
        assert edges and all(row[source] < row[target] for source, target in edges)


def test_an_import_that_a_chain_implies_has_no_arrow() -> None:
    edges = {("a", "b"), ("b", "c"), ("a", "c"), ("a", "d")}
    assert draw_architecture.reduced(edges) == {("a", "b"), ("b", "c"), ("a", "d")}


def test_a_file_name_says_where_it_is() -> None:
    paths = [path for package in PACKAGES for path in (ROOT / package.__name__).rglob("*.py")]
    names = Counter(path.name for path in paths if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 2] == []


def test_tests_stand_where_their_code_does() -> None:
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")} - {Path()}
    code = {folder: PLACES.get(folder.parts[0], ROOT / "tintformer" / folder.parts[0]) for folder in folders}
    missing = [str(folder) for folder, place in code.items() if not place.joinpath(*folder.parts[1:]).is_dir()]
    assert missing == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_stands_in_the_one_table(package: Any) -> None:
    stub = ast.parse((ROOT / package.__name__ / "__init__.pyi").read_text(encoding="utf-8"))
    imported = {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(package.__all__) == imported == set(dir(package))
    assert all(not isinstance(getattr(package, name), ModuleType) for name in imported), "a folder took its place"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_page_on_the_architecture_is_linked(page: str) -> None:
    assert "(docs/architecture.md" in (ROOT / page).read_text(encoding="utf-8")


def test_shapes_are_checked_in_modules_that_exist() -> None:
    """A package that was renamed would be left out of the checks without a word."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    packages = text.partition("CHECKED :=")[2].partition("COMMA")[0].replace("\\", "").split()
    assert len(packages) > 10
    assert [name for name in packages if find_spec(name) is None] == []
