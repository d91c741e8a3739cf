"""Streams over documents: every method reads the same chunks behind the same windows, and learns as it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tintformer.errors import DivergenceError, InputError
from tintlab.data.models import OpenModel, open_model
from tintlab.data.prompts import first_token, tokenise
from tintlab.data.texts import TextSet, load_texts
from tintlab.kinds.lm import MAX_SEED, draw
from tintlab.methods.adapters import AdapterMethod
from tintlab.methods.lora import Lora
from tintlab.methods.methods import STREAM_METHODS, Adaptation, Method
from tintlab.study.experiment import ChosenOn, Experiment, require_within
from tintlab.study.store import UnitResult, canonical, sha256

if TYPE_CHECKING:
    from torch import Tensor

    from tintformer.learning.gradient_statistics import GradientStatistics
    from tintformer.learning.rate_search import RatePoint
    from tintformer.learning.streams import StreamSettings

Carry = Literal["none", "recompute", "cache"]
Documents = Literal["auto", "described", "articles", "blocks"]
"""What is a document: `described`, what the data say (files or lines); `articles`, what stands below a line
` = Title = `; `blocks`, the text cut into pieces of `length` tokens. `auto`: articles where the data have them."""


@dataclass(frozen=True, kw_only=True)
class DocumentStreams(Experiment):
    """One model on documents of one corpus, by several methods, each at the rate that is best on other documents."""

    kind: ClassVar[str] = "stream"
    version: ClassVar[int] = 1
    """Raised by hand when a number of these units changes."""
    table: ClassVar[Mapping[str, Method]] = STREAM_METHODS

    data: str
    """A shipped description, a YAML file, or a text file or directory."""
    documents: Documents = "auto"
    """What a document is."""
    chunk: int = 128
    """Tokens that are scored together, before any of them is learnt from."""
    window: int | None = None
    """Tokens of a chunk and its past together; None: the model's context, and at most 1,024."""
    carry: Carry = "cache"
    """What a chunk sees of its past."""
    length: int = 2048
    """Tokens at which documents are cut."""
    shortest: int | None = None
    """Tokens of the shortest document that is taken; None: two chunks, as nothing is gained in the first."""
    scored: int | None = None
    """How many documents are scored, drawn from all: more of them are the same and others. None: all but those that
    choose rates, also where there is no rate to choose."""
    tuning: int = 6
    """How many choose the rates, and give `rms` its statistics; they are not scored."""
    batch: int = 1
    """Documents that are read together. More are faster and take more memory: each has weights of its own."""
    statistics: str | None = None
    """A file of `tint statistics` for `rms`, instead of the tuning documents' own."""
    seed: int = 0
    """Draws the documents."""

    def __post_init__(self) -> None:
        from tintformer.learning.streams import StreamSettings

        super().__post_init__()
        StreamSettings(chunk=self.chunk, window=self.window, carry=self.carry)
        require_within("length", self.length, 2)
        require_within("shortest", self.shortest, 2, self.length)
        require_within("scored", self.scored, 1)
        require_within("tuning", self.tuning, 0)
        require_within("batch", self.batch, 1)
        require_within("seed", self.seed, 0, MAX_SEED)
        if self.engine != "fast":
            raise InputError(f"engine={self.engine!r} keeps nothing from chunk to chunk; streams need engine='fast'")
        if self.statistics is not None and "rms" not in self.methods:
            raise InputError("statistics are for the method rms, which is not among the methods; leave them out")
        if self.tuning < 1 and (self.tunes or self.collects):
            raise InputError("rates, and what rms divides by, come from tuning documents; give at least one")

    @property
    def tunes(self) -> bool:
        """Whether there is a rate to choose on documents of its own."""
        learns = any(method.chooses_rate for method in self.compared().values())
        return self.chosen_on == "tuning" and not self.has_one_rate and learns

    @property
    def collects(self) -> bool:
        """Whether statistics of gradients are taken from the tuning documents."""
        return "rms" in self.methods and self.statistics is None

    def rule(self, method: str, rate: float) -> Adaptation | None:
        blocks = len(open_model(self.model, self.dtype, self.device).auxiliary.blocks)
        return STREAM_METHODS[method].at(rate, blocks=blocks, layers=self.layers, steps=self.steps)

    def identity(self, unit: StreamUnit) -> dict[str, Any]:
        opened = open_streams(self)
        rule = self.rule(unit.method, unit.rate)
        return {
            "model": opened.model.identity,
            "method": "lora" if isinstance(rule, Lora) else "stream",
            "rule": rule and asdict(rule),
            "stream": asdict(opened.settings),
            "statistics": self._statistics_identity() if _needs_statistics(rule) else None,
            "tokens": sha256(canonical([opened.ids[at] for at in unit.documents])),
        }

    def _statistics_identity(self) -> str:
        if self.statistics is not None:
            return file_hash(self.statistics)
        opened = open_streams(self)
        return sha256(canonical([opened.ids[at] for at in opened.tuning]))

    def settings(self) -> list[str]:
        """One: documents are what varies."""
        open_streams(self)
        return ["documents"]

    def num_targets(self, setting: str) -> int:
        return self.chunk

    def units(self, setting: str, method: str, rate: float, part: ChosenOn) -> list[StreamUnit]:
        """A few documents each, of those that choose rates or of those that are scored."""
        opened = open_streams(self)
        found = opened.tuning if part == "tuning" else opened.scored
        # Of about one length, so that little is padding.
        found = tuple(sorted(found, key=lambda at: (-len(opened.ids[at]), at)))
        return [
            StreamUnit(method=method, rate=rate, documents=found[start : start + self.batch])
            for start in range(0, len(found), self.batch)
        ]

    def run(self, unit: StreamUnit) -> UnitResult:
        """Losses of a few documents by chunk, in nats, and the arithmetic that it took."""
        import torch

        from tintlab.kinds.counted_work import WorkCounter

        torch.set_num_threads(self.threads)
        opened = open_streams(self)
        documents = [opened.ids[at] for at in unit.documents]
        if _needs_statistics(self.rule(unit.method, unit.rate)):
            statistics_of(self)  # collected once, and not counted
        counter = WorkCounter()
        try:
            with counter:
                chunks = self.read(unit.method, unit.rate, documents)
        except DivergenceError:
            # A rate that diverges is a result too: the curve of rates must show where it ends.
            return {"nats": None, "tokens": None, "flops": None}
        return {
            "nats": [[nats for nats, _ in each] for each in chunks],
            "tokens": [[count for _, count in each] for each in chunks],
            "flops": counter.flops,
        }

    def read(
        self, method: str, rate: float, documents: Sequence[Sequence[int]], kept: list[Tensor] | None = None
    ) -> list[list[tuple[float, int]]]:
        """Of each document the losses of its chunks, summed, and how many tokens they are of.

        To `kept` the logits `[T, V]` of each document are added, NaN at its first token.
        """
        rule = self.rule(method, rate)
        statistics = statistics_of(self) if _needs_statistics(rule) else None
        return _read(open_streams(self), rule, documents, statistics, kept)

    def tuning_loss(self, setting: str, results: Sequence[UnitResult]) -> float:
        """Nats per token."""
        if any(each["nats"] is None for each in results):
            return math.inf
        nats = math.fsum(value for each in results for document in each["nats"] for value in document)
        return nats / sum(count for each in results for document in each["tokens"] for count in document)

    def summary(
        self, setting: str, method: str, rate: float, curve: tuple[RatePoint, ...], results: Sequence[UnitResult]
    ) -> StreamResult:
        diverged = any(each["nats"] is None for each in results)
        return StreamResult(
            method=method,
            rate=rate,
            curve=curve,
            nats=None if diverged else tuple(tuple(document) for each in results for document in each["nats"]),
            tokens=() if diverged else tuple(tuple(document) for each in results for document in each["tokens"]),
            flops=None if diverged else sum(each["flops"] for each in results),
        )


