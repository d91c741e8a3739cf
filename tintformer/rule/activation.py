"""Activations y = s(x): forward and backward (paper, section "Activation layer"); nothing descends."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from tintformer.auxiliary.activations import FUNCTIONS
from tintformer.rule.difference import directional
from tintformer.rule.learning_rule import EpsilonMode, Gradient


def forward(x: Float[Tensor, "*shape D"], *, function: str) -> Float[Tensor, "*shape D"]:
    return FUNCTIONS[function].value(x)


def backward(
    x: Float[Tensor, "*shape D"],
    dy: Float[Tensor, "*shape D"],
    *,
    function: str,
    scheme: Gradient = "exact",
    step: float = 0.0,
    mode: EpsilonMode = "fixed",
) -> Float[Tensor, "*shape D"]:
    """dx, by the derivative or by a difference of s along dy (the Jacobian is diagonal, hence symmetric)."""
    # The derivative of ReLU is a step (the paper prints a sign).
    if scheme == "exact":
        return FUNCTIONS[function].derivative(x) * dy
    # Paper, "Approximate Activation backpropagation". Where a kink lies within the step (ReLU) the
    # difference is off by a share of dy itself, which is what the paper's (eps, rho)-alignment bounds. In
    # a gated unit dy arrives multiplied by W x, so the step is eps dy (W x); the paper steps by eps dy
    # and multiplies afterwards, with the same limit.
    return directional(FUNCTIONS[function].value, x, dy, scheme=scheme, epsilon=step, mode=mode)
