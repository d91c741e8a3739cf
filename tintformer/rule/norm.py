"""LayerNorm and RMSNorm, y = g * f(x) + b: forward, backward and descent (paper, section "Layer normalization").

B batch, T tokens (times heads for a query/key norm), D width. Scale and bias are `[D]`, or `[B, D]` for one set a
sequence.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.rule.difference import directional
from tintformer.rule.learning_rule import EpsilonMode, Gradient

NormKind = Literal["layer", "rms"]


def cut(x: Float[Tensor, "B T D"], num_groups: int) -> Float[Tensor, "B T_times_groups d"]:
    """The parts that a norm treats apart, side by side as if they were tokens."""
    return x.reshape(x.shape[0], -1, x.shape[-1] // num_groups)


def normalise(x: Float[Tensor, "*shape D"], *, kind: NormKind, epsilon: float) -> Float[Tensor, "*shape D"]:
    """f(x): zero mean (LayerNorm only) and unit mean square, up to the norm's own epsilon."""
    return _normalise(x, kind, epsilon)[0]


def _normalise(x: Tensor, kind: NormKind, epsilon: float) -> tuple[Tensor, Tensor]:
    """f(x) and the factor 1 / sigma that it multiplied by."""
    # RMSNorm divides by the root of the MEAN square plus epsilon, as the families' own code does.
    # The definition in the paper has neither 1/D nor epsilon; its outputs would be sqrt(D) times too small.
    if kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    # Squares of what is centred already: E[x^2] - E[x]^2 would subtract two large numbers where the mean is large.
    inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    return x * inverse, inverse


def forward(
    x: Float[Tensor, "B T D"],
    scale: Float[Tensor, "... D"] | None,
    bias: Float[Tensor, "... D"] | None,
    *,
    kind: NormKind,
    epsilon: float,
) -> Float[Tensor, "B T D"]:
    y = normalise(x, kind=kind, epsilon=epsilon)
    if scale is not None:
        y = y * scale.unsqueeze(-2)
    return y if bias is None else y + bias.unsqueeze(-2)


def backward(
    x: Float[Tensor, "B T D"],
    dy: Float[Tensor, "B T D"],
    scale: Float[Tensor, "... D"] | None,
    *,
    kind: NormKind,
    epsilon: float,
    scheme: Gradient = "exact",
    step: float = 0.0,
    mode: EpsilonMode = "fixed",
) -> Float[Tensor, "B T D"]:
    """dx, by the derivative of f or by a difference of f (whose Jacobian is symmetric) along g * dy."""
    dz = dy if scale is None else dy * scale.unsqueeze(-2)
    # The scale multiplies the gradient before the difference is taken: only f itself has a symmetric Jacobian.
    if scheme != "exact":
        function = partial(normalise, kind=kind, epsilon=epsilon)
        return directional(function, x, dz, scheme=scheme, epsilon=step, mode=mode)
    # (dz - mean(dz) - z mean(dz z)) / sigma: the paper drops a factor 1/D, and a sign in its main text.
    # It holds with epsilon too: sigma is what f divides by, and mean(z^2) need not be 1 for it.
    z, inverse = _normalise(x, kind, epsilon)
    dx = dz - z * (dz * z).mean(-1, keepdim=True)
    if kind == "layer":
        # From the centring, which RMSNorm does not have.
        dx = dx - dz.mean(-1, keepdim=True)
    return dx * inverse


def scale_gradient(
    x: Float[Tensor, "B T D"], dy: Float[Tensor, "B T D"], *, kind: NormKind, epsilon: float
) -> Float[Tensor, "B D"]:
    # The paper leaves scales alone, since the product dy z would cost its construction an MLP.
    return (dy * normalise(x, kind=kind, epsilon=epsilon)).sum(-2)


def bias_gradient(dy: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
    return dy.sum(-2)
