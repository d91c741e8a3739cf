"""Memory and arithmetic of a computation that does not take place.

Streams and weights are on torch's `meta` device: they have shapes, types and lifetimes, but no data. So the engine
itself runs, in its own order and with its own choices, and what it would hold at once is what is held here. Masks and
token ids are real: they decide how many rows are selected.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

aten: Any = torch.ops.aten
_INDEXING = (aten.index.Tensor, aten.index_put_.default)


class Meter(TorchDispatchMode):
    """Watches every tensor that is made while it is on, until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        """Of matrix products and attention; a multiply-add counts as two."""
        self.peak = 0
        self.parts_at_peak: dict[str, int] = {}
        self._part = ""
        self._held: Counter[str] = Counter()
        self._total = 0
        self._owners: dict[int, str] = {}
        """The part that each living storage belongs to."""
        self._references: dict[int, weakref.ref[Any]] = {}

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        """What is made inside belongs to this part; the innermost counts."""
        outer, self._part = self._part, name
        try:
            yield
        finally:
            self._part = outer

    def watch(self, owner: Any, parts: Mapping[str, str]) -> None:
        """Let what an object's methods make belong to the parts that are given by their names."""
        for method, name in parts.items():
            setattr(owner, method, self._within(name, getattr(owner, method)))

    def _within(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def labelled(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return method(*args, **kwargs)

        return labelled

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(isinstance(each, Tensor) and each.is_meta for each in args):
            if func is aten._local_scalar_dense.default:
                return True  # only ever asked whether all is finite
            if func is aten._to_copy.default:
                kwargs = {**kwargs, "device": torch.device("meta")}  # back to the sequences, which are real
            if func in _INDEXING:
                args = (args[0], _places(args[1]), *args[2:])
            args = tuple(_without_data(each) for each in args)
        out = func(*args, **kwargs)
        if count := flop_registry.get(func._overloadpacket):
            self.flops += count(*args, **kwargs, out_val=out)
        for each in out if isinstance(out, tuple | list) else (out,):
            if isinstance(each, Tensor):
                self.hold(each)
        return out

    def hold(self, tensor: Tensor) -> None:
        """Count a tensor's memory as the current part's until it is freed; what is counted already stays as it is."""
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self._owners:
            return

        def free(_: Any) -> None:
            del self._references[key]
            self._held[self._owners.pop(key)] -= size
            self._total -= size

        self._references[key], self._owners[key] = weakref.ref(storage, free), self._part
        self._held[self._part] += size
        self._total += size
        if self._total > self.peak:
            self.peak, self.parts_at_peak = self._total, dict(self._held)

    def claim(self, tensor: Tensor) -> None:
        """Let memory that is counted already belong to the current part."""
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        self._held[self._owners[key]] -= size
        self._held[self._part] += size
        self._owners[key] = self._part

    @contextmanager
    def running(self) -> Generator[None]:
        """Count what happens inside."""
        with _Fused(self), self:
            yield


class _Fused(TorchFunctionMode):
    """Attention as the fused kernels do it, in no memory but the output's; `meta` would form the scores."""

    def __init__(self, meter: Meter):
        super().__init__()
        self.meter = meter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        query, key, value = args[:3]
        batch, heads, queries, width = query.shape
        causal = (kwargs or {}).get("is_causal", False)
        products = batch * heads * queries * key.shape[2] * (width + value.shape[3])
        self.meter.flops += products if causal else 2 * products  # causal: half of the scores
        return query.new_empty(batch, queries, heads, value.shape[3]).transpose(1, 2)


def _places(indices: Any) -> list[Any]:
    """Masks as the numbers of the places that they select."""
    found: list[Any] = []
    for index in indices:
        found.extend((index,) if index is None or index.dtype != torch.bool else index.nonzero().unbind(1))
    return found


def _without_data(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_data(each) for each in value]
    return value.to("meta") if isinstance(value, Tensor) and not value.is_meta else value
