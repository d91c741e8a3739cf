"""Prompts as tokens: demonstrations, and a question with each label word as its answer.

The tokens of a label are found by the characters they stand for in the whole text, never by tokenising the word alone:
a word may be several tokens, and the space before it may belong to its first one or be a token of its own.
One policy, below as well, says which token begins a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

from tintformer.errors import InputError
from tintlab.data.tasks import Example, Prompt


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


class Role(IntEnum):
    """What a token is there for."""

    FIRST = 0
    """The BOS."""
    CONTEXT = 1
    """Text and prompt of a demonstration, and separators."""
    LABEL = 2
    """The label of a demonstration."""
    TEST = 3
    """Text and prompt of the test input."""
    ANSWER = 4
    """The label word that is scored."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Tokens with their roles, without a BOS."""

    ids: tuple[int, ...]
    roles: tuple[Role, ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A test input with each label word in turn; what comes before the answer is the same tokens for all of them."""

    scored: tuple[Scored, ...]
    """One for each label word, in the order of the labels."""
    cut: bool
    """Whether the text was too long and lost its end."""

    @property
    def answers(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each answer."""
        return tuple(
            tuple(token for token, role in zip(each.ids, each.roles, strict=True) if role == Role.ANSWER)
            for each in self.scored
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest one."""
        return max(map(len, self.scored))


@dataclass(frozen=True, eq=False, kw_only=True)
class Encoder:
    """A prompt and a tokenizer, within the context of a model."""

    tokenizer: Any
    prompt: Prompt
    context: int
    """Tokens that a sequence may have, BOS included; longer texts lose their end (the prompt after them stays)."""
    bos: bool | None = None
    """Whether sequences begin with a BOS; None does what the tokenizer itself does. It is never there twice."""
    _shown: dict[Example, tuple[Scored, bool]] = field(default_factory=dict[Example, tuple[Scored, bool]])
    _lengths: dict[Example, int] = field(default_factory=dict[Example, int])

    @cached_property
    def first(self) -> tuple[int, ...]:
        """The BOS, or nothing."""
        token = first_token(self.tokenizer, self.bos)
        return () if token is None else (token,)

    @property
    def room(self) -> int:
        """Tokens that a sequence may have after the BOS."""
        return self.context - len(self.first)

    def demonstration(self, example: Example) -> tuple[Scored, bool]:
        """An example with its label, and whether its text lost its end."""

        def encode(text: str) -> list[Scored]:
            whole, start, end = self.prompt.continued(self.prompt.filled(text), example.label)
            return [self._mark(whole, [(start, end)], len(whole), len(whole))]

        if example not in self._shown:  # the same ones stand before every test input
            (scored,), cut = self._fitted(encode, example.text)
            self._shown[example] = scored, cut
        return self._shown[example]

    def question(self, text: str | None) -> Question:
        """A test input alone, cut if it must be; None asks with the calibration prompt."""
        if text is not None:
            scored, cut = self._fitted(lambda text: self._answered((), self.prompt.filled(text)), text)
            return Question(scored=tuple(scored), cut=cut)
        question = self.question_after((), None)
        if question.longest > self.room:
            raise InputError(f"the calibration prompt has {question.longest} tokens, but the context {self.room}")
        return question

    def question_after(self, before: Sequence[Example], text: str | None) -> Question:
        """A test input after demonstrations, all in one text and however long that is."""
        prompt = self.prompt.calibration_prompt if text is None else self.prompt.filled(text)
        return Question(scored=tuple(self._answered(before, prompt)), cut=False)

    def room_for(self, demonstrations: Sequence[Example], question: Question) -> int:
        """How many of the first demonstrations may fit before a question, by their lengths alone: a guess."""
        left = self.room - question.longest
        for number, example in enumerate(demonstrations):
            if example not in self._lengths:
                whole, _, _ = self.prompt.continued(self.prompt.filled(example.text), example.label)
                (tokens,) = tokenise(self.tokenizer, [whole + self.prompt.separator])
                self._lengths[example] = len(tokens.ids)
            left -= self._lengths[example]
            if left < 0:
                return number
        return len(demonstrations)

    def _answered(self, before: Sequence[Example], prompt: str) -> list[Scored]:
        """A text for each label word, all with the same tokens before the answer."""
        front, labels = "", list[tuple[int, int]]()
        for example in before:
            whole, start, end = self.prompt.continued(self.prompt.filled(example.text), example.label)
            labels.append((len(front) + start, len(front) + end))
            front += whole + self.prompt.separator
        found: list[Scored] = []
        for label in range(len(self.prompt.words)):
            whole, start, _ = self.prompt.continued(prompt, label)
            found.append(self._mark(front + whole, labels, len(front), len(front) + start))
        return _aligned(found)

    def _mark(self, text: str, labels: list[tuple[int, int]], test: int, answer: int) -> Scored:
        """The tokens of a text; labels are given by their characters, test input and answer by where they begin."""
        # The whole text at once: tokens at the border of two pieces may merge.
        (tokens,) = tokenise(self.tokenizer, [text])
        roles = [Role.TEST if end > test else Role.CONTEXT for _, end in tokens.spans]
        for number in tokens.touching(labels):
            roles[number] = Role.LABEL
        for number in tokens.touching([(answer, len(text))]):
            roles[number] = Role.ANSWER
        if not tokens.ids or roles[-1] not in (Role.LABEL, Role.ANSWER):
            raise InputError(f"the tokenizer has no token for the label word at the end of {text[-40:]!r}")
        spelled = len(self.first) if tokens.ids[:1] == self.first else 0  # the text has a BOS of its own
        return Scored(ids=tokens.ids[spelled:], roles=tuple(roles[spelled:]))

    def _fitted(self, encode: Callable[[str], list[Scored]], text: str) -> tuple[list[Scored], bool]:
        """Sequences that fit: the text loses as much of its end as it must."""
        given = text
        while (excess := max(map(len, scored := encode(text))) - self.room) > 0:
            if not text:
                raise InputError(
                    f"the prompt has {self.room + excess} tokens without any text, but the context {self.room}; "
                    "take fewer demonstrations, a shorter prompt or a longer context"
                )
            (tokens,) = tokenise(self.tokenizer, [text])
            kept = len(tokens.ids) - excess
            end = tokens.spans[kept][0] if kept > 0 else 0
            text = text[: min(end, len(text) - 1)].rstrip()
        return scored, text != given


def _aligned(found: list[Scored]) -> list[Scored]:
    """Let the answer begin where the first of them does, or where the tokens before it begin to differ.

    Probabilities of answers can be compared only if they follow the same tokens.
    """
    start = common_start([each.ids for each in found], min(each.roles.index(Role.ANSWER) for each in found))
    if start == 0:
        raise InputError(
            "nothing stands before the answer, so nothing predicts it; write a longer (calibration) prompt"
        )
    return [
        Scored(ids=each.ids, roles=(*each.roles[:start], *(Role.ANSWER for _ in each.ids[start:]))) for each in found
    ]
