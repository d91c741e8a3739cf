"""Sequences that have been learnt from and go on: each with what it has learnt, token by token."""

# B batch, T tokens read so far, n of them read last, D width, V vocabulary

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import InputError
from tintformer.execution.batch import Batch
from tintformer.execution.engine import undisturbed


class KeyValueCache:
    """What attention keeps of the tokens that have been read, so that a sequence goes on without reading them again.

    Keys and values by the name of their attention; sequences are the first axis, tokens the last but one.
    """

    def __init__(self) -> None:
        self.entries: dict[str, tuple[Tensor, Tensor]] = {}

    def extend(self, name: str, key: Tensor, value: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Those of the first `start` tokens with the new ones behind them, all of which are kept.

        A pass that begins at the first token replaces what is there: of several passes the last one counts, which
        has the final weights.
        """
        if start:
            old_key, old_value = self.entries[name]
            # Only the first `start`: tokens that were cropped may still stand behind them.
            key = torch.cat((old_key[..., :start, :], key), dim=-2)
            value = torch.cat((old_value[..., :start, :], value), dim=-2)
        self.entries[name] = key, value
        return key, value

    def reorder(self, rows: Tensor) -> None:
        """Take these sequences, in this order."""
        self.entries = {
            name: (key.index_select(0, rows.to(key.device)), value.index_select(0, rows.to(value.device)))
            for name, (key, value) in self.entries.items()
        }


class Continuation(ABC):
    """A batch after its training, and the stream at the head's input of the tokens that were read last."""

    def __init__(self, auxiliary: Auxiliary, batch: Batch, cache: KeyValueCache | None, x: Float[Tensor, "B n D"]):
        self.auxiliary, self.batch, self.cache, self.x = auxiliary, batch, cache, x

    @property
    def length(self) -> int:
        """Tokens read so far, padding included."""
        return self.batch.input_ids.shape[1]

    @undisturbed
    @torch.no_grad()
    def extend(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> None:
        """Read more tokens with the weights as they are now; `attention_mask` is that of all tokens."""
        if self.cache is None:
            raise InputError("nothing was kept to go on from: begin with keep_cache=True")
        batch = self.batch.extended(self.auxiliary, input_ids, attention_mask)
        # In this order: should reading fail, the batch still says how much of the cache counts.
        self.x = self._read(batch, self.cache, self.length)
        self.batch = batch

    @undisturbed
    @torch.no_grad()
    def logits(self, last: int | None = None) -> Float[Tensor, "B n V"]:
        """Logits at the tokens that were read last, or at the `last` few of them."""
        x = self.x if last is None else self.x[:, -last:]
        return self._head(x.flatten(0, 1)).unflatten(0, x.shape[:2]).to(self.auxiliary.device)

    def reorder(self, rows: Tensor) -> None:
        """Go on from these sequences, in this order."""
        rows = rows.to(self.x.device)
        self.batch, self.x = self.batch.select(rows), self.x.index_select(0, rows)
        if self.cache is not None:
            self.cache.reorder(rows)
        self._reorder_updates(rows)

    def crop(self, length: int) -> None:
        """Forget the tokens behind the first `length`."""
        # The cache is cut by the next `extend`, which knows how much of it counts.
        self.batch = self.batch.select(tokens=length)

    @property
    def seen(self) -> Bool[Tensor, "B T"]:
        """The attention mask of all tokens read so far."""
        return self.batch.attention_mask

    @abstractmethod
    def _read(self, batch: Batch, cache: KeyValueCache, start: int) -> Float[Tensor, "B n D"]:
        """The stream at the head's input of the tokens from `start` on."""

    @abstractmethod
    def _head(self, rows: Float[Tensor, "rows D"]) -> Float[Tensor, "rows V"]: ...

    @abstractmethod
    def _reorder_updates(self, rows: Tensor) -> None: ...
