"""Streams: documents of any length, read chunk by chunk; each chunk is scored, and only then learnt from.

B batch, T tokens, w tokens of a chunk. Every row of the batch has documents, a grid of chunks and weights of its own.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Weight
from tintformer.engines.fast import FastEngine
from tintformer.engines.fast.reading import Memory
from tintformer.engines.fast.updates import MatrixUpdate, Updates
from tintformer.errors import InputError, LoadError, TintWarning
from tintformer.execution.batch import Chunk
from tintformer.execution.continuation import KeyValueCache
from tintformer.execution.inputs import Array, mask_of, numbers_of, token_ids
from tintformer.learning.stream_files import read_state, write_state
from tintformer.learning.tuned import Tuned
from tintformer.learning.update_files import weight_keys
from tintformer.rule.learning_rule import LearningRule
from tintformer.storage.checksums import add_tensor
from tintformer.storage.loading import load
from tintformer.storage.untrusted_files import given_path
from tintformer.typed_fields import Range, check_fields, checked

Carry = Literal["none", "recompute", "cache"]
WINDOW = 1024
"""Tokens that a chunk sees with its past, where a model's own context is not shorter."""


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """How a document is cut, and what of its past a chunk sees."""

    chunk: Annotated[int, Range(at_least=1)] = 128
    """Tokens that are scored together, before any of them is learnt from."""
    window: Annotated[int | None, Range(at_least=1)] = None
    """Tokens of a chunk and its past together; None: the model's context, and at most 1,024."""
    carry: Carry = "cache"
    """What a chunk sees of its past. `none`: the one token that predicts its first. `recompute`: up to window - chunk
    tokens, read again with today's weights. `cache`: their keys and values as they were read."""

    def __post_init__(self) -> None:
        check_fields(self, InputError)
        if self.window is not None and self.window < self.chunk:
            raise InputError(
                f"window={self.window} is smaller than chunk={self.chunk}: a window holds a chunk and what it sees of "
                "its past; use a smaller chunk or a larger window"
            )

    def of(self, auxiliary: Auxiliary) -> StreamSettings:
        """With the window filled in."""
        if self.window is not None:
            return self
        context = WINDOW if auxiliary.max_positions is None else min(WINDOW, auxiliary.max_positions)
        return StreamSettings(chunk=self.chunk, window=max(self.chunk, context), carry=self.carry)

    @property
    def num_past(self) -> int:
        """Tokens of its past that a chunk may see, the one that predicts its first token aside."""
        return 0 if self.window is None or self.carry == "none" else self.window - self.chunk

    @property
    def num_reread(self) -> int:
        """Tokens of its past that are read with a chunk: at least the one that predicts its first token."""
        return max(1, self.num_past) if self.carry == "recompute" else 1

    @property
    def num_kept(self) -> int:
        """Tokens of its past whose keys and values a chunk is given."""
        return self.num_past if self.carry == "cache" else 0


@dataclass
class Past:
    """Where a row stands in its document."""

    document: int | None = None
    """None before the first token."""
    position: int = 0
    """Tokens of the document that have been read."""
    last: list[int] = field(default_factory=list)
    """The last of them, as many as the next chunk may want to read."""


@dataclass(frozen=True)
class Part:
    """The tokens of one row in one chunk."""

    columns: tuple[int, ...] = ()
    document: int = 0
    begins: bool = False
    """Whether its document begins here."""


