# pyright: basic
"""The report in a real browser: what a token shows, by mouse, keyboard and link; both widths, both themes."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from tiny import TEXT, make_model, make_tokenizer

import tintformer as tint
from tintformer.learning.rate_selection import RateChoice, RatePoint
from tintformer.learning.text import encode
from tintformer.study.coloured import visible
from tintlab.reports import Report, collect, write
from tintlab.reports.page import perplexity

SIZES = [(1280, 900), (390, 844)]
TRAIN = 60
SHOWN = "!document.getElementById('tip').hidden"
TIP = "document.getElementById('tip')"


@pytest.fixture(scope="module")
def report() -> Report:
    tokenizer = make_tokenizer()
    curve = [(0.0, 5.0), (1e-3, 4.8), (1e-2, 4.4), (1e-1, float("inf"))]
    choice = RateChoice(
        rate=1e-2,
        curve=tuple(RatePoint(rate=rate, loss=loss) for rate, loss in curve),
        helps=True,
        train_tokens=48,
        evaluation_tokens=12,
    )
    text = TEXT.replace("Ada lights", "<b>\U0001f600</b>\n\n\u05e9\u05dc\u05d5\u05dd", 1)[:330]
    rule = tint.LearningRule(learning_rate=1e-2)
    auxiliary = tint.load(make_model(len(tokenizer)))
    asked: dict[str, Any] = {"choice": choice, "baseline": True, "generate": 12, "name": "<b>a story</b>.txt"}
    return collect(auxiliary, rule, text, encode(tokenizer, text), tokenizer, train_tokens=TRAIN, **asked)


@pytest.fixture(scope="module")
def page(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(report, tmp_path_factory.mktemp("page with space"))


@pytest.fixture(scope="module")
def deep_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model with 40 layers."""
    tokenizer = make_tokenizer()
    auxiliary = tint.load(make_model(len(tokenizer), layers=40))
    rule = tint.LearningRule(learning_rate=1e-4)
    made = collect(auxiliary, rule, TEXT, encode(tokenizer, TEXT), tokenizer, train_tokens=TRAIN)
    return write(made, tmp_path_factory.mktemp("deep"))


def percent(probability: float) -> str:
    """As the page's script writes it, for probabilities that are not tiny."""
    share = 100 * probability
    return f"{share:.1f}%" if share >= 9.95 else f"{share:#.2g}%"


def shown(browser: Browser) -> dict[str, Any]:
    """What the open token shows."""
    browser.wait(SHOWN)
    return browser.value(
        f"""({{
            word: {TIP}.querySelector('.word').textContent,
            where: {TIP}.querySelector('.where').textContent,
            titles: [...{TIP}.querySelectorAll('.side > b')].map(each => each.textContent),
            rows: [...{TIP}.querySelectorAll('ol')].map(list => [...list.children].map(item =>
                [...item.children].map(each => each.textContent))),
            box: {TIP}.getBoundingClientRect().toJSON(),
            open: [...document.querySelectorAll('.open')].map(each => each.id),
        }})"""
    )


def check(found: dict[str, Any], report: Report, row: int) -> None:
    """Compare with the numbers of the pass."""
    from math import exp

    token = report.scored[row]
    assert found["open"] == [f"token-{token.position}"] and found["where"] == f"token {token.position}"
    assert found["word"] == visible(report.pieces[token.position].text)
    assert found["titles"] == [f"before {percent(exp(-token.loss_before))}", f"after {percent(exp(-token.loss))}"]
    for rows, top in zip(found["rows"], (token.top_before, token.top), strict=True):
        assert rows == [[visible(each.word), percent(each.probability)] for each in top]
        assert len(rows) == 5


