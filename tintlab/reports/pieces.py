"""The text of every token, as a reader sees it: put together, the pieces are the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from tintformer.learning.text import decode

PieceKind = Literal["text", "special", "rest"]
"""`special` tokens are not in the text; a `rest` is one more token of a character that was shown before."""

SIGNS = {" ": "\u2423", "\n": "\u21b5", "\r": "\u240d", "\t": "\u21e5"}
"""What stands for white space where it would not be seen."""


REST = "\N{MIDLINE HORIZONTAL ELLIPSIS}"
"""What stands for one more token of a character."""
LONGEST_NAME = 48
"""Characters of a name that a text gets from its first words."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One token."""

    text: str
    kind: PieceKind = "text"
    gap: str = ""
    """White space before it that belongs to no token: some tokenizers drop it."""


def cut(text: str, tokens: Sequence[str]) -> tuple[Piece, ...]:
    """Find each token in the text, from left to right; `tokens` are those of `tintformer.learning.text.Encoded`."""
    pieces: list[Piece] = []
    end = 0
    for token in tokens:
        rest = text[end:]
        gap = rest[: len(rest) - len(rest.lstrip())]
        if token and rest.startswith(token):
            pieces.append(Piece(text=token))
            end += len(token)
        elif token and rest[len(gap) :].startswith(token):
            pieces.append(Piece(text=token, gap=gap))
            end += len(gap) + len(token)
        else:
            # Bytes of one character are tokens of their own, all with the whole character for a text.
            again = bool(token) and bool(pieces) and text[:end].endswith(token)
            pieces.append(Piece(text=token, kind="rest" if again else "special"))
    return tuple(pieces)


def visible(text: str) -> str:
    """A token by itself, with signs for its line breaks and for the spaces at its ends."""
    text = "".join(SIGNS[character] if character in "\n\r\t" else character for character in text)
    start = len(text) - len(text.lstrip(" "))
    end = len(text.rstrip(" "))
    if start >= end:
        return SIGNS[" "] * len(text)
    return SIGNS[" "] * start + text[start:end] + SIGNS[" "] * (len(text) - end)


def shown(piece: Piece) -> str:
    """A token inside of the text; what the text does not have, as a sign."""
    if piece.kind == "rest":
        return REST
    return piece.text if piece.kind == "text" else visible(piece.text) or "\N{EMPTY SET}"


def name_of(text: str) -> str:
    """What a text without a name is called: its first words, in quotes."""
    opening = " ".join(text[: 4 * LONGEST_NAME].split())
    if len(opening) <= LONGEST_NAME:
        return f"\N{LEFT DOUBLE QUOTATION MARK}{opening}\N{RIGHT DOUBLE QUOTATION MARK}"
    words = opening[:LONGEST_NAME].rpartition(" ")[0] or opening[:LONGEST_NAME]
    return f"\N{LEFT DOUBLE QUOTATION MARK}{words} \N{HORIZONTAL ELLIPSIS}\N{RIGHT DOUBLE QUOTATION MARK}"


class Words:
    """The text of a vocabulary's entries, a leading space included."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.of = cache(self._of)

    def _of(self, token: int) -> str:
        stored = self.tokenizer.convert_ids_to_tokens(token)
        if stored is None:  # the matrix of the head may have more rows than the tokenizer has entries
            return f"[{token}]"
        word = decode(self.tokenizer, [token])
        # sentencepiece drops the space of a token that it decodes alone
        spaced = str(stored).startswith("\u2581") and not word.startswith(" ")
        return f" {word}" if spaced else word or str(stored)
