# pyright: basic
"""The coloured text for notebooks: whole, escaped, with its own styles, and in the colours of the page."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest

import tintformer as tint
from tintformer.study.coloured import SHADES, STRENGTH, colour_limit, coloured_html, shade

HOSTILE = [
    "<img src=x onerror='a(1)'>",
    '" onmouseover="a(1)',
    "</div></span>",
    " &amp; &",
    "\n\n",
    "{}",
    "\u202e!",
    "{0}",
]


class Spans(HTMLParser):
    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.found: list[tuple[dict[str, str | None], str]] = []
        self._inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "span"
        if self._inside:
            self.found.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found[-1] = self.found[-1][0], self.found[-1][1] + data


def test_every_token_has_the_colour_of_its_gain() -> None:
    tokens, gains = ["Dear", " Mrs.", " Verre", "ll", ","], [None, 0.0, 0.3, -0.3, 0.1]
    found = Spans(coloured_html(tokens, gains)).found
    assert [text for _, text in found] == tokens
    trained, same, better, worse, little = (attributes for attributes, _ in found)
    assert "dotted" in (trained["style"] or "") and "title" not in trained
    assert same["style"] == "" and same["title"] == "less likely by 0.000 nats"
    assert f"rgba(30,140,215,{STRENGTH:.2f})" in (better["style"] or "") and better["title"] == "likelier by 0.300 nats"
    assert "rgba(240,140,0," in (worse["style"] or "") and "underline" in (worse["style"] or "")
    assert worse["title"] == "less likely by 0.300 nats"
    assert f"rgba(30,140,215,{STRENGTH * SHADES[1]:.2f})" in (little["style"] or "")


def test_it_is_one_element_that_nothing_escapes_from() -> None:
    html = coloured_html(HOSTILE, [0.1] * len(HOSTILE))
    spans = Spans(html)
    assert [text.replace("\u21b5\n", "\n") for _, text in spans.found] == HOSTILE
    assert {tag for tag, _ in spans.tags} == {"div", "span"}
    assert {name for _, attributes in spans.tags for name in attributes} <= {"style", "title", "dir"}
    assert html.startswith("<div>") and html.endswith("</div>") and html.count("<div") == html.count("</div>") == 3
    assert not re.search(r"url\(|https?:|<style|<script", html)


def test_any_numbers_will_do() -> None:
    assert coloured_html([], []).count("<span") == 0
    assert "strongest from 0.5 nats on" in coloured_html(["a", "b", "c"], [math.inf, -math.inf, 0.5])
    assert "dotted" in coloured_html(["a"], [math.nan])
    with pytest.raises(tint.InputError, match="there are 2 tokens but 1 gains; give one for each, or None"):
        coloured_html(["a", "b"], [0.1])


def test_shades_and_their_limit() -> None:
    assert colour_limit([0.1] * 95 + [9.0] * 5) == pytest.approx(0.1) and colour_limit([0.0]) > 0
    assert colour_limit([-0.3]) == pytest.approx(0.3) and colour_limit([-0.61]) == pytest.approx(0.7)
    assert [shade(change, 1.0) for change in (0.0, -0.04, -0.1, -2, 1.0)] == ["", "", "better-1", "better-5", "worse-5"]
