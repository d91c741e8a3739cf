"""Examples instead of tokens: vectors with their targets, as a batch that every engine takes.

B sequences, N examples in each, d inputs, k outputs. An example stands where a token would stand; no other predicts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Unpack

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import InputError
from tintformer.execution.batch import Batch, LearningMasks, Masks, check_training
from tintformer.execution.inputs import Array, as_tensor, mask_of
from tintformer.typed_fields import explained


@explained
@dataclass(frozen=True, eq=False)
class Examples:
    """Sequences of examples for a model that `regression` or `mlp` makes; each sequence is learnt from on its own."""

    x: Array
    """Inputs, `[batch, examples, inputs]`: a tensor, an array of numpy, or nested lists."""
    y: Array
    """Targets, `[batch, examples, outputs]`: each at the position of its input."""
    train_mask: Array
    """1 for the examples that are learnt from, 0 for those that are predicted: `[batch, examples]`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ExampleBatch(Batch):
    """Examples, checked, on the model's device. They hold no tokens: all `input_ids` are 0."""

    x: Float[Tensor, "B N d"]
    y: Float[Tensor, "B N k"]

    @classmethod
    def of_examples(cls, auxiliary: Auxiliary, examples: Examples) -> ExampleBatch:
        """What the user gave, checked."""
        if not auxiliary.takes_examples:
            raise InputError(f"{auxiliary.name} takes token ids; Examples are for what regression and mlp make")
        auxiliary.require_unchanged()
        x = _vectors("x", examples.x, "inputs", auxiliary.stream_width, auxiliary)
        y = _vectors("y", examples.y, "outputs", auxiliary.vocabulary_size, auxiliary)
        mask = as_tensor("train_mask", examples.train_mask)
        if not x.shape[:2] == y.shape[:2] == mask.shape:
            shapes = ", ".join(f"{name} {tuple(each.shape)}" for name, each in (("x", x), ("y", y), ("mask", mask)))
            raise InputError(f"x, y and train_mask must have the same sequences and examples; they are {shapes}")
        numbers = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        everywhere = torch.ones_like(numbers, dtype=torch.bool)
        train = mask_of("train_mask", mask, numbers)
        return cls(
            input_ids=numbers,
            attention_mask=everywhere,
            segment_ids=numbers,
            train_mask=train,
            loss_mask=everywhere,
            score_mask=~train,
            x=x,
            y=y,
        )

    @cached_property
    def inputs(self) -> Float[Tensor, "B N d"]:
        return self.x

    @cached_property
    def placed_targets(self) -> Float[Tensor, "B N k"]:
        return self.y

    # A target stands at its own position, so that nothing is shifted.

    @cached_property
    def targets(self) -> Float[Tensor, "B N k"]:
        return self.y

    @cached_property
    def predicts(self) -> Bool[Tensor, "B N"]:
        return self.attention_mask

    @cached_property
    def train_positions(self) -> Bool[Tensor, "B N"]:
        return self.train_mask & self.loss_mask

    @cached_property
    def evaluation_positions(self) -> Bool[Tensor, "B N"]:
        return self.score_mask

    @cached_property
    def evaluation_mask(self) -> Bool[Tensor, "B N"]:
        return self.score_mask


def learning_batch(
    auxiliary: Auxiliary, inputs: Any, train_mask: Array | None, **masks: Unpack[LearningMasks]
) -> Batch:
    """What a call is given, checked: token ids with their masks, or `Examples` for a model that takes them."""
    if not isinstance(inputs, Examples):
        if train_mask is None:
            raise InputError("train_mask is missing: 1 for the tokens that are trained on, [batch, tokens]")
        return Batch.of(auxiliary, inputs, train_mask=train_mask, **masks)
    _refuse_masks({"train_mask": train_mask, **masks})
    batch = ExampleBatch.of_examples(auxiliary, inputs)
    check_training(batch)
    return batch


def scoring_batch(auxiliary: Auxiliary, inputs: Any, score_mask: Array | None, **masks: Unpack[Masks]) -> Batch:
    """The same for what is only predicted: of `Examples`, those outside of their training part, which may be empty."""
    if not isinstance(inputs, Examples):
        return Batch.to_score(auxiliary, inputs, score_mask=score_mask, **masks)
    _refuse_masks({"score_mask": score_mask, **masks})
    batch = ExampleBatch.of_examples(auxiliary, inputs)
    nothing = torch.zeros_like(batch.train_mask)
    return replace(batch, train_mask=nothing, loss_mask=nothing)


def _refuse_masks(masks: Mapping[str, Any]) -> None:
    if given := [name for name, value in masks.items() if value is not None]:
        raise InputError(f"{', '.join(given)}: Examples hold their own train_mask and take no other mask")


def _vectors(name: str, value: Any, what: str, width: int, auxiliary: Auxiliary) -> Shaped[Tensor, "B N width"]:
    given = as_tensor(name, value)
    if given.is_meta and auxiliary.device.type != "meta":
        raise InputError(f"{name} has no data (device meta); make it on the cpu, with device='cpu'")
    if given.dim() != 3 or 0 in given.shape or given.shape[-1] != width:
        raise InputError(
            f"{name} has shape {tuple(given.shape)}; it must be [batch, examples, {what}] with {width} {what} for "
            f"{auxiliary.name}, none of them 0"
        )
    if given.dtype.is_complex or given.dtype == torch.bool:
        raise InputError(f"{name} has dtype {given.dtype}; it must be real numbers")
    vectors = given.detach().to(auxiliary.device, auxiliary.dtype)
    if not bool(torch.isfinite(vectors).all()):
        raise InputError(f"{name} contains NaN or infinity, or numbers that {auxiliary.dtype} does not hold")
    return vectors
