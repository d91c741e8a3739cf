"""What callers give: tensors and sequences of numbers, token ids and masks, checked and put into shape."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import InputError, cause
from tintformer.typed_fields import shown

Array = Any
"""Token ids or a mask as callers have them: a tensor, an array of numpy, or nested lists of numbers."""


def as_tensor(name: str, value: Any) -> Tensor:
    """A tensor as it is, or one made of nested lists, tuples and arrays; anything else is refused by name."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_nested:
            raise InputError(f"{name} is a sparse or nested tensor; give a dense one, padded to one length")
        return value
    if value is None:
        raise InputError(f"{name} is None; give numbers of shape [batch, tokens]")
    if isinstance(value, str | bytes):
        raise InputError(f"{name}={shown(value)} is a text; encode it with the model's tokenizer")
    if hasattr(value, "keys"):  # what a tokenizer returns
        raise InputError(f"{name} is a {type(value).__name__}; give the entry of it that is meant")
    try:
        # On the CPU whatever the default device is: on `meta` the numbers would be lost.
        return torch.tensor(_lists(value), device="cpu")
    except (TypeError, ValueError, RuntimeError, RecursionError, OverflowError) as error:
        raise InputError(
            f"{name} is a {type(value).__name__} that is no array of numbers ({cause(error)}); give rows of one "
            "length, [batch, tokens]"
        ) from None


def as_optional_tensor(name: str, value: Any) -> Tensor | None:
    """`as_tensor`, where None is as good as leaving it out."""
    return None if value is None else as_tensor(name, value)


def _lists(value: Any) -> Any:
    """Nested lists of Python's numbers; the rows of a list may be arrays or tensors themselves."""
    if callable(tolist := getattr(value, "tolist", None)):
        return tolist()
    return [_lists(each) for each in value] if isinstance(value, list | tuple | range) else value


SHARED = -1
"""Segment id of tokens that are visible to all segments."""


def token_ids(input_ids: Array, auxiliary: Auxiliary) -> Int[Tensor, "B T"]:
    """The user's token ids, checked, on the auxiliary's device."""
    auxiliary.require_unchanged()  # here, because every call of every engine begins with its tokens
    if auxiliary.takes_examples:
        raise InputError(f"{auxiliary.name} takes no tokens; give tintformer.Examples(x, y, train_mask)")
    given = _with_data("input_ids", as_tensor("input_ids", input_ids), auxiliary.device)
    ids = _integers("input_ids", given).to(auxiliary.device)
    if ids.dim() != 2 or 0 in ids.shape:
        raise InputError(f"input_ids has shape {tuple(ids.shape)}; it must be [batch, tokens], neither of them 0")
    low, high, size = int(ids.min()), int(ids.max()), auxiliary.embedding.tokens.source.shape[0]
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        raise InputError(
            f"token id {wrong} is outside of the vocabulary of {size}; was the text encoded by another tokenizer?"
        )
    return ids


def _with_data(name: str, value: Tensor, device: torch.device) -> Tensor:
    if value.is_meta and device.type != "meta":
        raise InputError(f"{name} has no data (device meta); make it on the cpu, with device='cpu'")
    return value


def _like(name: str, value: Any, ids: Tensor) -> Tensor:
    value = _with_data(name, as_tensor(name, value), ids.device)
    if value.shape != ids.shape:
        raise InputError(f"{name} has shape {tuple(value.shape)} but input_ids has {tuple(ids.shape)}")
    return value.to(ids.device)


def numbers_of(name: str, value: Array, ids: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """A user's whole numbers, one a token, on their device."""
    return _integers(name, _like(name, value, ids))


def ids_of(name: str, value: Array, ids: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """A user's numbers of segments, steps or positions, one a token, none below the smallest that means something."""
    value = numbers_of(name, value, ids)
    lowest = SHARED if name == "segment_ids" else 0
    if int(value.min()) < lowest:
        raise InputError(f"{name} contains {int(value.min())}; the smallest allowed is {lowest}")
    return value


def mask_of(name: str, value: Array, ids: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """A user's mask of token ids, checked, on their device."""
    value = _like(name, value, ids)
    if value.dtype.is_floating_point or value.dtype.is_complex:
        raise InputError(f"{name} has dtype {value.dtype}; it must be boolean, or whole numbers 0 and 1")
    if value.dtype == torch.bool:
        return value
    value = value.long()  # torch compares few of its unsigned dtypes
    if bool(((value != 0) & (value != 1)).any()):
        raise InputError(f"{name} holds values other than 0 and 1")
    return value.bool()


def mask_or_all(name: str, value: Array | None, ids: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """A user's mask; without one, all tokens."""
    return torch.ones_like(ids, dtype=torch.bool) if value is None else mask_of(name, value, ids)


def _integers(name: str, value: Tensor) -> Tensor:
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
        raise InputError(f"{name} has dtype {value.dtype}; it must be whole numbers (torch.long)")
    return value.long()
