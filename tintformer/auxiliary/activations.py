"""Activation functions by name, with their derivatives: which ones an auxiliary may have."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Function:
    """An activation and its derivative."""

    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]


def _gelu_derivative(x: Tensor) -> Tensor:
    density = torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density


# Functions of the module and partials of them, not closures: modules of a simulator hold them, and are pickled.


def _tanh_gelu(slope: float) -> Function:
    """GELU by tanh(slope * (x + 0.044715 x^3)); the families differ in how many digits of sqrt(2 / pi) they write."""
    return Function(partial(_tanh_gelu_value, slope), partial(_tanh_gelu_derivative, slope))


def _tanh_gelu_value(slope: float, x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(slope * (x + 0.044715 * x**3)))


def _tanh_gelu_derivative(slope: float, x: Tensor) -> Tensor:
    tanh = torch.tanh(slope * (x + 0.044715 * x**3))
    inner = slope * (1 + 3 * 0.044715 * x.square())
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh.square()) * inner


def _sigmoid_gated(slope: float) -> Function:
    """x * sigmoid(slope * x): SiLU and quick GELU."""
    return Function(partial(_gated_value, slope), partial(_gated_derivative, slope))


def _gated_value(slope: float, x: Tensor) -> Tensor:
    return x * torch.sigmoid(slope * x)


def _gated_derivative(slope: float, x: Tensor) -> Tensor:
    gate = torch.sigmoid(slope * x)
    return gate * (1 + slope * x * (1 - gate))


def _tanh_derivative(x: Tensor) -> Tensor:
    return 1 - torch.tanh(x).square()


def _relu_derivative(x: Tensor) -> Tensor:
    # A step with 0 at 0, as in autograd; the paper's proof for ReLU writes it as sign, with 1 at 0.
    return (x > 0).to(x.dtype)


# transformers writes the constant in three ways; the difference shows in float64, where engines agree to round-off.
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)

FUNCTIONS: dict[str, Function] = {
    "relu": Function(torch.relu, _relu_derivative),
    "gelu": Function(functional.gelu, _gelu_derivative),
    "gelu_new": _tanh_gelu(_SQRT_2_OVER_PI),
    "gelu_pytorch_tanh": _tanh_gelu(_SQRT_2_OVER_PI),
    "gelu_fast": _tanh_gelu(0.7978845608),
    "gelu_bloom": _tanh_gelu(0.79788456),
    "silu": _sigmoid_gated(1.0),
    "swish": _sigmoid_gated(1.0),
    "quick_gelu": _sigmoid_gated(1.702),
    "tanh": Function(torch.tanh, _tanh_derivative),
}
"""Every supported activation, by Hugging Face's name (and BLOOM's own)."""
