"""Norms and activations by torch's fused kernels, for exact gradients; differences use the formulas of `rule`.

B batch, T tokens (times heads for a query/key norm), D width. Half precisions are normalised in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from tintformer.auxiliary.ops import Norm
from tintformer.rule import activation


class Normed(NamedTuple):
    """The input of a norm, and what its backward pass needs of the forward pass."""

    x: Tensor
    mean: Tensor | None
    """LayerNorm only."""
    inverse: Tensor
    """1 / sigma."""


def norm_forward(
    op: Norm, x: Float[Tensor, "B T D"], scale: Tensor | None, bias: Tensor | None
) -> tuple[Float[Tensor, "B T D"], Normed]:
    """y = scale * f(x) + bias; scale and bias are `[D]`."""
    # As the families' own code does: the square of 256 overflows float16, and activations have larger outliers.
    wide, dtype = _widen(x), x.dtype
    scale, bias = (None if vector is None else vector.to(wide.dtype) for vector in (scale, bias))
    if op.kind == "layer":
        y, mean, inverse = torch.native_layer_norm(wide, [x.shape[-1]], scale, bias, op.epsilon)
        return y.to(dtype), Normed(wide, mean, inverse)
    # A length, squared again: reduced in one reading of x, where the mean of x^2 would first write all squares.
    squares = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1])
    inverse = squares.add_(op.epsilon).rsqrt_()
    y = wide * inverse
    if scale is not None:
        y.mul_(scale)
    if bias is not None:
        y.add_(bias)
    return y.to(dtype), Normed(wide, None, inverse)


def norm_backward(saved: Normed, dy: Float[Tensor, "B T D"], scale: Tensor | None) -> Float[Tensor, "B T D"]:
    """The exact gradient of the norm's input; `scale` is `[D]`."""
    x, mean, inverse = saved
    wide = dy.to(x.dtype)
    scale = None if scale is None else scale.to(x.dtype)
    if mean is not None:
        # dx alone: the gradients of scale and bias would be summed over
        # the batch, and every sequence learns by itself.
        shape, mask = [x.shape[-1]], [True, False, False]
        dx = torch.ops.aten.native_layer_norm_backward(wide, x, shape, mean, inverse, scale, None, mask)[0]
        return dx.to(dy.dtype)
    dz = wide if scale is None else wide * scale
    # `rule.norm` has (dz - z mean(dz z)) / sigma. z = x / sigma was not
    # kept: dz - x (dz . x) / (D sigma^2) is the same.
    share = torch.linalg.vecdot(dz, x).unsqueeze(-1).mul_(inverse.square() / x.shape[-1])
    return torch.addcmul(dz, x, share, value=-1).mul_(inverse).to(dy.dtype)


def _widen(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@dataclass(frozen=True)
class Fused:
    """An activation by torch's own kernels."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    """(dy, x) -> dx."""
    only_rounded: bool = False
    """Differs from the family's own formula by less than float32 can tell, so it serves up to float32 only."""


def _gelu(approximate: str, *, only_rounded: bool = False) -> Fused:
    def forward(x: Tensor) -> Tensor:
        return functional.gelu(x, approximate=approximate)

    def backward(dy: Tensor, x: Tensor) -> Tensor:
        return torch.ops.aten.gelu_backward(dy, x, approximate=approximate)

    return Fused(forward, backward, only_rounded)


# silu has two names in transformers' configurations.
_SILU = Fused(functional.silu, torch.ops.aten.silu_backward)

FUSED: dict[str, Fused] = {
    # 0 at 0, as autograd has it and `auxiliary.activations`.
    "relu": Fused(torch.relu, lambda dy, x: torch.ops.aten.threshold_backward(dy, x, 0.0)),
    "gelu": _gelu("none"),
    "gelu_new": _gelu("tanh"),
    "gelu_pytorch_tanh": _gelu("tanh"),
    "gelu_fast": _gelu("tanh", only_rounded=True),
    "gelu_bloom": _gelu("tanh", only_rounded=True),
    "silu": _SILU,
    "swish": _SILU,
}


def _fused(function: str, dtype: torch.dtype) -> Any:
    found = FUSED.get(function)
    # Engines agree to round-off in float64, which sees the digits that a family leaves off a constant.
    return None if found is None or (found.only_rounded and dtype == torch.float64) else found


def activation_forward(function: str, x: Tensor) -> Tensor:
    fused = _fused(function, x.dtype)
    return activation.forward(x, function=function) if fused is None else fused.forward(x)


def activation_backward(function: str, x: Tensor, dy: Tensor) -> Tensor:
    """The exact gradient of the activation's input."""
    fused = _fused(function, x.dtype)
    return activation.backward(x, dy, function=function) if fused is None else fused.backward(dy, x)
