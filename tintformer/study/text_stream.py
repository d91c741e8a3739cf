"""Documents read one after the other by a model that learns, and beside it by the model as it is, with equal context.

The model as it is reads the same chunks behind the same windows with a rate of 0: what differs between the two is what
has been learnt, and nothing else.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import InputError, LoadError, TintError
from tintformer.learning.gradient_statistics import settle_statistics
from tintformer.learning.stream_files import Kept, cache_tensors, read_kept, take_cache, write_state
from tintformer.learning.streams import StreamSettings, StreamState
from tintformer.learning.tint import Tint
from tintformer.rule.learning_rule import LearningRule
from tintformer.storage.checksums import add_tensor
from tintformer.storage.whole_files import check_file

EVERY = 64
"""Chunks between two saved states: fewer lose less in a kill, and write the state of a large model more often."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text as its tokens; which special ones are among them, whoever made it has decided."""

    name: str
    input_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class DocumentScores:
    """Losses of a document's tokens but the first, in nats: of those that have been read."""

    name: str
    tokens: int
    """Of the whole document."""
    before: tuple[float, ...]
    """By the model as it is."""
    after: tuple[float, ...]
    """By the model that learns, each before it was learnt from."""


class TextStream:
    """A stream over documents that can be stopped at any moment and goes on from the state that was saved last.

    Every document begins with the weights as they came. With a `file`, the state is saved there after so many chunks
    and at the end, with the place in the texts and all that has been scored; where the file is there already, reading
    goes on from it, to the bit.
    """

    def __init__(
        self,
        auxiliary: Auxiliary,
        rule: LearningRule,
        documents: Sequence[Document],
        settings: StreamSettings,
        *,
        statistics: Any = None,
        file: Path | None = None,
        every: int = EVERY,
    ):
        self.auxiliary, self.rule, self.documents = auxiliary, rule, tuple(documents)
        self.settings, self.file, self.every = settings.of(auxiliary), file, every
        found = settle_statistics(statistics, auxiliary, rule)
        self._identity = {
            "documents": [_hash(document.input_ids) for document in self.documents],
            "statistics": None if found is None else _hash_tensors(found),
        }
        self._learner = Tint(auxiliary, rule, statistics=found)
        # No optimiser: at a rate of 0 there is nothing that one could do.
        self._plain = Tint(auxiliary, LearningRule(learning_rate=0.0))
        self._state: StreamState | None = None
        self._plain_state: StreamState | None = None
        self._number = self._position = 0
        self._before: list[float] = []
        self._after: list[float] = []
        self._totals = 0.0, 0.0
        self._check_documents()
        if file is not None and file.exists():
            self._resume(file)
        elif file is not None:
            check_file(file)
        self.resumed_at = self.tokens_read
        """Tokens that an earlier run had read."""

    @property
    def num_tokens(self) -> int:
        return sum(len(document.input_ids) for document in self.documents)

    @property
    def tokens_read(self) -> int:
        return len(self._after)

    def read(self, on_chunk: Callable[[TextStream], None] = lambda _: None) -> None:
        """Read what is left, and keep the state on the way."""
        chunks = 0
        while self._number < len(self.documents):
            ids = torch.tensor([self.documents[self._number].input_ids[self._position :]])
            if ids.numel():
                plain = self._stream(self._plain, ids, self._plain_state)
                for piece, as_it_is in zip(self._stream(self._learner, ids, self._state), plain, strict=True):
                    self._state, self._plain_state = piece.state, as_it_is.state
                    self._position += piece.columns.shape[1]
                    self._add(as_it_is.token_loss[0].double().tolist(), piece.token_loss[0].double().tolist())
                    chunks += 1
                    if self.file is not None and chunks % self.every == 0:
                        self.save(self.file)
                    on_chunk(self)
            self._number, self._position = self._number + 1, 0
            if self._number < len(self.documents):
                self._state = self._plain_state = None
        if self.file is not None and chunks:
            self.save(self.file)

    def _add(self, before: Sequence[float], after: Sequence[float]) -> None:
        """The losses of further tokens, 0 for the first of a document, and their sums: a bar asks for them often."""
        self._before += before
        self._after += after
        self._totals = self._totals[0] + math.fsum(before), self._totals[1] + math.fsum(after)

    def _stream(self, tint: Tint, ids: Tensor, state: StreamState | None) -> Any:
        how = self.settings
        return tint.stream(ids, chunk=how.chunk, window=how.window, carry=how.carry, state=state)

    def save(self, file: Path) -> None:
        """Keep what has been learnt and scored, and where in the texts that was."""
        assert self._state is not None and self._plain_state is not None
        notes = {**self._identity, "number": self._number, "position": self._position}
        losses = {
            name: torch.tensor(values, dtype=torch.float64)
            for name, values in (("before", self._before), ("after", self._after))
        }
        plain = {f"plain|{name}": tensor for name, tensor in cache_tensors(self._plain_state).items()}
        write_state(file, self._state, Kept(notes=notes, tensors={**losses, **plain}))

    def _check_documents(self) -> None:
        """All that a stream refuses, before anything is read or written."""
        if not self.documents:
            raise InputError("there is no document to read; give one")
        for document in self.documents:
            if len(document.input_ids) < 2:
                raise InputError(f"{document.name} has {len(document.input_ids)} tokens; 2 are the least")
        longest = max(self.documents, key=lambda document: len(document.input_ids))
        self._stream(self._learner, torch.tensor([longest.input_ids]), None)

    def _resume(self, file: Path) -> None:
        state, kept = read_kept(file, self.auxiliary)
        if kept is None:
            raise InputError(f"{file} is a state without a text; go on from it in Python, by Tint.stream(state=...)")
        if state.rule != self.rule or state.settings != self.settings:
            what = "rule" if state.rule != self.rule else "chunk, window or carry"
            raise InputError(f"{file} is the state of a stream with another {what}; give the same, or another --state")
        if any(kept.notes.get(name) != value for name, value in self._identity.items()):
            what = "statistics" if kept.notes.get("documents") == self._identity["documents"] else "text"
            raise InputError(f"{file} is the state of a stream of another {what}; give the same, or another --state")
        try:
            self._take(state, kept)
        except (TintError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise LoadError(f"{file} does not fit its text ({error!s:.120}); remove it and read anew") from error

    def _take(self, state: StreamState, kept: Kept) -> None:
        number, position = int(kept.notes["number"]), int(kept.notes["position"])
        before, after = (kept.tensors.pop(name).tolist() for name in ("before", "after"))
        done = sum(len(document.input_ids) for document in self.documents[:number]) + position
        if number < 0 or position < 0 or not len(before) == len(after) == done:
            raise ValueError("its place is not where its scores end")
        plain = StreamState(self.auxiliary, self._plain.rule, self.settings, 1)
        plain.pasts = [replace(past) for past in state.pasts]
        take_cache(plain, {name.removeprefix("plain|"): tensor for name, tensor in kept.tensors.items()})
        self._number, self._position = number, position
        self._add(before, after)
        if number < len(self.documents):
            self._state, self._plain_state = state, plain

    def scores(self) -> list[DocumentScores]:
        """Of all documents that have been begun; nothing predicts the first token of one."""
        found: list[DocumentScores] = []
        start = 0
        for document in self.documents:
            end = start + len(document.input_ids)
            if start < self.tokens_read:
                before, after = (tuple(losses[start + 1 : end]) for losses in (self._before, self._after))
                found.append(DocumentScores(name=document.name, tokens=end - start, before=before, after=after))
            start = end
        return found

    def losses(self) -> tuple[float, float]:
        """Nats per scored token so far, of the model as it is and of the one that learns; NaN before the first."""
        begun = self._number + (self._position > 0)
        scored = self.tokens_read - begun
        before, after = self._totals
        return (before / scored, after / scored) if scored > 0 else (math.nan, math.nan)


def _hash(ids: Sequence[int]) -> str:
    return hashlib.sha256(torch.tensor(ids, dtype=torch.int64).numpy().tobytes()).hexdigest()


def _hash_tensors(tensors: Any) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        add_tensor(digest, name, tensor)
    return digest.hexdigest()