def inside(box: dict[str, float], width: int, height: int) -> bool:
    return box["left"] >= 0 and box["top"] >= 0 and box["right"] <= width and box["bottom"] <= height


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SIZES, ids=["desktop", "phone"])
def test_hovering_a_token(
    browser: Browser, page: Path, report: Report, width: int, height: int, dark: bool, tmp_path: Path
) -> None:
    browser.open(page, width=width, height=height, dark=dark)
    assert not browser.value(SHOWN)
    assert browser.value("document.documentElement.scrollWidth") <= width
    likely = [row for row, token in enumerate(report.scored) if max(token.loss, token.loss_before) < 6]
    for row in (likely[0], likely[len(likely) // 2], likely[-1]):
        browser.hover(f"#token-{report.scored[row].position}")
        found = shown(browser)
        check(found, report, row)
        assert inside(found["box"], width, height)
        assert browser.value("document.documentElement.scrollWidth") <= width
    browser.hover("h1")
    browser.wait(f"!({SHOWN})")
    background = browser.value("getComputedStyle(document.body).backgroundColor")
    ink = browser.value("getComputedStyle(document.querySelector('figure svg text')).fill")
    assert (brightness(background) < 80 < 180 < brightness(ink)) == dark
    assert (brightness(ink) < 80 < 180 < brightness(background)) != dark
    picture = tmp_path / "page.png"
    browser.screenshot(picture)
    assert picture.stat().st_size > 10_000


def brightness(colour: str) -> float:
    red, green, blue = (float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])
    return 0.3 * red + 0.6 * green + 0.1 * blue


def test_a_link_and_the_keyboard(browser: Browser, page: Path, report: Report) -> None:
    position = report.scored[7].position
    browser.open(page, f"#token-{position}")
    browser.wait(SHOWN)
    opened = "document.querySelector('.open')?.id"
    assert browser.value(opened) == f"token-{position}"
    assert browser.value("document.activeElement.id") == f"token-{position}"
    assert browser.value("document.activeElement.getAttribute('aria-describedby')") == "tip"
    browser.press("ArrowRight")
    browser.wait(f"{opened} === 'token-{position + 1}'")
    browser.press("Home")
    browser.wait(f"{opened} === 'token-{TRAIN}'")
    browser.press("ArrowLeft")  # the training part is not scored
    assert browser.value(opened) == f"token-{TRAIN}"
    browser.press("End")
    browser.wait(f"{opened} === 'token-{report.scored[-1].position}'")
    browser.press("Escape")
    browser.wait(f"!({SHOWN})")


def test_nothing_leaves_and_nothing_complains(browser: Browser, page: Path, report: Report) -> None:
    browser.open(page, f"#token-{report.scored[0].position}")
    browser.wait(SHOWN)
    # `data:,` is the empty icon.
    assert all(address.startswith(("file:", "data:,")) for address in browser.requests())
    assert sum(address.startswith("file:") for address in browser.requests()) == 1
    assert browser.complaints() == []
    assert browser.value("performance.getEntriesByType('resource').map(each => each.name)") in ([], ["data:,"])
    assert browser.value("document.querySelectorAll('figure svg').length") == 5
    # The tiny tokenizer cuts letters into bytes; each further byte is a mark of its own.
    shown_text = browser.value("document.getElementById('text').textContent").replace("\u22ef", "")
    assert "<b>" in shown_text and "\u05e9\u05dc\u05d5\u05dd" in shown_text


def test_a_word_of_the_largest_changes_leads_to_its_token(browser: Browser, page: Path, report: Report) -> None:
    browser.open(page)
    assert browser.value("document.title") == "GPT2LMHeadModel reads <b>a story</b>.txt: training inside a forward pass"
    position = min(report.scored, key=lambda token: token.change).position
    browser.click(".changes tr:nth-child(2) a")
    browser.wait(f"document.querySelector('.open')?.id === 'token-{position}'")
    assert shown(browser)["where"] == f"token {position}"


BOXES = """[...document.querySelectorAll('figure')].map(figure => {
    const box = figure.getBoundingClientRect(), below = parseFloat(getComputedStyle(figure).paddingBottom);
    return {left: box.left, top: box.top, bottom: box.bottom - below};
})"""
"""Where each figure stands."""


@pytest.mark.parametrize(("width", "height"), SIZES, ids=["desktop", "phone"])
def test_a_deep_model_leaves_no_half_page_empty(browser: Browser, deep_page: Path, width: int, height: int) -> None:
    browser.open(deep_page, width=width, height=height)
    assert browser.value("document.documentElement.scrollWidth") <= width
    boxes = browser.value(BOXES)
    assert len(boxes) == 5 and "from the smallest to the largest" in deep_page.read_text(encoding="utf-8")
    assert max(box["bottom"] - box["top"] for box in boxes) < 0.75 * height
    columns: dict[int, list[dict[str, float]]] = {}
    for box in boxes:
        columns.setdefault(round(box["left"]), []).append(box)
    assert len(columns) == (2 if width > 600 else 1)
    for column in columns.values():
        for above, below in pairwise(column):
            assert 0 < below["top"] - above["bottom"] < 60
    ends = [column[-1]["bottom"] for column in columns.values()]
    assert max(ends) - min(ends) < height / 2


def test_the_page_prints_in_two_columns_without_its_tip(browser: Browser, page: Path, deep_page: Path) -> None:
    for each in (page, deep_page):
        browser.open(each, f"#token-{TRAIN}", dark=True)
        browser.wait(SHOWN)
        printed = browser.print()
        assert printed.startswith(b"%PDF") and 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 4
        browser.send("Emulation.setEmulatedMedia", media="print", features=[])
        assert browser.value(f"getComputedStyle({TIP}).display") == "none"
        assert len({round(box["left"]) for box in browser.value(BOXES)}) == 2
        assert browser.value("getComputedStyle(document.querySelector('figure')).breakInside") == "avoid"


def test_what_was_asked_for_is_shown_on_a_phone(browser: Browser, page: Path, report: Report) -> None:
    browser.open(page, width=390, height=844)
    assert browser.value("document.documentElement.scrollWidth") <= 390
    continued = report.continuations
    assert continued is not None and report.baseline is not None
    sides = browser.value("[...document.querySelectorAll('.continuation')].map(each => each.textContent)")
    assert [side.replace("\u21b5\n", "\n") for side in sides] == [continued.before, continued.after]
    assert browser.value("document.querySelector('#baseline .number').textContent") == perplexity(report.baseline.loss)
    assert browser.value("document.querySelectorAll('.continuation b').length") == 0
    parts = "[...document.querySelectorAll('.card, .continuation, td, figure')]"
    assert max(browser.value(f"{parts}.map(each => each.getBoundingClientRect().right)")) <= 390
