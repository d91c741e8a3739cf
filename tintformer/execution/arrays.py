"""What callers pass for token ids and masks, as tensors: lists, tuples and numpy's arrays are converted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
