"""Blocks: texts as token sequences of one length, with the words and bytes that each token completes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any, Literal, get_args

from tintformer.errors import InputError
from tintformer.experiments.tokens import Tokens, first_token, tokenise

Layout = Literal["lines", "whole"]
_AT_ONCE = 1000
"""Pieces that are tokenised together: fewer are slower, more take more memory."""
_AFTER_SPACES = 0x3001
"""The code point after the last space that Unicode has."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A sequence of tokens; a BOS that was put first completes nothing."""

    ids: tuple[int, ...]
    num_words: tuple[int, ...]
    """Words that each token completes: divide by the sum over scored tokens for perplexity per word."""
    num_bytes: tuple[int, ...]
    """UTF-8 bytes that each token completes; those that no token stands for count with the next one."""

    def __len__(self) -> int:
        return len(self.ids)


def lines_of(text: str) -> list[str]:
    """The lines of a text, each with its line break."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]


def cut(
    texts: Iterable[str],
    tokenizer: Any,
    length: int,
    layout: Layout = "lines",
    *,
    bos: bool | None = None,
    keep_rest: bool = True,
) -> Iterator[Block]:
    """Blocks of `length` tokens; see `TextSet.blocks`."""
    if layout not in get_args(Layout):
        raise InputError(f"layout={layout!r} is unknown; choose one of {', '.join(get_args(Layout))}")
    if length < 2:
        raise InputError(f"length={length}; a block needs at least 2 tokens, one to predict another")
    pieces = texts if layout == "whole" else (line for text in texts for line in lines_of(text))
    cutter = _Cutter(length=length, first=first_token(tokenizer, bos))
    for batch in _batches(pieces):
        spoken = [piece for piece in batch if piece.strip()]
        tokens = iter(tokenise(tokenizer, spoken))
        for piece in batch:
            cutter.add(piece, next(tokens) if piece.strip() else Tokens((), ()))
            yield from cutter.full()
    yield from cutter.rest(keep_rest)


def _batches(pieces: Iterable[str]) -> Iterator[tuple[str, ...]]:
    iterator = iter(pieces)
    while batch := tuple(islice(iterator, _AT_ONCE)):
        yield batch


@dataclass(kw_only=True)
class _Cutter:
    """Tokens in a queue, and how blocks are taken from it."""

    length: int
    first: int | None
    ids: list[int] = field(default_factory=list[int])
    words: list[int] = field(default_factory=list[int])
    sizes: list[int] = field(default_factory=list[int])
    pending: tuple[int, int] = (0, 0)
    """Words and bytes of pieces without a token, waiting for the next one."""

    def add(self, piece: str, tokens: Tokens) -> None:
        words, sizes = completed(piece, tokens)
        waiting_words, waiting_bytes = self.pending
        if not tokens.ids:
            self.pending = (waiting_words + len(piece.split()), waiting_bytes + len(piece.encode()))
            return
        words[0] += waiting_words
        sizes[0] += waiting_bytes
        self.pending = (0, 0)
        self.ids += tokens.ids
        self.words += words
        self.sizes += sizes

    def full(self) -> Iterator[Block]:
        """Blocks that are full; the last tokens stay, because what follows them may have no token of its own."""
        start = 0
        while len(self.ids) - start > self.length:
            start, block = self._take(start)
            yield block
        del self.ids[:start], self.words[:start], self.sizes[:start]

    def rest(self, keep: bool) -> Iterator[Block]:
        """The last blocks, a shorter one among them if it is to be kept."""
        if self.ids:
            self.words[-1] += self.pending[0]
            self.sizes[-1] += self.pending[1]
        start = 0
        while start < len(self.ids):
            start, block = self._take(start)
            if keep or len(block) == self.length:
                yield block

    def _take(self, start: int) -> tuple[int, Block]:
        begin = self.first is not None and self.ids[start] != self.first  # never twice
        end = min(start + self.length - begin, len(self.ids))
        front, nothing = ((self.first,), (0,)) if begin and self.first is not None else ((), ())
        block = Block(
            ids=(*front, *self.ids[start:end]),
            num_words=(*nothing, *self.words[start:end]),
            num_bytes=(*nothing, *self.sizes[start:end]),
        )
        return end, block


def completed(text: str, tokens: Tokens) -> tuple[list[int], list[int]]:
    """How many words and UTF-8 bytes of the text each token completes; their sums are those of the whole text.

    A character is complete with the last token that holds a part of it (a byte of it, say), a word with its last
    character. What lies between two tokens counts with the second, what lies after the last with the last.
    """
    import numpy as np

    if not tokens.ids:
        return [], []
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    sizes = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000).astype(np.int64)
    space = _spaces()[np.minimum(codes, _AFTER_SPACES)]
    ends = ~space & np.append(space[1:], True)
    starts, stops = np.array(tokens.spans, dtype=np.int64).T
    still_to_come = np.append(np.minimum.accumulate(starts[::-1])[::-1][1:], len(text))
    reached = np.minimum(np.maximum.accumulate(stops), still_to_come)
    reached[-1] = len(text)
    totals = [np.append(0, values.cumsum())[reached] for values in (ends, sizes)]
    words, bytes_ = (np.diff(total, prepend=0).tolist() for total in totals)
    return words, bytes_


@cache
def _spaces() -> Any:
    """By code point, whether it is what `str.split` takes for the end of a word; the last entry is for all others."""
    import numpy as np

    return np.array([chr(code).isspace() for code in range(_AFTER_SPACES + 1)])
