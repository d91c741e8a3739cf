# pyright: basic
"""A processor on which last bits depend on where weights lie: `make portable` runs tests on it, whatever the real one.

On some processors MKL begins a product with the elements in front of the first aligned address, so that the same
weights at another offset give other last bits. Here
- every test model's weights and every tensor out of a safetensors file lie off the 64 bytes that torch aligns to, those
  out of files at another offset than those that a test has made;
- every matrix product with an operand that is off by an odd or even number of elements rounds in a way of its own.
Both hold in the test's own process, not in those that it starts.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import safetensors.torch
import torch

ALIGNMENT = 64
VARIABLE = "TINTFORMER_TESTS_MISALIGN"
SHIFT = int(os.environ.get(VARIABLE, "0"))
"""By how many bytes the weights of test models are off; tensors out of files are off by three times as many."""

_safe_open: Any = safetensors.safe_open
_KERNELS: list[Any] = []


def misaligned(tensor: torch.Tensor, shift: int) -> torch.Tensor:
    """A copy that starts `shift` bytes after an aligned address."""
    elements = shift // tensor.element_size()
    buffer = torch.empty(elements + tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    return buffer[elements:].view(tensor.shape).copy_(tensor)


def misalign(model: Any) -> Any:
    """The same model, its weights off by `SHIFT` bytes where that is asked for; tied weights stay tied."""
    if SHIFT:
        for parameter in model.parameters():
            parameter.data = misaligned(parameter.data, SHIFT)
    return model


class _Slice:
    def __init__(self, part: Any):
        self._part = part

    def __getitem__(self, index: Any) -> torch.Tensor:
        return misaligned(self._part[index], 3 * SHIFT)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


class _Opened:
    """An open safetensors file whose tensors come out misaligned."""

    def __init__(self, *arguments: Any, **options: Any):
        self._file = _safe_open(*arguments, **options)

    def __enter__(self) -> _Opened:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.__exit__(*error)

    def get_tensor(self, name: str) -> torch.Tensor:
        return misaligned(self._file.get_tensor(name), 3 * SHIFT)

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._file.get_slice(name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _rounded(product: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
    """Other last bits in every second element, if an operand is not aligned."""
    offsets = [operand.data_ptr() % ALIGNMENT // operand.element_size() for operand in operands]
    if any(offsets) and product.is_floating_point():
        product.view(-1)[sum(offsets) % 2 :: 2] *= 1 + 2 * torch.finfo(product.dtype).eps
    return product


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _rounded(torch.ops.aten.mm.out(a, b, out=a.new_empty(a.shape[0], b.shape[1])), a, b)


def _bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _rounded(torch.ops.aten.bmm.out(a, b, out=a.new_empty(len(a), a.shape[1], b.shape[2])), a, b)


def _addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    out = a.new_empty(a.shape[0], b.shape[1])
    return _rounded(torch.ops.aten.addmm.out(bias, a, b, beta=beta, alpha=alpha, out=out), a, b)


def install() -> None:
    """Make this process's processor such a one."""
    for module in (safetensors, safetensors.torch):
        module.safe_open = _Opened  # type: ignore[attr-defined]
    kernels = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there was a kernel before
        for name, kernel in (("mm", _mm), ("bmm", _bmm), ("addmm", _addmm)):
            kernels.impl(name, kernel, "CPU")
    _KERNELS.append(kernels)  # it takes its kernels with it when it goes