def _needs_statistics(rule: Adaptation | None) -> bool:
    return getattr(rule, "optimizer", None) == "rms" and bool(getattr(rule, "learning_rate", 0))


@dataclass(frozen=True, kw_only=True)
class StreamUnit:
    """A few documents by one method at one rate."""

    method: str
    rate: float
    documents: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class StreamResult:
    """One method over all scored documents."""

    method: str
    rate: float
    curve: tuple[RatePoint, ...]
    """What the rate was chosen from."""
    nats: tuple[tuple[float, ...], ...] | None
    """Of each document by chunk, summed over its scored tokens; None if the rate diverged on a scored document."""
    tokens: tuple[tuple[int, ...], ...]
    """Scored tokens of the same chunks."""
    flops: int | None
    """Arithmetic of all documents; a multiply-add counts as two."""


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenStreams:
    """What a process needs to do units: the model and the documents."""

    model: OpenModel
    texts: TextSet
    settings: StreamSettings
    ids: tuple[tuple[int, ...], ...]
    """Of every document that is long enough, cut, with what begins a sequence by the tokenizer's own policy."""
    first: int | None
    """The token that begins each."""
    tuning: tuple[int, ...]
    scored: tuple[int, ...]


@lru_cache(maxsize=2)
def open_streams(experiment: DocumentStreams) -> OpenStreams:
    """Load the model, tokenise the documents and draw those that choose rates and those that are scored."""
    import torch

    from tintformer.learning.streams import StreamSettings
    from tintformer.learning.tint import Tint
    from tintformer.rule.learning_rule import LearningRule

    texts = load_texts(experiment.data, experiment.location)
    model = open_model(experiment.model, experiment.dtype, experiment.device)
    experiment.check_rules(len(model.auxiliary.blocks))
    ids = _documents(experiment, texts, model)
    tuning = experiment.tuning if experiment.tunes or experiment.collects else 0
    wanted = tuning + (experiment.scored or 1)
    if len(ids) < wanted:
        raise InputError(
            f"{texts.name} gives {len(ids)} documents of at least {_shortest(experiment)} tokens; {wanted} are needed "
            f"({tuning} of them to choose rates): use --documents blocks, shorter or fewer ones, or more text"
        )
    settings = StreamSettings(chunk=experiment.chunk, window=experiment.window, carry=experiment.carry)
    settings = settings.of(model.auxiliary)
    # What a stream refuses is told before anything is read.
    longest = torch.tensor([max(ids, key=len)])
    how = {"chunk": settings.chunk, "window": settings.window, "carry": settings.carry}
    Tint(model.auxiliary, LearningRule(learning_rate=0.0)).stream(longest, **how)  # type: ignore[arg-type]
    if experiment.statistics is not None:
        file_statistics(experiment.statistics, model)
    drawn = draw(len(ids), experiment.seed, tuning=experiment.tuning, scored=experiment.scored)
    return OpenStreams(
        model=model,
        texts=texts,
        settings=settings,
        ids=ids,
        first=first_token(model.tokenizer, None),
        tuning=drawn[0][:tuning],
        scored=drawn[1],
    )


