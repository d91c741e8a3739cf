"""What generation carries from token to token: keys and values, and what every sequence has learnt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from tintformer.errors import InputError
from tintformer.execution.continuation import Continuation


class TintCache(Cache):
    """A transformers cache around a continuation; empty until a model has learnt from a prompt with it."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.continuation: Continuation | None = None

    @property
    def begun(self) -> Continuation:
        """What it holds; an empty cache is refused."""
        if self.continuation is None:
            raise InputError("this cache is empty: a model has to read a prompt with it first")
        return self.continuation

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that it holds.

        Args:
            layer_idx: Of no effect: all layers hold the same tokens.
        """
        return 0 if self.continuation is None else self.continuation.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.begun.reorder(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.begun.reorder(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        rows = torch.arange(self.batch_size).repeat_interleave(repeats)
        self.begun.reorder(rows)

    def crop(self, tokens_to_remove: int) -> None:
        """Take tokens back. What has been learnt stays.

        Args:
            tokens_to_remove: How many of the last tokens, with either sign, as transformers counts them.
        """
        self.begun.crop(self.begun.length - abs(tokens_to_remove))

    def reset(self) -> None:
        """Make it empty again, and forget what was learnt."""
        self.continuation = None

    def update(self, *args: Any, **kwargs: Any) -> Any:
        raise InputError("a TintCache serves the model that made it, and no layers of other models")

    @property
    def batch_size(self) -> int:
        return -1 if self.continuation is None else len(self.continuation.batch.input_ids)

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_croppable(self) -> bool:
        return True

    @property
    def is_initialized(self) -> bool:
        return self.continuation is not None
