# pyright: basic
"""The documentation as it is built: whole, without a connection, with every public name; and in a real browser."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import griffe
import pytest
import yaml
from browser import Browser
from cases import some
from filelock import FileLock
from patience import PATIENCE

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PACKAGES = ("tintformer", "tintlab")
PHONE, DESKTOP = (390, 844), (1280, 900)
HOME, REFERENCE, NOTEBOOK = "index.html", "api/learning.html", "notebooks/what_is_learnt.html"


def build_site(directory: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """What `make docs` runs, in a directory with docs/, examples/ and mkdocs.yml."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (options,) = re.findall(r"^docs:.*\n\t\$\(BIN\)/mkdocs (.*)$", makefile, flags=re.MULTILINE)
    command = [sys.executable, "-m", "mkdocs", *options.split(), "--site-dir", str(site)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=directory)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all tests, by whichever of the test processes comes first."""
    place = tmp_path_factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    with FileLock(place / "site.lock"):
        if not (place / "site").exists():
            done = build_site(ROOT, place / "unfinished")
            assert done.returncode == 0, done.stderr
            (place / "unfinished").rename(place / "site")
    return place / "site"


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    built = sorted(site.rglob("*.html"))
    assert len(built) > len(list(DOCS.rglob("*.md")))  # notebooks and 404.html on top
    for page in built:
        html = page.read_text(encoding="utf-8")
        loads = (
            r"<(?:script|img|iframe|source|audio|video)\b[^>]*?\bsrc=\"?([^\" >]+)|<link\b[^>]*?\bhref=\"?([^\" >]+)"
        )
        loaded = ["".join(pair) for pair in re.findall(loads, html)]
        assert loaded, page
        assert [each for each in loaded if re.match(r"(?:[a-z]+:)?//", each)] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    """All other pages have nothing but a title, so that no other link is in them."""
    for name in ("examples", *PACKAGES):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for page in (tmp_path / "docs").rglob("*.md"):
        page.write_text("# A page\n", encoding="utf-8")
    links = ["nothing.md", "symbols.md#nothing", "../README.md", "../examples/nothing.ipynb"]
    with (tmp_path / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.writelines(f"\n[broken]({link})\n" for link in links)
    done = build_site(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for link in (*links[:3], "notebooks/nothing.md"):
        assert link in done.stderr


def test_outputs_of_every_kind_become_parts_of_a_page() -> None:
    pages = runpy.run_path(str(DOCS / "tools" / "notebook_pages.py"))
    figures: dict[str, bytes] = {}

    def shown(**output: Any) -> str:
        return pages["_output"](output, "figure.png", figures)

    assert "```text\none\ntwo\n```" in shown(output_type="stream", text=["one\n", "two\n"])
    assert "```text\n5\n```" in shown(data={"text/plain": ["5"]})
    table = shown(data={"text/plain": ["a table"], "text/html": ["<table>\n", "\n", "</table>"]})
    assert "<table>\n</table>" in table and "a table" not in table
    assert "![figure](figure.png)" in shown(data={"text/plain": ["<Figure>"], "image/png": "aGVsbG8="})
    assert figures == {"figure.png": b"hello"}


# The reference.


class Page(HTMLParser):
    """What a page has: the ids of its elements and its text."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids: set[str] = set()
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids |= {value or "" for name, value in attrs if name == "id"}

    def handle_data(self, data: str) -> None:
        self.text += data


def public_names() -> list[str]:
    """Of both packages, with the package before each."""
    found = []
    for package in PACKAGES:
        tree = ast.parse((ROOT / package / "__init__.pyi").read_text(encoding="utf-8"))
        (names,) = (node.value for node in tree.body if isinstance(node, ast.Assign))
        found += [f"{package}.{name}" for name in ast.literal_eval(names)]
    return found


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    pages = [Page(path) for path in (site / "api").glob("*.html")]
    known = set().union(*(page.ids for page in pages))
    names = public_names()
    assert len(names) > 20
    assert [name for name in names if name not in known] == [], "add ::: lines to docs/api"


def test_the_values_that_a_parameter_may_take_are_shown(site: Path) -> None:
    text = "".join(Page(site / REFERENCE).text.split())  # wherever its lines are broken
    for shown in (
        'Literal["cross_entropy","mse","quad"]',
        'Literal["exact","first_order","central"]',
        'Literal["all","evaluation","none"]',
        'Literal["block","op","parameter"]',
        "Allowed:atleast1.",
        "1fortokens,0forpadding,oneitherside",
    ):
        assert shown in text, shown
    assert "Annotated" not in text and "Unpack" not in text


def directives() -> list[tuple[str, dict[str, Any]]]:
    """The objects that pages ask for, with their options."""
    found = []
    for page in sorted((DOCS / "api").glob("*.md")):
        for name, indented in re.findall(
            r"^::: (\S+)\n((?: {4}.*\n)*)", page.read_text(encoding="utf-8"), re.MULTILINE
        ):
            found.append((name, (yaml.safe_load(indented) or {}).get("options", {})))
    return found


