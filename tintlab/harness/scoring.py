"""Log-probabilities of continuations: every context is learnt from once, and all that may follow it is read after that.

The tokens of a continuation are those that hold its characters.
As in our own experiments the whole text is tokenised, and what follows one context follows the same tokens: so that one
update serves all of it, and probabilities can be compared.

B contexts, n tokens of a continuation, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from tintformer.errors import DivergenceError, InputError
from tintformer.execution.batch import Batch
from tintformer.execution.continuation import Continuation
from tintformer.execution.engine import Continues
from tintlab.data.prompts import common_start, first_token, tokenise

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


Score = tuple[float, bool]
"""The log-probability of a continuation, and whether it is the likeliest token at every place."""
LOGITS = 512
"""Rows of logits that are there at once: with a large vocabulary they are what takes the memory."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A context, and the continuations that are scored after it."""

    given: Ids
    context: Ids
    """As much of it as there is room for."""
    continuations: tuple[Ids, ...]

    @property
    def teaches(self) -> bool:
        """One token predicts none of its own."""
        return len(self.context) > 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Scorer:
    """An engine that learns from contexts, several at a time and each for itself."""

    engine: Continues
    max_length: int
    batch_size: int

    def scores(self, pairs: Sequence[tuple[Ids, Ids]], *, quiet: bool = False) -> list[Score]:
        """The score of every context and continuation; what is asked twice is computed once."""
        following: dict[Ids, dict[Ids, None]] = {}
        for context, continuation in pairs:
            following.setdefault(context, {})[continuation] = None
        asked = [self._fitted(context, tuple(continuations)) for context, continuations in following.items()]
        found: dict[tuple[Ids, Ids], Score] = {}
        for group in tqdm(self._groups(asked), desc="learning and scoring", disable=True if quiet else None):
            for each, scores in zip(group, self._group(group), strict=True):
                found |= {(each.given, ids): score for ids, score in zip(each.continuations, scores, strict=True)}
        _warn(
            cut=sum(len(each.context) < len(each.given) for each in asked),
            diverged=sum(found[each.given, each.continuations[0]][0] == -math.inf for each in asked),
            total=len(asked),
        )
        return [found[pair] for pair in pairs]

    def _fitted(self, context: Ids, continuations: tuple[Ids, ...]) -> Asked:
        """A context that is too long loses its beginning; the last token of a continuation is never read."""
        longest = max(map(len, continuations))
        if longest > self.max_length:
            raise InputError(f"a continuation has {longest} tokens, but max_length is {self.max_length}")
        kept = context[-(self.max_length + 1 - longest) :]
        return Asked(given=context, context=kept, continuations=continuations)

    def _groups(self, asked: Sequence[Asked]) -> list[Sequence[Asked]]:
        """What runs together, of like lengths; the longest first, so that what needs too much memory fails at once."""
        ordered = sorted(asked, key=lambda each: -len(each.context))
        parts = [each for each in ordered if each.teaches], [each for each in ordered if not each.teaches]
        size = self.batch_size
        return [part[start : start + size] for part in parts for start in range(0, len(part), size)]

    def _group(self, asked: Sequence[Asked]) -> list[list[Score]]:
        """The scores of each; where learning diverges, all that follows is impossible."""
        try:
            return self._batch(asked)
        except DivergenceError:
            if len(asked) == 1:
                return [[(-math.inf, False)] * len(asked[0].continuations)]
            return [scores for each in asked for scores in self._group([each])]  # the others may be well

    def _batch(self, asked: Sequence[Asked]) -> list[list[Score]]:
        longer = any(len(ids) > 1 for each in asked for ids in each.continuations)
        state = self.engine.begin(self._contexts(asked), keep_cache=longer)
        logits, length = state.logits(1), state.length
        found: list[list[Score]] = [[] for _ in asked]
        for number in range(max(len(each.continuations) for each in asked)):
            rows = [each.continuations[number] if number < len(each.continuations) else () for each in asked]
            for scores, row, score in zip(found, rows, _read(state, logits, rows), strict=True):
                if row:
                    scores.append(score)
            state.crop(length)
        return found

    def _contexts(self, asked: Sequence[Asked]) -> Batch:
        """Contexts with padding on the left, so that the last tokens stand in one place."""
        ids, attended = padded([each.context for each in asked], left=True)
        auxiliary = self.engine.auxiliary
        if self.engine.rule.rate > 0 and asked[0].teaches:
            return Batch.of(auxiliary, ids, train_mask=attended, attention_mask=attended)
        return Batch.to_score(auxiliary, ids, attention_mask=attended)


def _read(state: Continuation, logits: Tensor, rows: Sequence[Ids]) -> list[Score]:
    """The score of one continuation of each context, whose last logits are `logits`."""
    ids, there = padded(rows, left=False)
    scores, greedy = torch.zeros(len(rows), dtype=torch.float64), torch.ones(len(rows), dtype=torch.bool)
    for start, logits_BnV in _pieces(state, logits, ids, there):
        place = slice(start, start + logits_BnV.shape[1])
        targets, wanted = ids[:, place].to(logits_BnV.device), there[:, place]
        likelihood = logits_BnV.double().log_softmax(-1).gather(-1, targets[..., None])[..., 0].cpu()
        scores += torch.where(wanted, likelihood, 0.0).sum(1)
        greedy &= ((logits_BnV.argmax(-1) == targets).cpu() | ~wanted).all(1)
    return list(zip(scores.tolist(), greedy.tolist(), strict=True))


def _pieces(state: Continuation, logits: Tensor, ids: Tensor, there: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Logits a few tokens at a time, each with the place of the first token that they predict."""
    yield 0, logits
    length = max(1, LOGITS // len(ids))
    for start in range(0, ids.shape[1] - 1, length):
        place = slice(start, min(start + length, ids.shape[1] - 1))
        state.extend(ids[:, place], torch.cat((state.seen, there[:, place].to(state.seen.device)), dim=1))
        yield start + 1, state.logits()


def _warn(*, cut: int, diverged: int, total: int) -> None:
    if cut:
        log.warning("%d of %d contexts were too long for max_length and lost their beginning", cut, total)
    if diverged:
        log.warning(
            "learning diverged on %d of %d contexts, whose continuations count as impossible; "
            "take a smaller learning_rate",
            diverged,
            total,
        )


def padded(rows: Sequence[Ids], *, left: bool) -> tuple[Tensor, Tensor]:
    """Rows of one length, and which of their tokens are there."""
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    there = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(0, len(row))
        ids[number, place], there[number, place] = torch.tensor(row, dtype=torch.long), True
    return ids, there
