# pyright: basic
"""The documentation as it is written: its links lead somewhere, and it names what is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAMES = ("README.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", "training/README.md")
READMES = [ROOT / name for name in NAMES]
VARIES = "…"
"""Stands for what a message fills in."""


def prose(page: Path) -> str:
    """A page without its fenced code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    """Targets of links and images that are no addresses."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link, where repositories are shown."""
    titles = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def cells(page: Path, column: int) -> list[str]:
    """One column of all tables of a page, without their heads."""
    bodies = re.findall(r"^\|[-|: ]+\|\n((?:\|.*\n)+)", prose(page), flags=re.MULTILINE)
    return [row.strip("|").split("|")[column].strip() for body in bodies for row in body.splitlines()]


def code_spans(text: str) -> list[str]:
    return [(double or single).strip() for double, single in re.findall(r"``(.+?)``|`([^`]+)`", text)]


@pytest.mark.parametrize("page", READMES + PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            wrong.append(f"{link}: there is no such file")
        elif anchor and anchor not in anchors(target):
            wrong.append(f"{link}: the page has no such heading")
        elif page in PAGES and not target.is_relative_to(DOCS) and target.suffix != ".ipynb":
            wrong.append(f"{link}: the site holds docs/ and notebooks alone; name the path without a link")
    assert wrong == []


@pytest.mark.parametrize("page", READMES + PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:tintformer|tintlab|tintbench|tests|training|docs|\.ci)/[\w./-]*)`", prose(page))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_symbol_exists_where_the_table_says() -> None:
    page = DOCS / "symbols.md"
    names, places = cells(page, 1), cells(page, 3)
    assert len(names) > 30
    for cell, place in zip(names, places, strict=True):
        (path,) = code_spans(place)
        source = (ROOT / path).read_text(encoding="utf-8")
        assert code_spans(cell), cell
        for name in code_spans(cell):
            assert re.search(rf"\b{re.escape(name)}\b", source), f"{name} is not in {path}"


def messages_of_the_packages() -> list[str]:
    """Every string of both packages, with a mark where a value is filled in."""
    found: list[str] = []
    for path in (path for name in ("tintformer", "tintlab") for path in (ROOT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else VARIES for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_every_message_is_quoted_as_the_code_gives_it() -> None:
    quoted = [message for cell in cells(DOCS / "troubleshooting.md", 0) for message in code_spans(cell)]
    assert len(quoted) > 40
    known = messages_of_the_packages()
    assert [message for message in quoted if not any(message in each for each in known)] == []


def test_every_promise_names_a_test_that_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 20
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert name in tests, f"{path} has no {name}"
    rows = re.findall(r"^\| (?!promise).+ \| (.+) \|$", text, flags=re.MULTILINE)
    assert [row for row in rows if "tests/" not in row and "TODO-ROW" not in row] == [], "a promise without a test"


def test_the_version_is_the_same_everywhere() -> None:
    found = {
        name: re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
        for name, pattern in {
            "pyproject.toml": r'^version = "(.+)"$',
            "tintformer/version.py": r'^__version__ = "(.+)"$',
            "CITATION.cff": r"^version: (.+)$",
        }.items()
    }
    assert len({tuple(versions) for versions in found.values()}) == 1, found


def test_the_release_workflow_runs_what_there_is() -> None:
    path = ROOT / ".github" / "workflows" / "release.yml"
    text = path.read_text(encoding="utf-8")
    steps = yaml.safe_load(text)["jobs"]["build"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"\bmake (\w+)", "\n".join(commands))
    assert targets == ["package", "docs"]
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)
    assert {step["with"]["path"] for step in steps if "upload" in step.get("uses", "")} == {"dist", "site"}
    assert "://" not in text, "it needs no address"