def undescribed(thing: Any, members: list[str] | None) -> list[str]:
    """What the reference shows of a thing without saying what it is."""
    if thing.is_attribute:
        return [] if thing.docstring else [thing.path]
    if thing.docstring is None:
        return [thing.path]
    lacking = []
    described = [
        each.name.lstrip("*")
        for section in thing.docstring.parsed
        if section.kind is griffe.DocstringSectionKind.parameters
        for each in section.value
    ]
    if thing.is_function or "dataclass" not in thing.labels:
        given = [each.name.lstrip("*") for each in thing.parameters if each.name not in ("self", "cls")]
        lacking += [f"{thing.path}({name})" for name in given if name not in described]
    if thing.is_class:
        for name, member in thing.all_members.items():
            shown = name in members if members else not name.startswith("_") or name == "__call__"
            field = member.is_attribute and "property" not in member.labels
            inner = field and not member.docstring and "dataclass" not in thing.labels  # what __init__ keeps
            if shown and (members or not inner):
                lacking += undescribed(member, None)
    return lacking


def test_every_parameter_is_described() -> None:
    extensions = griffe.load_extensions(str(DOCS / "tools" / "allowed_values.py"))
    loader = griffe.GriffeLoader(
        extensions=extensions, search_paths=[ROOT], docstring_parser=griffe.Parser("google"), allow_inspection=False
    )
    packages: dict[str, Any] = {name: loader.load(name) for name in PACKAGES}
    loader.resolve_aliases(implicit=False, external=False)
    asked = directives()
    assert set(public_names()) <= {name for name, _ in asked}
    lacking = []
    for path, options in asked:
        package, _, name = path.partition(".")
        lacking += undescribed(packages[package][name], options.get("members"))
    assert lacking == []


# In a browser.


def overflowing(browser: Browser, selector: str) -> list[str]:
    """Elements that are wider inside than outside: what a reader does not see without scrolling sideways."""
    return browser.value(
        f"[...document.querySelectorAll('{selector}')].filter(each => each.scrollWidth > each.clientWidth + 1)"
        ".map(each => each.textContent.slice(0, 80))"
    )


@pytest.mark.parametrize("width, height", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("page", [HOME, REFERENCE, NOTEBOOK])
def test_a_page_opens_from_disk(browser: Browser, site: Path, page: str, width: int, height: int) -> None:
    browser.open(site / page, width=width, height=height)
    browser.wait("document.querySelectorAll('pre .md-code__button, pre .md-clipboard').length > 0")
    assert browser.value("document.documentElement.scrollWidth") <= width
    if width == PHONE[0]:
        assert overflowing(browser, "pre > code") == [], "code is cut"
    assert browser.value("[...document.images].every(each => each.complete && each.naturalWidth > 0)")
    assert browser.value("[...document.images].every(each => each.getBoundingClientRect().right <= innerWidth)")
    assert all(address.startswith(("file:", "data:", "blob:")) for address in browser.requests())
    assert browser.complaints() == []


@pytest.mark.parametrize("every", some([3, 1]))
def test_no_page_is_wider_than_a_phone(browser: Browser, site: Path, every: int) -> None:
    wrong = []
    for page in sorted(site.rglob("*.html"))[::every]:
        browser.open(page, width=PHONE[0], height=PHONE[1])
        if browser.value("document.documentElement.scrollWidth") > PHONE[0] or overflowing(browser, "pre > code"):
            wrong.append(str(page.relative_to(site)))
    assert wrong == []


def test_the_home_page_has_the_picture_and_a_result(browser: Browser, site: Path) -> None:
    browser.open(site / HOME)
    assert browser.value("document.querySelector('article img').getBoundingClientRect().top") < DESKTOP[1]
    assert "18.94 instead of 67.39" in browser.value("document.querySelector('article').textContent")
    assert browser.value("document.querySelectorAll('article .highlight span.kn').length") > 0, "code has colours"


def test_a_name_of_the_reference_can_be_linked_to(browser: Browser, site: Path) -> None:
    browser.open(site / REFERENCE, "#tintformer.Tint.adapt")
    top = "document.getElementById('tintformer.Tint.adapt').getBoundingClientRect().top"
    browser.wait(f"{top} > -10 && {top} < innerHeight / 2")
    assert "train_mask" in browser.value(
        "document.getElementById('tintformer.Tint.adapt').closest('.doc-object').textContent"
    )


def test_a_notebook_shows_what_it_put_out(browser: Browser, site: Path) -> None:
    browser.open(site / NOTEBOOK)
    assert browser.value("document.querySelectorAll('.cell-output img').length") >= 3
    assert "nats per token" in browser.value("document.querySelector('.cell-output').textContent")
    assert browser.value("document.querySelectorAll('.highlight span.kn').length") > 0


def test_the_search_works_without_a_server(browser: Browser, site: Path) -> None:
    browser.open(site / HOME)
    query = "document.querySelector('[data-md-component=search-query]')"
    browser.value(f"{query}.focus(), {query}.value = 'choose_rate', {query}.dispatchEvent(new Event('keyup'))")
    found = "[...document.querySelectorAll('.md-search-result__link')].map(each => each.getAttribute('href'))"
    browser.wait(f"{found}.some(each => each.includes('api/learning.html'))")
    assert browser.complaints() == []


def test_both_themes_can_be_read(browser: Browser, site: Path) -> None:
    brightness = []
    for dark in (False, True):
        browser.open(site / HOME, dark=dark)
        browser.wait(f"document.body.getAttribute('data-md-color-scheme') === '{'slate' if dark else 'default'}'")
        colours = browser.value(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        brightness.append([sum(map(float, re.findall(r"[\d.]+", colour)[:3])) for colour in colours])
    (light_page, light_ink), (dark_page, dark_ink) = brightness
    assert light_page > light_ink + 300 and dark_ink > dark_page + 200
