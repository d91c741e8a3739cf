# pyright: basic
"""Devices that are not there: tensors with real numbers and a label, and an error wherever labels mix.

A `Labelled` tensor says that it is on a device of torch's type `lazy`, which no machine has and which torch does not
start up, and holds its numbers on the CPU. Computations take place there, so they are those of the CPU to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

FIRST, SECOND = torch.device("lazy:0"), torch.device("lazy:1")
CPU = torch.device("cpu")


class Labelled(Tensor):
    data_on_cpu: Tensor

    @staticmethod
    def __new__(cls, data: Tensor, device: torch.device) -> Any:
        return Tensor._make_wrapper_subclass(
            cls,
            data.shape,
            strides=data.stride(),
            dtype=data.dtype,
            device=device,
            storage_offset=data.storage_offset(),
        )

    def __init__(self, data: Tensor, device: torch.device):
        self.data_on_cpu = data

    def __repr__(self) -> str:
        return f"Labelled({self.device}, {self.data_on_cpu})"

    def tolist(self) -> Any:
        return self.data_on_cpu.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def bare(value: Any) -> Any:
    return value.data_on_cpu if isinstance(value, Labelled) else value


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an op on the CPU, and label what comes out; several labels among its inputs are an error."""
    inputs = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
    copies = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    # As on real devices: a single number of the CPU may enter any computation.
    places = {each.device for each in inputs if each.dim() or each.device != CPU}
    if len(places) > 1 and not copies:
        raise RuntimeError(f"{func} mixes {sorted(map(str, places))}")
    asked = kwargs.get("device")
    place = asked or (args[0].device if copies else next(iter(places), CPU))
    if asked is not None:
        kwargs = {**kwargs, "device": CPU}
    out = func(*tree_map(bare, args), **tree_map(bare, kwargs))
    first = args[0] if args else None
    if isinstance(first, Labelled) and out is first.data_on_cpu:
        return first  # in place
    label = torch.device(place)
    return tree_map(lambda each: Labelled(each, label) if isinstance(each, Tensor) and label != CPU else each, out)


class _Factories(TorchDispatchMode):
    """`torch.zeros(..., device=...)` and `.to(...)` from the CPU, where no labelled tensor takes part yet."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


FROM_NUMBERS = (torch.tensor, torch.as_tensor)
"""What makes a tensor of numbers where no kernel of the device's is asked."""
BY_DEVICE = (functional.scaled_dot_product_attention, torch.ops.aten.silu_backward)
"""What torch computes in another way where it has no kernel of the device's own."""


class _Kernels(TorchFunctionMode):
    """The CPU's kernels for all that torch chooses by device before an op is dispatched."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FROM_NUMBERS and torch.device(place := kwargs.get("device") or CPU) in (FIRST, SECOND):
            return Labelled(bare(func(*tree_map(bare, args), **{**kwargs, "device": CPU})), torch.device(place))
        if func is Tensor.new_tensor and isinstance(args[0], Labelled):
            return Labelled(torch.tensor(args[1], dtype=args[0].dtype), args[0].device)
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Labelled):
            # Torch makes a tensor of a list of places, on the device of what they are places in.
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            made = (Labelled(torch.tensor(each), args[0].device) if isinstance(each, list) else each for each in places)
            return func(args[0], tuple(made), *args[2:])
        if func not in BY_DEVICE:
            return func(*args, **kwargs)
        places = {each.device for each in args if isinstance(each, Tensor)}
        if len(places) > 1:
            raise RuntimeError(f"{func} mixes {sorted(map(str, places))}")
        out = func(*tree_map(bare, args), **tree_map(bare, kwargs))
        return Labelled(out, args[0].device) if isinstance(args[0], Labelled) else out


@contextmanager
def fake_devices() -> Iterator[None]:
    with torch.no_grad(), _Kernels(), _Factories():
        yield


def put(model: nn.Module, places: dict[str, torch.device]) -> None:
    """Move parameters and buffers, by the longest prefix of their names that is given; tied ones stay one."""
    moved: dict[tuple[int, torch.device], Any] = {}
    for path, module in model.named_modules():
        for tensors in (module._parameters, module._buffers):
            for key, tensor in tensors.items():
                prefixes = [prefix for prefix in places if f"{path}.{key}".startswith(prefix)]
                if tensor is not None and prefixes:
                    key_of = id(tensor), places[max(prefixes, key=len)]
                    if key_of not in moved:
                        new = Labelled(bare(tensor.detach()), key_of[1])
                        is_parameter = tensors is module._parameters
                        moved[key_of] = nn.Parameter(new, requires_grad=False) if is_parameter else new
                    tensors[key] = moved[key_of]
