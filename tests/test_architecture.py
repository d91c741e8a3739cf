# pyright: basic
"""The house keeps its order: one picture of it that is true, names that are found once, tests where their code is."""

from __future__ import annotations

import ast
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import draw_architecture
import pytest

import tintformer

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tintformer"
OTHER_TESTS = {"tintbench", "training"}
"""Folders of tests whose code is in the repository but not in the package."""


def test_the_published_picture_is_drawn_from_this_code() -> None:
    published = draw_architecture.FIGURE.read_text(encoding="utf-8")
    assert published == draw_architecture.draw(), "draw it again: python tests/draw_architecture.py"


def test_the_arrows_of_the_picture_lead_down() -> None:
    row = {name: number for number, names in enumerate(draw_architecture.layers()) for name in names}
    edges = draw_architecture.imports()
    assert edges and all(row[source] < row[target] for source, target in edges)


def test_an_import_that_a_chain_implies_has_no_arrow() -> None:
    edges = {("a", "b"), ("b", "c"), ("a", "c"), ("a", "d")}
    assert draw_architecture.reduced(edges) == {("a", "b"), ("b", "c"), ("a", "d")}


def test_a_file_name_says_where_it_is() -> None:
    names = Counter(path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 2] == []


def test_tests_stand_where_their_code_does() -> None:
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")} - {Path()}
    missing = [str(folder) for folder in folders if not (PACKAGE / folder).is_dir() and str(folder) not in OTHER_TESTS]
    assert missing == []


def test_every_public_name_stands_in_the_one_table() -> None:
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    imported = {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(tintformer.__all__) == imported == set(dir(tintformer))
    assert all(getattr(tintformer, name) is not None for name in imported)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_page_on_the_architecture_is_linked(page: str) -> None:
    assert "(docs/architecture.md" in (ROOT / page).read_text(encoding="utf-8")


def test_shapes_are_checked_in_modules_that_exist() -> None:
    """A package that was renamed would be left out of the checks without a word."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    packages = text.partition("CHECKED :=")[2].partition("COMMA")[0].replace("\\", "").split()
    assert len(packages) > 10
    assert [name for name in packages if find_spec(name) is None] == []
