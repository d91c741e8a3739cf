# pyright: basic
"""Reports to test with, and what a browser would see of a page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

from tiny import TEXT, make_model, make_tokenizer

import tintformer as tint
from tintformer.learning.text import encode
from tintlab.reports import Report, collect

RULE = tint.LearningRule(learning_rate=0.01, steps=2)
TRAIN = 60


def make(text: str = TEXT, *, train_tokens: int = TRAIN, rule: tint.LearningRule = RULE, **options: Any) -> Report:
    tokenizer = make_tokenizer()
    auxiliary = tint.load(make_model(len(tokenizer)))
    encoded = encode(tokenizer, text)
    return collect(auxiliary, rule, text, encoded, tokenizer, train_tokens=train_tokens, **options)


class Read(HTMLParser):
    """What a browser would see: the tokens' texts and attributes, the data, and every tag."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tokens: list[tuple[dict[str, str | None], str]] = []
        self._open: list[str] = []
        self._in_token = 0
        self.feed(page)
        self.data = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag == "span" and (attributes.get("id") or "").startswith("token-"):
            self.tokens.append((attributes, ""))
            self._in_token = 1
        elif tag == "span" and self._in_token:
            self._in_token += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "span" and self._in_token:
            self._in_token -= 1

    def handle_data(self, data: str) -> None:
        if self._in_token:
            attributes, text = self.tokens[-1]
            self.tokens[-1] = attributes, text + data