class StreamState:
    """What has been learnt and read so far, row by row. It moves on with the stream; `save` keeps it as it is now.

    A `Piece` has it, and `StreamState.load` reads one back.

    Args:
        auxiliary: The model whose stream it is.
        rule: The rule by which it learns.
        settings: How documents are cut.
        num_rows: Rows of the batch.
        statistics: What `optimizer="rms"` divides by, or their hash; None for other optimisers.
    """

    def __init__(
        self,
        auxiliary: Auxiliary,
        rule: LearningRule,
        settings: StreamSettings,
        num_rows: int,
        *,
        statistics: Mapping[Weight, Tensor] | str | None = None,
    ):
        self.auxiliary, self.rule, self.settings, self.statistics = auxiliary, rule, settings, statistics
        self.memory = Memory(steps_made=[0] * num_rows, cache=KeyValueCache() if settings.num_kept else None)
        self.pasts = [Past() for _ in range(num_rows)]

    @property
    def num_rows(self) -> int:
        """Rows of the batch."""
        return len(self.pasts)

    def statistics_hash(self) -> str | None:
        """SHA-256 of the statistics; None without them."""
        # Formed when it is asked for: they are as large as the model, and most streams go on in the same process.
        if self.statistics is None or isinstance(self.statistics, str):
            return self.statistics
        digest = hashlib.sha256()
        for key, weight in weight_keys(self.auxiliary, self.rule).items():
            add_tensor(digest, key, self.statistics[weight])
        return digest.hexdigest()

    def tuned(self, row: int = 0) -> Tuned:
        """The model with what one row has learnt.

        Args:
            row: Its number in the batch.
        """
        if not 0 <= row < self.num_rows:
            raise InputError(f"row={row} but the stream has {self.num_rows} rows, numbered from 0")
        updates, learnt = Updates(), self.memory.updates
        updates.steps_made = None
        for weight, update in learnt.matrices.items():
            updates.matrices[weight] = MatrixUpdate(dual=False, keep=True, dense=update.row(row)[None])
        updates.vectors = {weight: update[row, None].clone() for weight, update in learnt.vectors.items()}
        return Tuned(self.auxiliary, self.rule, updates)

    def updates(self, row: int = 0) -> dict[str, Tensor]:
        """What one row has learnt: the update of every trainable parameter, by Hugging Face name.

        Args:
            row: Its number in the batch.
        """
        return self.tuned(row).updates()

    def to_hf(self, row: int = 0) -> Any:
        """A plain Hugging Face model with what one row has learnt.

        Args:
            row: Its number in the batch.
        """
        return self.tuned(row).to_hf()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as safetensors; a stream that goes on from there goes on bit by bit as this one does.

        Args:
            path: The file.
        """
        self.auxiliary.require_unchanged()
        write_state(given_path(path), self)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Any) -> StreamState:
        """Read a state back onto the model whose stream has left it; any other base is refused.

        Args:
            path: A file that `save` or `tint stream --state` has written.
            model: What `load` takes.
        """
        return read_state(given_path(path, LoadError), load(model))


@dataclass(frozen=True, eq=False, kw_only=True)
class Piece:
    """A chunk of every row: scored before it was learnt from."""

    token_loss: Float[Tensor, "B w"]
    """Negative log-likelihood of every token, in nats; 0 where none was scored."""
    scored: Bool[Tensor, "B w"]
    """Which tokens have been scored: all but padding and the first of a document."""
    columns: Int[Tensor, "B w"]
    """Where each token stands in the batch; -1: padding."""
    logits: Float[Tensor, "B w V"] | None = field(default=None, repr=False)
    """What each token was scored by, 0 where none was scored; None unless asked for."""
    state: StreamState = field(repr=False)
    """What has been learnt, this chunk included; it moves on with the stream."""

    @property
    def loss(self) -> Float[Tensor, ""] | None:
        """Mean over the scored tokens; None if there are none."""
        return self.token_loss[self.scored].mean() if bool(self.scored.any()) else None


def read_stream(
    engine: FastEngine,
    input_ids: Array,
    settings: StreamSettings,
    *,
    document_ids: Array | None = None,
    attention_mask: Array | None = None,
    loss_mask: Array | None = None,
    state: StreamState | None = None,
    logits: bool = False,
) -> Iterator[Piece]:
    """Read documents chunk by chunk. Everything is checked here; reading begins with the first piece asked for."""
    auxiliary, rule = engine.auxiliary, engine.rule
    ids = token_ids(input_ids, auxiliary)
    attended = torch.ones_like(ids, dtype=torch.bool) if attention_mask is None else _mask(attention_mask, ids)
    learns = torch.ones_like(ids, dtype=torch.bool) if loss_mask is None else mask_of("loss_mask", loss_mask, ids)
    documents = torch.zeros_like(ids) if document_ids is None else numbers_of("document_ids", document_ids, ids)
    checked("logits", logits, bool, InputError)
    settings = settings.of(auxiliary)
    fresh = StreamState(auxiliary, rule, settings, len(ids), statistics=engine.statistics)
    state = fresh if state is None else _continued(state, fresh)
    rows = [_parts(documents[row], attended[row], state.pasts[row], settings.chunk) for row in range(len(ids))]
    tokens = _check_lengths(rows, state)
    return _pieces(engine, ids, learns, rows, state, tokens, logits)


def _mask(attention_mask: Array, ids: Tensor) -> Tensor:
    attended = mask_of("attention_mask", attention_mask, ids)
    if bool((~attended.any(1)).any()):
        raise InputError("a row is all padding: its attention_mask is 0 everywhere")
    return attended


def _continued(state: StreamState, fresh: StreamState) -> StreamState:
    """A state to go on from, if it is one of the stream that would begin with the other."""
    if state.auxiliary is not fresh.auxiliary or state.rule != fresh.rule:
        what = "rule" if state.auxiliary is fresh.auxiliary else "model"
        raise InputError(f"the state comes from a stream with another {what}; go on with the same")
    if state.settings != fresh.settings:
        raise InputError(
            f"the state comes from a stream with {state.settings}; go on with the same, not with {fresh.settings}"
        )
    if state.num_rows != fresh.num_rows:
        raise InputError(f"the state has {state.num_rows} rows, and {fresh.num_rows} cannot go on from it")
    if state.statistics is not fresh.statistics:
        if state.statistics_hash() not in (None, fresh.statistics_hash()):
            raise InputError("the state comes from a stream with other statistics; go on with the same")
        state.statistics = fresh.statistics  # the same, and at hand
    return state


def _parts(documents: Tensor, attended: Tensor, past: Past, chunk: int) -> list[Part]:
    """The grid of one row: it restarts where a document starts."""
    columns = attended.nonzero().flatten().tolist()
    numbers = documents.tolist()
    result: list[Part] = []
    before = past.document
    for document, run in groupby(columns, key=lambda column: numbers[column]):
        if before is not None and document < before:
            raise InputError(f"document_ids go back from {before} to {document}; they must not fall along a row")
        here, goes_on = list(run), document == before
        for start in range(0, len(here), chunk):
            begins = start == 0 and not goes_on
            result.append(Part(tuple(here[start : start + chunk]), document, begins))
        before = document
    return result


def _check_lengths(rows: Sequence[Sequence[Part]], state: StreamState) -> int:
    """The longest document, which must fit learned positions where positions go on."""
    longest = 0
    for parts, past in zip(rows, state.pasts, strict=True):
        length = past.position
        for part in parts:
            length = len(part.columns) if part.begins else length + len(part.columns)
            longest = max(longest, length)
    auxiliary, settings = state.auxiliary, state.settings
    # Rotary positions and ALiBi see distances alone, which the window bounds.
    goes_on = settings.carry == "cache" and auxiliary.learned_positions
    reach = longest if goes_on else min(longest, settings.window or longest)
    limit = auxiliary.max_positions
    # The last token of a document is a target alone, and is never read.
    if limit is not None and reach - 1 > limit:
        message = f"reading reaches position {reach - 1} but {auxiliary.name} was built for {limit}"
        if auxiliary.learned_positions:
            raise InputError(f"{message} and has learned positions; use carry='recompute' with window={limit}")
        warnings.warn(f"{message}; its predictions beyond are extrapolation", TintWarning, stacklevel=4)
    return longest


def _pieces(
    engine: FastEngine,
    ids: Int[Tensor, "B T"],
    learns: Bool[Tensor, "B T"],
    rows: Sequence[Sequence[Part]],
    state: StreamState,
    tokens: int,
    logits: bool,
) -> Iterator[Piece]:
    for number in range(max(map(len, rows))):
        parts = [row[number] if number < len(row) else Part() for row in rows]
        begin = torch.tensor([part.begins for part in parts])
        if bool(begin.any()):
            state.memory.forget(begin)
        for part, past in zip(parts, state.pasts, strict=True):
            if part.begins:
                past.document, past.position, past.last = part.document, 0, []
        yield _piece(engine, ids, learns, parts, state, tokens, logits)


def _piece(
    engine: FastEngine,
    ids: Int[Tensor, "B T"],
    learns: Bool[Tensor, "B T"],
    parts: Sequence[Part],
    state: StreamState,
    tokens: int,
    logits: bool,
) -> Piece:
    width = max(len(part.columns) for part in parts)
    columns = torch.full((len(ids), width), -1)
    for row, part in enumerate(parts):
        columns[row, : len(part.columns)] = torch.tensor(part.columns)
    columns = columns.to(ids.device)
    scored = columns >= 0
    for row, past in enumerate(state.pasts):
        if not past.last:  # nothing predicts the first token of a document
            scored[row, 0] = False
    token_loss = torch.zeros(columns.shape, dtype=engine_dtype(engine), device=ids.device)
    predicted = token_loss.new_zeros(*columns.shape, engine.auxiliary.vocabulary_size) if logits else None
    if bool(scored.any()):
        chunk = _chunk(ids, learns, columns, scored, state)
        settings = state.settings
        found = engine.read(
            chunk, state.memory, size=settings.chunk, tokens=tokens, keep=settings.num_kept, logits=logits
        )
        token_loss[scored] = found.losses.to(token_loss.dtype)
        if predicted is not None and found.logits is not None:
            predicted[scored] = found.logits.to(predicted.dtype)
    for row, (part, past) in enumerate(zip(parts, state.pasts, strict=True)):
        past.position += len(part.columns)
        past.last = [*past.last, *ids[row, list(part.columns)].tolist()][-state.settings.num_reread :]
    return Piece(token_loss=token_loss, scored=scored, columns=columns, logits=predicted, state=state)


def engine_dtype(engine: FastEngine) -> torch.dtype:
    """The dtype of losses."""
    return torch.promote_types(engine.auxiliary.dtype, torch.float32)


def _chunk(
    ids: Int[Tensor, "B T"],
    learns: Bool[Tensor, "B T"],
    columns: Int[Tensor, "B w"],
    scored: Bool[Tensor, "B w"],
    state: StreamState,
) -> Chunk:
    """What is read: tokens of the past, then the chunk but for its last token. Column i is predicted at C - 1 + i."""
    memory, pasts, num_rows = state.memory, state.pasts, len(ids)
    num_before = max(len(past.last) for past in pasts)
    safe = columns.clamp(min=0)
    tokens = ids.gather(1, safe)
    before = torch.zeros(num_rows, num_before, dtype=ids.dtype, device=ids.device)
    known = torch.zeros(num_rows, num_before, dtype=torch.bool, device=ids.device)
    for row, past in enumerate(pasts):
        count = len(past.last)
        if count and columns[row, 0] >= 0:
            before[row, num_before - count :] = torch.tensor(past.last, device=ids.device)
            known[row, num_before - count :] = True
    # Without a past the chunk's own first token predicts its second: there is no position for column 0.
    skipped = 0 if num_before else 1
    read = torch.cat((before, tokens[:, :-1]), dim=1)
    attended = torch.cat((known, (columns >= 0)[:, :-1]), dim=1)
    gap = read.shape[1] - (columns.shape[1] - skipped)

    def at_predictors(values: Tensor) -> Tensor:
        """Values of the chunk's tokens, at the positions that predict them."""
        return torch.cat((values.new_zeros(num_rows, gap), values[:, skipped:]), dim=1)

    positions = None
    if state.settings.carry == "cache":
        first = torch.tensor([past.position for past in pasts], device=ids.device)[:, None]
        positions = (first - num_before + torch.arange(read.shape[1], device=ids.device)).clamp(min=0)
    kept = memory.num_kept
    if kept:
        assert memory.seen is not None and memory.positions is not None and positions is not None
        # Of the kept tokens, keys and values are there: their ids are never looked at.
        read = torch.cat((read.new_zeros(num_rows, kept), read), dim=1)
        attended = torch.cat((memory.seen, attended), dim=1)
        positions = torch.cat((memory.positions, positions), dim=1)
        gap += kept
    predicting = at_predictors(scored)
    return Chunk(
        input_ids=read,
        attention_mask=attended,
        segment_ids=torch.zeros_like(read),
        train_mask=predicting,
        loss_mask=at_predictors(learns.gather(1, safe)),
        score_mask=predicting,
        position_ids=positions,
        following=at_predictors(tokens),
        predicting=predicting,
    )
