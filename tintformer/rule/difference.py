"""Derivatives by differences: how the paper passes gradients through norms and activations without their derivative.

For f with a symmetric Jacobian J, J g = (f(x + h g) - f(x)) / h + O(h). `first_order` is that; `central` is
(f(x + h g) - f(x - h g)) / 2h, with an error of O(h^2), so that a larger step and fewer lost digits do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.rule.learning_rule import EpsilonMode, Gradient


def rms(x: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape 1"]:
    """Root mean square of every token; never quite zero, so that a zero vector divided by it stays zero."""
    return (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).tiny).sqrt()


def directional(
    function: Callable[[Tensor], Tensor],
    x: Float[Tensor, "*shape D"],
    direction: Float[Tensor, "*shape D"],
    *,
    scheme: Gradient,
    epsilon: float,
    mode: EpsilonMode,
) -> Float[Tensor, "*shape D"]:
    """The Jacobian of `function` at x applied to `direction`, by a first-order or central difference.

    `relative` takes the step epsilon * rms(x_t) / rms(direction_t): the same share of every token, whatever the size
    of its gradient. It is carried out on the unit direction, so that a token without gradient divides nothing.
    """
    # A fixed step suits no model with outliers: gradients span orders of magnitude from token to token, and float32
    # cancels the digits of the small ones (docs/approximations.md).
    if mode == "relative":
        # The paper's bound for LayerNorm grows with eps |g|^2 / sigma^2, so large gradients want a small eps.
        length, step = rms(direction), epsilon * rms(x)
        direction = direction / length
    else:
        length, step = 1.0, epsilon
    # J and not its transpose: the trick is for f with a symmetric Jacobian, and so neither for linear layers nor for
    # attention (the paper's footnote in "First-order approximations").
    ahead = function(x + step * direction)
    if scheme == "first_order":
        return (ahead - function(x)) / step * length
    # Two evaluations of f, as many as first order takes, but the second-order term cancels.
    return (ahead - function(x - step * direction)) / (2 * step) * length
