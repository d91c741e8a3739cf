"""Arithmetic that was done: multiply-adds of all matrix products and attentions, counted while they run."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = 2.5
"""Products of an attention's backward pass over those of its forward pass: five, where forward has two."""


class WorkCounter(TorchDispatchMode):
    """Counts while it is on; a multiply-add counts as two."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__
        if name == _CPU_ATTENTION:
            self.flops += _attention(*args[:3])
        elif name == f"{_CPU_ATTENTION}_backward":
            self.flops += int(_BACKWARD * _attention(*args[1:4]))
        # A product that is added in place (`baddbmm_`) costs what the other does.
        elif (count := flop_registry.get(getattr(torch.ops.aten, name.removesuffix("_"), None))) is not None:
            self.flops += int(count(*args, **(kwargs or {}), out_val=out))
        return out


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """Scores and what they select, as if all were computed: kernels leave out what a mask hides, more or less."""
    batch, heads, queries, width = query.shape
    return 2 * batch * heads * queries * key.shape[2] * (width + value.shape[3])
