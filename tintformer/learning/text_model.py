"""A model for texts: what a caller gives for one, opened with its tokenizer, and a text as its tokens, split."""

from __future__ import annotations

from typing import Any

import torch

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.text import Encoded, check_context_length, encode
from tintformer.errors import LoadError
from tintformer.learning.split import Split
from tintformer.storage.loading import load
from tintformer.typed_fields import shown


def open_text_model(model: Any, tokenizer: Any, device: Any, dtype: str | torch.dtype | None) -> Auxiliary:
    """A model whose tokenizer is there, or is asked for in one line before anything is computed."""
    if isinstance(dtype, str):
        found = getattr(torch, dtype, None)
        if not isinstance(found, torch.dtype):
            raise LoadError(f"dtype={shown(dtype)} is unknown; give float32, float64 or bfloat16")
        dtype = found
    if isinstance(model, Auxiliary) and (device is not None or dtype is not None):
        raise LoadError("a model that is loaded keeps its dtype and device; give them to tint.load")
    auxiliary = load(model, tokenizer=tokenizer, device=device, dtype=dtype)
    _ = auxiliary.tokenizer
    return auxiliary


def encode_for_split(
    auxiliary: Auxiliary,
    text: str,
    split: Split,
    rest: str | None = None,
    *,
    tokens: int | None = None,
    beyond_context: bool = False,
    generate: int = 0,
) -> tuple[Encoded, int]:
    """The first tokens of a text, and how many of them train: by the split, or all of `text` where a `rest` follows."""
    encoded = encode(auxiliary.tokenizer, text).first(tokens)
    num_train = len(encoded.input_ids)
    if rest is None:
        num_train = split.of(num_train)
    else:
        more = encode(auxiliary.tokenizer, rest, at_least=1, special=False)
        encoded = Encoded(input_ids=encoded.input_ids + more.input_ids, tokens=encoded.tokens + more.tokens)
    check_context_length(auxiliary, len(encoded.input_ids), beyond_context, generate)
    return encoded, num_train
