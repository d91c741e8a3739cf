"""What is simulated: a pretrained decoder, described once, for every engine to walk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from tintformer.auxiliary.model_record import ModelRecord
from tintformer.auxiliary.ops import Attend, Fork, Linear, Move, Norm, Op, Rotary, Step, Weight
from tintformer.auxiliary.text import continue_text
from tintformer.errors import InputError, LoadError, TintError


@dataclass(frozen=True, eq=False, kw_only=True)
class Embedding:
    """Token ids to the stream: (scale * E[token]), projected, plus a learned position, normalised; all frozen."""

    tokens: Weight
    scale: float = 1.0
    projection: Linear | None = None
    positions: Weight | None = None
    position_offset: int = 0
    """Row of position 0 in the table (2 for OPT)."""
    norm: Norm | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Head:
    """The frozen output matrix E `[vocabulary, width]` and its bias: logits = E x + b."""

    weight: Weight
    bias: Weight | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Auxiliary:
    """A decoder as embedding, blocks of steps, final steps and head, all tensors shared with `model`."""

    name: str
    """What messages call it."""
    family: str
    """Hugging Face's `model_type`."""
    embedding: Embedding
    """Token ids to the stream."""
    blocks: tuple[tuple[Step, ...], ...]
    """The steps of every block, from the first to the last."""
    final: tuple[Step, ...]
    """The final norm and the out-projection, where the family has them."""
    head: Head
    """The stream to logits."""
    max_positions: int | None
    """Longest context the model was built for; None where nothing limits it (ALiBi)."""
    takes_examples: bool = False
    """Whether it learns from `Examples`, vectors with a target at their own positions, instead of tokens, each of which
    the one before predicts. Embedding and head are then the identity, and the loss is half the squared error."""
    model: Any = field(repr=False)
    """The Hugging Face model, or the torch modules of a perceptron; never modified."""
    record: ModelRecord | None = field(default=None, repr=False)
    """The model as it was when it was described."""
    open_tokenizer: Callable[[], Any] | None = field(default=None, repr=False)
    """Finds the tokenizer when it is first asked for; None where nobody said which it is."""

    @cached_property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer of the model."""
        self.require_language_model("a text")
        if self.open_tokenizer is None:
            raise LoadError(f"{self.name} came without a tokenizer; give one: tint.load(model, tokenizer=...)")
        return self.open_tokenizer()

    def generate(self, prompt: str, **options: Any) -> str:
        """What the model adds to a text, 40 tokens greedily unless `options` say otherwise.

        Args:
            prompt: The text to continue.
            **options: Those of Hugging Face's `generate` (`max_new_tokens`, `do_sample`, `temperature`, ...), and
                `seed`, which makes sampling repeatable.
        """
        return continue_text(self, self.model, prompt, **options)

    def __repr__(self) -> str:
        if self.takes_examples:
            return self._described_sizes()
        size = sum(parameter.numel() for parameter in self.model.parameters())
        context = "any length" if self.max_positions is None else f"context {self.max_positions:,}"
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"<Auxiliary {self.name} ({self.family}): {size:,} parameters, {len(self.blocks)} blocks of width "
            f"{self.stream_width:,}, vocabulary {self.vocabulary_size:,}, {context}, {dtype} on {self.device}>"
        )

    def _described_sizes(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        dtype, depth = str(self.dtype).removeprefix("torch."), len(self.blocks)
        return (
            f"<Auxiliary {self.name}: {size:,} parameters in {depth} {'layer' if depth == 1 else 'layers'}, "
            f"{self.stream_width:,} inputs, {self.vocabulary_size:,} outputs, {dtype} on {self.device}>"
        )

    @property
    def vocabulary_size(self) -> int:
        """Token ids that the head predicts; outputs of one that takes examples."""
        return self.head.weight.source.shape[0]

    @property
    def stream_width(self) -> int:
        """Width of the stream that runs through the blocks."""
        projection = self.embedding.projection
        return self.embedding.tokens.source.shape[1] if projection is None else projection.weight.read().shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.embedding.tokens.source.dtype

    @property
    def device(self) -> torch.device:
        """Where sequences enter, and where predictions come out."""
        return self.embedding.tokens.home

    @property
    def learned_positions(self) -> bool:
        """Whether positions are rows of a table, which limits them."""
        return self.embedding.positions is not None

    @property
    def target_offset(self) -> int:
        """How far behind the position that predicts it a target stands."""
        return 0 if self.takes_examples else 1

    @property
    def dispatched(self) -> bool:
        """Whether it is spread over devices, or kept elsewhere than where it is computed with."""
        steps = [step for part in (*self.blocks, self.final) for step in part]
        linears = [op for op in ops(tuple(steps)) if isinstance(op, Linear)]
        return any(isinstance(step, Move) for step in steps) or any(op.weight.device is not None for op in linears)

    def has_changed(self) -> bool:
        """Whether modules or tensors of the model are no longer those that were described."""
        return self.record is not None and next(self.record.changes(), None) is not None

    def require_unchanged(self) -> None:
        """Refuse to go on with a model whose modules or tensors are no longer those that were described."""
        if self.record is not None:
            self.record.require_unchanged(self.name)

    def require_language_model(self, whose: str) -> None:
        """Refuse a model that learns from examples where tokens or transformers' own class are needed.

        Args:
            whose: Who needs them, for the message.
        """
        if self.takes_examples:
            raise InputError(f"{self.name} learns from Examples; {whose} needs a language model")

    def require_one_device(self, whose: str) -> None:
        """Refuse a model that is spread over devices, for those who cannot follow.

        Args:
            whose: Who cannot, for the message.
        """
        if self.dispatched:
            raise TintError(
                f"{self.name} is spread over devices or offloaded, which {whose} cannot follow; "
                "use the engine fast or reference, or load it without device_map"
            )

    def attentions(self) -> Iterator[Attend]:
        """Every attention of the model, from the first block to the last."""
        for block in self.blocks:
            yield from (fork.join for fork in forks(block) if isinstance(fork.join, Attend))

    def takes_position_ids(self) -> bool:
        """Whether positions enter by number (learned or rotary); ALiBi counts the visible tokens itself."""
        return self.learned_positions or any(isinstance(attend.position, Rotary) for attend in self.attentions())


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What updates and losses are computed in: half precisions would round a small update away beside its weight."""
    return torch.promote_types(dtype, torch.float32)


def forks(steps: tuple[Step, ...]) -> Iterator[Fork]:
    """All forks among the steps, outer ones first."""
    for step in steps:
        if isinstance(step, Fork):
            yield step
            for branch in step.branches:
                yield from forks(branch)


def ops(steps: tuple[Step, ...]) -> Iterator[Op]:
    """All ops with one input among the steps, in the order in which the forward pass meets them."""
    for step in steps:
        if isinstance(step, Fork):
            for branch in step.branches:
                yield from ops(branch)
        elif not isinstance(step, Move):
            yield step