def _shortest(experiment: DocumentStreams) -> int:
    return min(2 * experiment.chunk, experiment.length) if experiment.shortest is None else experiment.shortest


def _documents(experiment: DocumentStreams, texts: TextSet, model: OpenModel) -> tuple[tuple[int, ...], ...]:
    kind = experiment.documents
    if kind == "auto":
        kind = "articles" if texts.has_articles else "described"
    if kind == "blocks":
        blocks = texts.blocks(model.tokenizer, experiment.length, "whole", keep_rest=False)
        return tuple(block.ids for block in blocks)
    found = [text for text in (texts.articles() if kind == "articles" else texts.texts) if text.strip()]
    if not found:
        raise InputError(f"{texts.name} has no lines ' = Title = ' that begin articles; use --documents described")
    first = first_token(model.tokenizer, None)
    # Once, and never twice: as blocks begin.
    whole = [
        each.ids if first is None or each.ids[:1] == (first,) else (first, *each.ids)
        for each in tokenise(model.tokenizer, found)
    ]
    return tuple(ids[: experiment.length] for ids in whole if len(ids) >= _shortest(experiment))


def _read(
    opened: OpenStreams,
    rule: Adaptation | None,
    documents: Sequence[Sequence[int]],
    statistics: Any,
    kept: list[Tensor] | None,
) -> list[list[tuple[float, int]]]:
    import torch

    from tintformer.learning.tint import Tint
    from tintformer.rule.learning_rule import LearningRule

    auxiliary, settings = opened.model.auxiliary, opened.settings
    if isinstance(rule, AdapterMethod):
        from tintlab.methods.lora import stream_lora

        return stream_lora(auxiliary, rule, documents, settings, kept)
    ids, attended = _padded(documents)
    # Without a way to learn, the same windows at a rate of 0.
    tint = Tint(auxiliary, rule or LearningRule(learning_rate=0.0), statistics=statistics)
    found: list[list[tuple[float, int]]] = [[] for _ in documents]
    logits: list[list[Tensor]] = [[] for _ in documents]
    for piece in tint.stream(
        ids,
        chunk=settings.chunk,
        window=settings.window,
        carry=settings.carry,
        attention_mask=attended,
        logits=kept is not None,
    ):
        there = (piece.columns >= 0).any(1).tolist()
        nats, counts = piece.token_loss.double().sum(1).tolist(), piece.scored.sum(1).tolist()
        for row, here in enumerate(there):
            if here:
                found[row].append((nats[row], counts[row]))
            if here and piece.logits is not None:
                rows = piece.logits[row].masked_fill(~piece.scored[row, :, None], torch.nan)
                logits[row].append(rows[piece.columns[row] >= 0])
    if kept is not None:
        kept += [torch.cat(rows) for rows in logits]
    return found


def _padded(documents: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    rows = [torch.tensor(ids) for ids in documents]
    return (
        pad_sequence(rows, batch_first=True),
        pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True),
    )


@lru_cache(maxsize=1)
def statistics_of(experiment: DocumentStreams) -> GradientStatistics:
    """What `rms` divides by: a file's, or those of the tuning documents, which are never scored."""
    import torch

    from tintformer.learning.gradient_statistics import collect_statistics

    opened = open_streams(experiment)
    if experiment.statistics is not None:
        return file_statistics(experiment.statistics, opened.model)
    rule: Any = experiment.rule("rms", 1.0)
    documents = [opened.ids[at] for at in opened.tuning]
    numbers = [number for number, ids in enumerate(documents) for _ in ids]
    return collect_statistics(
        opened.model.auxiliary,
        rule,
        torch.tensor([[token for ids in documents for token in ids]]),
        chunk=opened.settings.chunk,
        window=opened.settings.window,
        carry=opened.settings.carry,
        document_ids=torch.tensor([numbers]),
    )


@lru_cache(maxsize=1)
def file_statistics(path: str, model: OpenModel) -> GradientStatistics:
    """Those of a file, if they are the model's."""
    from tintformer.learning.gradient_statistics import GradientStatistics

    return GradientStatistics.load(Path(path), model.auxiliary)


@lru_cache(maxsize=4)
def file_hash(path: str) -> str:
    """SHA-256 of a file."""
    import hashlib

    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read the statistics {path}: {error.strerror}") from error
