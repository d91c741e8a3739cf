"""What attention keeps of the tokens that have been read, so that a sequence goes on without reading them again."""

from __future__ import annotations

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values by the name of their attention; sequences are the first axis, tokens the last but one."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[Tensor, Tensor]] = {}

    def extend(self, name: str, key: Tensor, value: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Those of the first `start` tokens with the new ones behind them, all of which are kept.

        A pass that begins at the first token replaces what is there: of several passes the last one counts, which
        has the final weights.
        """
        if start:
            old_key, old_value = self.entries[name]
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
