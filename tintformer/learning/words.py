"""Tokens as a reader meets them: a piece inside of its word, the word among its neighbours."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

LEFT, RIGHT = 20, 12
"""Characters that are shown at most of a word on either side of the token, and once more of its neighbours. Where a
script has no spaces, these numbers alone say where a word ends."""


@dataclass(frozen=True, kw_only=True)
class InContext:
    """A token where it stands. White space at its start belongs to what is before it, unless it is all there is."""

    left: str
    """The words before."""
    before: str
    """The beginning of its own word."""
    token: str
    after: str
    """The end of its own word."""
    right: str
    """The words after."""

    @property
    def word(self) -> str:
        """Its word with the token in brackets, `Verre[ll]`; the token alone if it is all of the word."""
        return f"{self.before}[{self.token}]{self.after}" if self.before or self.after else self.token

    def __str__(self) -> str:
        return f"{self.left}{self.before}[{self.token}]{self.after}{self.right}".strip(" ")


class Passage:
    """A text as its tokens, each of which can be seen in its context."""

    def __init__(self, tokens: Sequence[str]):
        self.text = "".join(tokens)
        self.ends = list(accumulate(map(len, tokens)))

    def at(self, position: int) -> InContext:
        """The token at a position, and what is around it."""
        text, end = self.text, self.ends[position]
        start = self.ends[position - 1] if position else 0
        # A token of white space alone stays as it is: without it there would be nothing to point at.
        start += len(text[start:end]) - len(text[start:end].lstrip() or text[start:end])
        first, last = start, end
        if start < end and _of_a_word(text[start]):
            while first > max(0, start - LEFT) and _of_a_word(text[first - 1]):
                first -= 1
        if start < end and _of_a_word(text[end - 1]):
            while last < min(len(text), end + RIGHT) and _of_a_word(text[last]):
                last += 1
        return InContext(
            left=_last_words(text[max(0, first - LEFT - 1) : first]),
            before=text[first:start],
            token=text[start:end],
            after=text[end:last],
            right=_first_words(text[last : last + RIGHT + 1]),
        )


def distinct_words(tokens: Sequence[str], order: Iterable[int], most: int) -> list[tuple[InContext, int]]:
    """The first tokens of an order, each with its place; one that comes again in the same word is not repeated."""
    passage = Passage(tokens)
    found: dict[str, tuple[InContext, int]] = {}
    for position in order:
        if len(found) == most:
            break
        context = passage.at(position)
        found.setdefault(context.word, (context, position))
    return list(found.values())


def _of_a_word(character: str) -> bool:
    # Vowel signs of many scripts are marks, which are no letters to Python.
    return character.isalnum() or unicodedata.category(character).startswith("M")


def _last_words(text: str) -> str:
    """What fits of a text's end, from a word's beginning on if there is one."""
    return text if len(text) <= LEFT else re.sub(r"(?s)\A(\S*\s|.)", "", text) or text[1:]


def _first_words(text: str) -> str:
    """What fits of a text's beginning, up to a word's end if there is one."""
    return text if len(text) <= RIGHT else re.sub(r"(?s)(\s\S*|.)\Z", "", text) or text[:-1]
