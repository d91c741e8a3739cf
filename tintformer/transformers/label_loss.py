"""The loss of labels, as transformers' models have it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tintformer.errors import InputError
from tintformer.execution.inputs import as_tensor
from tintformer.transformers.config import TintConfig

IGNORED = -100
"""The label of a token without a loss."""


def checked_labels(labels: Any, config: TintConfig) -> Tensor | None:
    """What the loss is taken of: token ids, or -100."""
    if labels is None:
        return None
    found = as_tensor("labels", labels)
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise InputError(f"labels has dtype {found.dtype}; it must be whole numbers (torch.long)")
    size, found = config.auxiliary.vocab_size, found.long()
    if bool(((found != IGNORED) & ((found < 0) | (found >= size))).any()):
        raise InputError(f"labels holds other ids than those of the vocabulary of {size}, and {IGNORED}")
    return found


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log-likelihood of the labels, each predicted by the token before it."""
    if labels.shape != logits.shape[:2]:
        raise InputError(f"labels has shape {tuple(labels.shape)} but the logits are for {tuple(logits.shape[:2])}")
    targets = labels[:, 1:].to(logits.device).flatten()
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets, ignore_index=IGNORED)
