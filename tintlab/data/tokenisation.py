"""Tokens with the characters they stand for, and one policy for the token that begins a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tintformer.errors import InputError


@dataclass(frozen=True)
class TokenizedText:
    """A text as tokens, without any special token that the text itself does not spell."""

    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    """First character and the one after the last, for each token; several tokens may share a character."""

    def touching(self, ranges: Iterable[tuple[int, int]]) -> list[int]:
        """The numbers of the tokens that hold a part of the characters in these ranges (end excluded)."""
        wanted = bytearray(max((end for _, end in self.spans), default=0))
        for start, end in ranges:
            wanted[start:end] = b"\1" * len(wanted[start:end])
        return [number for number, (start, end) in enumerate(self.spans) if 1 in wanted[start:end]]


def tokenise(tokenizer: Any, texts: Sequence[str]) -> list[TokenizedText]:
    """The tokens of each text on its own."""
    if not tokenizer.is_fast:
        raise InputError("the tokenizer does not say which characters a token stands for; give a model with a fast one")
    if not texts:
        return []
    encoding = tokenizer(
        list(texts),
        add_special_tokens=False,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    pairs = zip(encoding["input_ids"], encoding["offset_mapping"], strict=True)
    return [TokenizedText(tuple(ids), tuple(spans)) for ids, spans in pairs]


def common_start(rows: Sequence[tuple[int, ...]], at_most: int) -> int:
    """How many of their first tokens all rows have in common, `at_most` so many."""
    while any(row[:at_most] != rows[0][:at_most] for row in rows):
        at_most -= 1
    return at_most


def first_token(tokenizer: Any, bos: bool | None) -> int | None:
    """The token that begins a sequence, or none.

    `bos` true: the tokenizer's BOS; false: nothing; None: what the tokenizer itself does when it encodes a text. It is
    put there once, by us: texts are always encoded without it.
    """
    if bos is False:
        return None
    token: int | None = tokenizer.bos_token_id
    if bos is None:
        return token if token is not None and list(tokenizer("a")["input_ids"][:1]) == [token] else None
    if token is None:
        raise InputError("bos=True, but the tokenizer has no BOS token; leave it out")
    return token
