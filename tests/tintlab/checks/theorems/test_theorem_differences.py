# pyright: basic
"""First-order norms and activations: the bounds hold on every draw, are nearly reached, and have the right order."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tintformer.auxiliary.activations import FUNCTIONS
from tintlab.checks.theorems.differences import (
    CURVATURE,
    alignment,
    first_order_activation,
    first_order_norm,
    largest_curvature,
    norm_derivative,
    remainder,
)

SMOOTH = [name for name in FUNCTIONS if name != "relu"]
STEPS = [1.0, 1e-1, 1e-2, 1e-4]


def draws(seed: int, *, width: int = 9, tokens: int = 400, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Inputs and gradients whose sizes span several orders of magnitude, some inputs near zero, some with outliers."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, dy = (normal(tokens, width) * torch.exp(2 * normal(tokens, 1)) for _ in range(2))
    x[: tokens // 10] *= 1e-3
    x[tokens // 10 : tokens // 5, 0] += 100
    return x.to(dtype), dy.to(dtype), (1 + 0.5 * normal(width)).to(dtype)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_norm_bound_holds(kind: Any, step: float, dtype: torch.dtype) -> None:
    for seed, width, epsilon in itertools.product(range(3), (2, 9, 64), (1e-12, 1e-5, 1e-1)):
        x, dy, scale = draws(seed, width=width, dtype=dtype)
        for each in (scale, None):
            check = first_order_norm(x, dy, each, kind=kind, epsilon=epsilon, step=step)
            assert check.holds and check.ratio <= 1, (seed, width, epsilon, check)
            assert check.printed is not None and check.printed > check.measured


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_bound_is_nearly_reached_and_the_printed_one_far_away(kind: Any) -> None:
    x, dy, scale = draws(0, width=64)
    check = first_order_norm(x, dy, scale, kind=kind, epsilon=1e-5, step=1e-4, where="here")
    assert 0.95 < check.ratio <= 1
    assert check.printed is not None and check.printed > 1000 * check.bound
    assert check.where == "here" and check.dtype == "float64" and "D^(-1/2)" in check.note


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_error_halves_with_the_step(kind: Any) -> None:
    x, dy, scale = draws(1)
    x, dy = x[80:], dy[80:] / dy[80:].norm(dim=-1, keepdim=True)
    errors = [first_order_norm(x, dy, scale, kind=kind, epsilon=1e-5, step=step) for step in (2e-4, 1e-4)]
    assert errors[0].measured / errors[1].measured == pytest.approx(2, rel=0.02)
    assert errors[0].bound / errors[1].bound == pytest.approx(2, rel=0.02)


def test_a_wrong_derivative_breaks_the_norm_bound() -> None:
    """The paper's printed gradient, which drops 1/D, is no limit of the difference."""
    x, dy = (each[80:] for each in draws(2)[:2])
    z = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    printed = (dy - z * (dy * z).sum(-1, keepdim=True)) * z / x
    right = norm_derivative(x, dy, kind="rms", epsilon=1e-5)
    bound = remainder(x, dy, 1e-6, kind="rms", epsilon=1e-5)
    assert bool(((printed - right).norm(dim=-1) > bound).all())


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_derivative_is_autograds(kind: Any) -> None:
    x, dy, _ = draws(3, tokens=5)
    x.requires_grad_()
    if kind == "layer":
        y = torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-3)
    else:
        y = torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-3)
    (expected,) = torch.autograd.grad(y, x, dy)
    torch.testing.assert_close(norm_derivative(x.detach(), dy, kind=kind, epsilon=1e-3), expected)


def test_curvature_of_a_normalised_line() -> None:
    """The constant: the largest second derivative along any direction, with and without the norm's own epsilon."""
    largest = 0.0
    for r, a in itertools.product(torch.linspace(0, 1, 201).tolist(), repeat=2):
        largest = max(largest, math.sqrt(r * ((3 * a * (1 - r) + 1 - a) ** 2 + 4 * a * (1 - a))))
    assert largest == pytest.approx(CURVATURE, rel=1e-3) and largest <= CURVATURE + 1e-12


@pytest.mark.parametrize("function", SMOOTH)
def test_smooth_activation_bound_holds(function: str) -> None:
    for seed, step, dtype in itertools.product(range(3), STEPS, (torch.float64, torch.float32)):
        x, dy, _ = draws(seed, dtype=dtype)
        check = first_order_activation(x, dy, function=function, step=step)
        assert check.holds, (seed, step, dtype, check)
        assert check.printed_holds
    # Where the curvature is largest, or nearly: of tanh, where its square is a third; of all others at 0.
    x = torch.full((1, 4), math.atanh(3**-0.5) if function == "tanh" else 0.0, dtype=torch.float64)
    check = first_order_activation(x, torch.ones_like(x), function=function, step=1e-3)
    assert 0.98 < check.ratio <= 1


@pytest.mark.parametrize("function", SMOOTH)
def test_smooth_activation_error_halves_with_the_step(function: str) -> None:
    x, dy, _ = draws(4)
    errors = [first_order_activation(x, dy.tanh(), function=function, step=step) for step in (2e-3, 1e-3)]
    assert errors[0].measured / errors[1].measured == pytest.approx(2, rel=0.02)


def test_curvatures_are_those_of_the_formulas() -> None:
    assert largest_curvature("gelu") == pytest.approx(math.sqrt(2 / math.pi), rel=1e-5)
    assert largest_curvature("silu") == pytest.approx(0.5, rel=1e-5)
    assert largest_curvature("quick_gelu") == pytest.approx(1.702 / 2, rel=1e-5)
    assert largest_curvature("gelu_new") == pytest.approx(largest_curvature("gelu"), rel=0.02)
    assert largest_curvature("relu") is None


def test_relu_bound_holds_with_the_alignment_that_is_measured() -> None:
    for seed, step, dtype in itertools.product(range(5), STEPS, (torch.float64, torch.float32)):
        x, dy, _ = draws(seed, dtype=dtype)
        x[:20, 0] = 0
        check = first_order_activation(x, dy, function="relu", step=step)
        assert check.holds and check.printed_holds, (seed, step, dtype, check)


def test_alignment_is_the_share_that_a_step_can_carry_over_the_kink() -> None:
    x = torch.tensor([[1.0, -2.0, 0.5, 0.0]])
    dy = torch.tensor([[-3.0, 3.0, 3.0, 3.0]])
    assert alignment(x, dy, 1.0).tolist() == [1.0] and alignment(x, dy, 0.2).tolist() == [0.5]
    check = first_order_activation(x, dy, function="relu", step=0.2)
    assert "rho = 0.5" in check.note
    assert check.measured == pytest.approx(3.0)  # 0 has no slope, but the step goes up from it
    assert check.bound == pytest.approx(3 * math.sqrt(2), rel=1e-4)
    aligned = first_order_activation(x[:, :3], dy[:, :3], function="relu", step=0.1)
    assert aligned.measured < 1e-5 and aligned.holds and "rho = 0 " in aligned.note


def test_a_larger_step_breaks_what_a_smaller_one_promises() -> None:
    """The bounds are no decoration: the error of ten times the step exceeds them."""
    x, dy, scale = draws(5)
    x, dy = x[80:], dy[80:].tanh()
    small = first_order_activation(x, dy, function="gelu", step=1e-3)
    large = first_order_activation(x, dy, function="gelu", step=1e-2)
    assert large.measured > small.bound
    norms = [first_order_norm(x, dy, scale, kind="layer", epsilon=1e-5, step=step) for step in (1e-3, 1e-2)]
    assert norms[1].measured > norms[0].bound
