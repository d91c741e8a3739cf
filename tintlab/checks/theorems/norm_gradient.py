"""First-order LayerNorm and RMSNorm gradients (paper, appendix "Layer normalization").

T tokens, D width. With u = x minus its mean (LayerNorm; u = x for RMSNorm), d = g * dy projected in the same way, and
s(h)^2 = |u + h d|^2 / D + e for the norm's own e, the normalised vector on the way is z(h) = (u + h d) / s(h).
"""

from __future__ import annotations

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.rule import norm
from tintformer.rule.difference import directional
from tintformer.rule.norm import NormKind
from tintlab.checks.theorems.check import Check, check_tokens, unit_roundoff

CURVATURE = 2 / math.sqrt(3)
"""The largest |z''| s^2 sqrt(D) / |d|^2; see `remainder`."""
ROUNDINGS = 32
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
        rounding=ROUNDINGS * unit_roundoff(x.dtype) / step * rounding,
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
