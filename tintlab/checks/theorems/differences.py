"""First-order differences of activations and norms, and what the theorems say of their errors.

The paper's appendices "Activation layer" (smooth ones and ReLU's) and "Layer normalization".
T tokens, D width. With u = x minus its mean (LayerNorm; u = x for RMSNorm), d = g * dy projected in the same way, and
s(h)^2 = |u + h d|^2 / D + e for the norm's own e, the normalised vector on the way is z(h) = (u + h d) / s(h).
"""

from __future__ import annotations

import math
from functools import cache, partial

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.auxiliary.activations import FUNCTIONS
from tintformer.rule import norm
from tintformer.rule.difference import directional
from tintformer.rule.norm import NormKind
from tintlab.checks.theorems.check import Check, check_tokens, unit_roundoff

ACTIVATION_ROUNDINGS = 16
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
    rounding = ACTIVATION_ROUNDINGS * unit_roundoff(x.dtype) / step * (x.norm(dim=-1) + step * dy.norm(dim=-1))
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


CURVATURE = 2 / math.sqrt(3)
"""The largest |z''| s^2 sqrt(D) / |d|^2; see `remainder`."""
NORM_ROUNDINGS = 32
"""Roundings that one normalisation may cost, in units of the last place of its largest intermediate."""


def remainder(
    x: Float[Tensor, "*tokens D"], dz: Float[Tensor, "*tokens D"], step: float, *, kind: NormKind, epsilon: float
) -> Float[Tensor, "*tokens"]:
    """A bound on |(f(x + step dz) - f(x)) / step - J dz| in exact arithmetic, for each token.

    Differentiating twice along the segment, z'' = (-2 m d + 3 m^2 z - z |d|^2 / D) / s^2 with m = <z, d> / D. Split d
    into its parts along z and across, and with |z|^2 = r D, r <= 1, the squared norm is
    |z''|^2 = r ((3 a (1 - r) + b)^2 + 4 a b) |d|^4 / (D s^4), where a + b = 1 are the shares of |d|^2. The bracket is
    a parabola in a with its top, 4 / (3 r), at a = 1 / (3 r): at most 4/3 stand before the last factor, whatever r is.
    So |z''| <= (2 / sqrt 3) |d|^2 / (sqrt(D) s^2), and Taylor's remainder is half the step times the largest on the
    segment: step |d|^2 / (sqrt(3 D) min s^2). No condition on the step is needed. The printed order,
    D^(3/2) |d|^2 / s^2, is D^2 too large.
    """
    u, d = (_centred(each, kind) for each in (x, dz))
    width = x.shape[-1]
    lengths = d.square().sum(-1)
    nearest = (-(u * d).sum(-1) / lengths.clamp(min=torch.finfo(d.dtype).tiny)).clamp(0.0, step)
    variance = (u + nearest[..., None] * d).square().mean(-1) + epsilon
    return step / 2 * CURVATURE * lengths / (math.sqrt(width) * variance)


def first_order_norm(
    x: Float[Tensor, "*tokens D"],
    dy: Float[Tensor, "*tokens D"],
    scale: Float[Tensor, " D"] | None,
    *,
    kind: NormKind,
    epsilon: float,
    step: float,
    where: str = "",
) -> Check:
    """Theorem "first-order LayerNorm": the difference along g * dy against the derivative, token by token.

    The bound is `remainder`, plus what the arithmetic of the given tensors may lose in the subtraction.
    """
    dz = dy if scale is None else dy * scale
    function = partial(norm.normalise, kind=kind, epsilon=epsilon)
    found = directional(function, x, dz, scheme="first_order", epsilon=step, mode="fixed")
    expected = norm_derivative(x, dz, kind=kind, epsilon=epsilon)
    deviation, moved_deviation = (
        (_centred(each, kind).square().mean(-1) + epsilon).sqrt() for each in (x, x + step * dz)
    )
    lengths = x.norm(dim=-1) + (x + step * dz).norm(dim=-1)
    rounding = math.sqrt(x.shape[-1]) + lengths / torch.minimum(deviation, moved_deviation)
    gamma = math.sqrt(x.shape[-1]) if scale is None else float(scale.norm())
    printed = step * x.shape[-1] ** 1.5 * (gamma * dy.norm(dim=-1) / deviation).square()
    return check_tokens(
        f"first-order {'LayerNorm' if kind == 'layer' else 'RMSNorm'}",
        where,
        measured=(found - expected).norm(dim=-1),
        bound=remainder(x, dz, step, kind=kind, epsilon=epsilon),
        rounding=NORM_ROUNDINGS * unit_roundoff(x.dtype) / step * rounding,
        size=expected.norm(dim=-1),
        printed=float(printed.max()),
        note="the printed bound has a factor D^2 to spare: D^(-1/2) in place of D^(3/2) is enough",
    )


def norm_derivative(
    x: Float[Tensor, "*tokens D"], dz: Float[Tensor, "*tokens D"], *, kind: NormKind, epsilon: float
) -> Float[Tensor, "*tokens D"]:
    """J dz, the derivative itself."""
    rows = x.reshape(1, -1, x.shape[-1])
    return norm.backward(rows, dz.reshape(rows.shape), None, kind=kind, epsilon=epsilon).view_as(x)


def _centred(x: Tensor, kind: NormKind) -> Tensor:
    return x - x.mean(-1, keepdim=True) if kind == "layer" else x
