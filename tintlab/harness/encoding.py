"""Texts of the harness as tokens: the tokens of a continuation are those that hold its characters.

As in our own experiments the whole text is tokenised, and what follows one context follows the same tokens: so that one
update serves all of it, and probabilities can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tintformer.errors import InputError
from tintlab.data.tokenisation import common_start, first_token, tokenise

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Encoding:
    """A tokenizer, with the token that it puts first."""

    tokenizer: Any

    @cached_property
    def first(self) -> Ids:
        """What the tokenizer itself begins a text with: a BOS, or nothing."""
        token = first_token(self.tokenizer, None)
        return () if token is None else (token,)

    @property
    def end(self) -> int:
        """The token that ends a text."""
        return self._special("eos_token_id", "bos_token_id")

    @property
    def prefix(self) -> int:
        """What the first token of a text is predicted from where nothing stands before it."""
        return self._special("bos_token_id", "eos_token_id")

    def _special(self, *names: str) -> int:
        found = (getattr(self.tokenizer, name) for name in names)
        token = next((token for token in found if token is not None), None)
        if token is None:
            raise InputError("the tokenizer has neither a BOS nor an EOS; give a model that has one")
        return token

    def text(self, text: str, *, first: bool = True) -> Ids:
        """A text, after the BOS if the tokenizer puts one there; a BOS that it spells itself is not doubled."""
        (tokens,) = tokenise(self.tokenizer, [text])
        return (self.first if first else ()) + self._without_first(tokens.ids)

    def _without_first(self, ids: Ids) -> Ids:
        return ids[1:] if ids[:1] == self.first else ids

    def pairs(self, context: str, continuations: Sequence[str]) -> list[tuple[Ids, Ids]]:
        """A context with each of its continuations: the same tokens before all of them."""
        found = tokenise(self.tokenizer, [context + continuation for continuation in continuations])
        starts: list[int] = []
        for tokens, continuation in zip(found, continuations, strict=True):
            touched = tokens.touching([(len(context), len(context) + len(continuation))])
            if not touched:
                raise InputError(f"the tokenizer has no token for {continuation!r} after {context[-40:]!r}")
            starts.append(touched[0] - len(tokens.ids) + len(self._without_first(tokens.ids)))
        rows = [self._without_first(tokens.ids) for tokens in found]
        start = common_start(rows, min(starts))
        before = self.first + rows[0][:start] or (self.prefix,)
        return [(before, row[start:]) for row in rows]
