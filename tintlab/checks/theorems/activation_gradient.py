"""First-order activation gradients, smooth ones and ReLU's (paper, appendix "Activation layer")."""

from __future__ import annotations

import math
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.auxiliary.activations import FUNCTIONS
from tintformer.rule.difference import directional
from tintlab.checks.theorems.check import Check, check_tokens, unit_roundoff

ROUNDINGS = 16
"""Roundings that one activation may cost, in units of the last place of its input."""


@cache
def largest_curvature(function: str) -> float | None:
    """The largest |s''|: 0.798 for GELU, 0.5 for SiLU; None for ReLU, which has a kink instead.

    Found on a grid of 1/1000 over [-12, 12]. At a maximum the third derivative is zero, so the grid misses less than
    a millionth of it, and beyond the ends all of these are straight to within 1e-4 of their curvature.
    """
    if function == "relu":
        return None
    x = torch.linspace(-12, 12, 24001, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        (curvature,) = torch.autograd.grad(FUNCTIONS[function].derivative(x).sum(), x)
    return float(curvature.abs().max()) * (1 + 1e-6)


def first_order_activation(
    x: Float[Tensor, "*tokens D"], dy: Float[Tensor, "*tokens D"], *, function: str, step: float, where: str = ""
) -> Check:
    """Theorems "first-order activation" and, for ReLU, "first-order activation, ReLU", token by token.

    Smooth: Taylor's remainder of a coordinate is step s''(.) dy_i^2 / 2, so
    |error| <= step / 2 max|s''| sqrt(sum_i dy_i^4) <= step / 2 max|s''| |dy|^2 (the paper's, with its constant).
    ReLU: a coordinate errs only if the step crosses the kink, |x_i| <= step |dy_i|, and then by at most |dy_i|. With
    rho the share of such coordinates, |error| <= max|dy_i| sqrt(rho D): the paper's, with constant 1. Its proof takes
    the derivative for a sign; it is a step.
    """
    value = FUNCTIONS[function].value
    found = directional(value, x, dy, scheme="first_order", epsilon=step, mode="fixed")
    expected = FUNCTIONS[function].derivative(x) * dy
    curvature = largest_curvature(function)
    rounding = ROUNDINGS * unit_roundoff(x.dtype) / step * (x.norm(dim=-1) + step * dy.norm(dim=-1))
    if curvature is None:
        crossed = alignment(x, dy, step)
        bound = dy.abs().amax(-1) * (crossed * x.shape[-1]).sqrt()
        printed = float(dy.abs().amax()) * math.sqrt(float(crossed.max()) * x.shape[-1])
        name, note = "first-order ReLU", f"alignment rho = {float(crossed.max()):.2g} at the worst token"
    else:
        bound = step / 2 * curvature * dy.square().norm(dim=-1)
        printed = float(step * curvature * dy.norm(dim=-1).square().max())
        name, note = "first-order activation", f"{function}, max |s''| = {curvature:.3f}"
    return check_tokens(
        name,
        where,
        measured=(found - expected).norm(dim=-1),
        bound=bound,
        rounding=rounding,
        size=expected.norm(dim=-1),
        printed=printed,
        note=note,
    )


def alignment(x: Float[Tensor, "*tokens D"], dy: Float[Tensor, "*tokens D"], step: float) -> Float[Tensor, "*tokens"]:
    """rho of the (eps, rho)-alignment: the share of coordinates that a step of eps could carry over the kink."""
    return (x.abs() <= step * dy.abs()).to(x.dtype).mean(-1)
