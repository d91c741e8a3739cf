"""Root mean squares of gradients on a text, for the optimiser `rms` (Krause et al., dynamic evaluation).

Of every parameter the root of the mean over chunks of g^2, g the gradient of a chunk's loss with the weights as they
came; chunks and what they see of their past are those of a stream. One safetensors file with a checksum: tensors by
Hugging Face name, and as texts the base's hash, how gradients were taken, and from how many chunks of which size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary, compute_dtype
from tintformer.auxiliary.ops import Weight
from tintformer.auxiliary.placement import placed_parameters
from tintformer.engines.fast import FastEngine
from tintformer.engines.fast.reading import GradientExecutor, Memory
from tintformer.engines.fast.updates import Updates
from tintformer.errors import InputError, LoadError, RuleError, TintError
from tintformer.execution import walk
from tintformer.execution.batch import Chunk
from tintformer.execution.engine import parameter_updates, undisturbed
from tintformer.execution.inputs import Array
from tintformer.execution.output import Predictions
from tintformer.learning.streams import Carry, StreamSettings, read_stream
from tintformer.learning.update_files import base_hash, read_object
from tintformer.rule.learning_rule import LearningRule, require_rule
from tintformer.rule.optimiser import trainable_weights
from tintformer.storage.checksums import CHECKSUM, read_tensors, write_tensors
from tintformer.storage.loading import load
from tintformer.storage.untrusted import is_finite
from tintformer.storage.untrusted_files import given_path
from tintformer.storage.whole_files import check_file, whole_file
from tintformer.typed_fields import shown
from tintformer.version import __version__

FORMAT = "tintformer-statistics-1"
_METADATA = {"format", "version", "base", "base_name", "gradient", "chunks", CHECKSUM}
GRADIENT = (
    "layers",
    "loss",
    "reduction",
    "norm_gradient",
    "activation_gradient",
    "attention_gradient",
    "epsilon",
    "epsilon_mode",
    "update_norm_scale",
    "update_query_key",
)
"""Knobs of a rule that decide what a gradient is, and of which parameters."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientStatistics:
    """Root mean squares of a model's gradients: what `collect_statistics` returns and `Tint(statistics=...)` takes."""

    tensors: Mapping[str, Tensor]
    """By Hugging Face name, in the shape of the parameter; zeros where a rule trains a part of it only."""
    base: str
    """Hash of the model's weights."""
    base_name: str
    """What the model was called."""
    gradient: Mapping[str, Any]
    """The knobs of the rule that decide what a gradient is."""
    chunk: int
    """Tokens of a chunk. Gradients of a summed loss grow with it, and so does what they are divided by."""
    chunks: int
    """How many the means are over."""

    def __repr__(self) -> str:
        return f"<GradientStatistics of {self.base_name}: {self.chunks} chunks of {self.chunk} tokens>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them as safetensors, whole or not at all.

        Args:
            path: The file.
        """
        from safetensors import SafetensorError

        target = given_path(path)
        check_file(target)
        metadata = {
            "format": FORMAT,
            "version": __version__,
            "base": self.base,
            "base_name": self.base_name.encode(errors="backslashreplace").decode(),
            "gradient": json.dumps(dict(self.gradient)),
            "chunks": json.dumps({"size": self.chunk, "number": self.chunks}),
        }
        try:
            with whole_file(target) as temporary:
                write_tensors(temporary, self.tensors, metadata)
        except (OSError, SafetensorError) as error:
            raise TintError(f"cannot write {target}: {error}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Any) -> GradientStatistics:
        """Read statistics of this very model; those of another are refused.

        Args:
            path: A file that `save` or `tint statistics` has written.
            model: What `load` takes.
        """
        auxiliary = load(model)
        found = _read(given_path(path, LoadError))
        _check_base(found, auxiliary, str(path))
        _check_tensors(found, auxiliary, str(path))
        return found


def _check_base(found: GradientStatistics, auxiliary: Auxiliary, source: str = "statistics") -> None:
    """Refuse another model."""
    if found.base != base_hash(auxiliary):
        raise LoadError(
            f"{source}: statistics of another model ({found.base_name!r:.80}), not of {auxiliary.name} as it is "
            "loaded here; collect them on this one with `tint statistics`"
        )


def _check_rule(found: GradientStatistics, rule: LearningRule) -> None:
    """Refuse a rule whose gradients are others; one of fewer layers has the same."""
    for name in GRADIENT:
        collected, wanted = found.gradient.get(name), getattr(rule, name)
        if name == "layers":
            if collected is not None and (wanted is None or wanted > collected):
                raise RuleError(f"the statistics are of the top {collected} blocks alone; collect them for all")
        elif collected != wanted:
            raise RuleError(
                f"the statistics were collected with {name}={collected!r:.40}, and the rule has {wanted!r}; "
                "collect them by the same rule"
            )


def _check_tensors(found: GradientStatistics, auxiliary: Auxiliary, source: str) -> None:
    """Refuse what no collection leaves."""
    parameters = {name: data for name, (data, _) in placed_parameters(auxiliary.model).items()}
    for name, values in found.tensors.items():
        if name not in parameters or parameters[name].shape != values.shape or not values.is_floating_point():
            raise LoadError(f"{source}: {name!r:.120} does not fit a parameter of {auxiliary.name}")
        if not is_finite(values) or bool((values < 0).any()):
            raise LoadError(f"{source}: {name!r:.120} holds what is no root of a mean square; collect them anew")


def _check_metadata(metadata: Mapping[str, str], path: Path) -> None:
    if (found := metadata.get("format")) != FORMAT:
        raise LoadError(f"{path} holds no statistics of this version (format {found!r:.80}, not {FORMAT!r})")
    if odd := sorted(metadata.keys() ^ _METADATA):
        raise LoadError(f"{path} lacks metadata or has unknown ones ({odd!s:.80}); collect them anew")


def _read(path: Path) -> GradientStatistics:
    metadata, mapped = read_tensors(path, "statistics", _check_metadata)
    chunks, gradient = read_object(metadata, "chunks", path), read_object(metadata, "gradient", path)
    size, number, layers = chunks.get("size"), chunks.get("number"), gradient.get("layers")
    if not isinstance(size, int) or not isinstance(number, int) or not isinstance(layers, int | None):
        raise LoadError(f"{path}: its metadata are none that a collection leaves; collect them anew")
    return GradientStatistics(
        # Copies: what is mapped goes with the file.
        tensors={name: tensor.clone() for name, tensor in mapped.items()},
        base=metadata["base"],
        base_name=metadata["base_name"],
        gradient=gradient,
        chunk=size,
        chunks=number,
    )


def settle_statistics(statistics: Any, auxiliary: Auxiliary, rule: LearningRule) -> Mapping[str, Tensor] | None:
    """What a caller gave for `statistics`, as tensors by name: a path, what was collected, or such tensors."""
    if statistics is None:
        return None
    if isinstance(statistics, str | os.PathLike):
        statistics = GradientStatistics.load(statistics, auxiliary)
    elif isinstance(statistics, GradientStatistics):
        _check_base(statistics, auxiliary)
    if isinstance(statistics, GradientStatistics):
        if rule.optimizer == "rms":  # of another optimiser the engine says that it wants none
            _check_rule(statistics, rule)
        return statistics.tensors
    if not isinstance(statistics, Mapping) or not all(isinstance(each, Tensor) for each in statistics.values()):
        raise InputError(
            f"statistics={shown(statistics)} must be a path, what tintformer.collect_statistics returns, or tensors by "
            "name"
        )
    return statistics


def collect_statistics(
    model: Any,
    rule: LearningRule,
    input_ids: Array,
    *,
    chunk: int = 128,
    window: int | None = None,
    carry: Carry = "cache",
    document_ids: Array | None = None,
    attention_mask: Array | None = None,
    on_chunk: Callable[[int], None] | None = None,
) -> GradientStatistics:
    """Root mean squares of gradients over the chunks of a text, with the weights as they came, for `optimizer="rms"`.

    Collect them on a text of the kind that will be read, never on the text that is scored.

    Args:
        model: What `load` takes.
        rule: Whose gradients; how it descends, and at which rate, is of no consequence.
        input_ids: Token ids `[batch, tokens]`. Each row is a document, or several one after the other.
        chunk: Tokens of a chunk, as many as a stream will have.
        window: As in `Tint.stream`.
        carry: As in `Tint.stream`.
        document_ids: As in `Tint.stream`.
        attention_mask: As in `Tint.stream`.
        on_chunk: Called with how many chunks there have been.
    """
    auxiliary = load(model)
    rule = require_rule(rule)
    collector = _Collector(auxiliary, rule)
    pieces = read_stream(
        collector,
        input_ids,
        StreamSettings(chunk=chunk, window=window, carry=carry),
        document_ids=document_ids,
        attention_mask=attention_mask,
    )
    for _ in pieces:
        if on_chunk is not None:
            on_chunk(collector.chunks)
    if not collector.chunks:
        raise InputError("no chunk has a target to take a gradient of; give a longer text")
    return GradientStatistics(
        tensors=collector.root_mean_squares(),
        base=base_hash(auxiliary),
        base_name=auxiliary.name,
        gradient={name: getattr(rule, name) for name in GRADIENT},
        chunk=chunk,
        chunks=collector.chunks,
    )


class _Collector(FastEngine):
    """Reads as a stream does, learns nothing, and sums up the squares of every chunk's gradients."""

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule):
        plain = {name: getattr(rule, name) for name in GRADIENT}
        super().__init__(auxiliary, LearningRule(learning_rate=1.0, **plain))
        self.squares: dict[Weight, Tensor] = {}
        self.chunks = 0

    @undisturbed
    @torch.no_grad()
    def read(
        self, chunk: Chunk, memory: Memory, *, size: int, tokens: int, keep: int, logits: bool = False
    ) -> Predictions:
        executor = GradientExecutor(self.auxiliary, self.rule, chunk, memory, size=size, tokens=tokens)
        walk.train(executor, self.auxiliary, self.rule)
        executor.check_gradients()
        executor.keep(keep)
        for row in chunk.train_positions.any(1).nonzero().flatten().tolist():
            self._add(memory.updates, row)
        # The next chunk is read with the weights as they came.
        memory.updates = Updates()
        assert executor.scores is not None
        return Predictions(losses=executor.scores.to(chunk.input_ids.device), logits=None)

    def _add(self, updates: Updates, row: int) -> None:
        """One step at rate 1 is minus the gradient."""
        self.chunks += 1
        for weight in trainable_weights(self.rule, self.auxiliary):
            for gradient in updates.formed((weight,), row).values():
                if weight not in self.squares:
                    self.squares[weight] = torch.zeros_like(gradient, dtype=compute_dtype(self.auxiliary.dtype))
                self.squares[weight].addcmul_(gradient, gradient)

    @undisturbed
    def root_mean_squares(self) -> dict[str, Tensor]:
        """By Hugging Face name."""
        roots = {weight: (total / self.chunks).sqrt() for weight, total in self.squares.items()}
        found = parameter_updates(roots, self.auxiliary, self.rule)
        return {name: values.cpu() for name, values in found.items()}
