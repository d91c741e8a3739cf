"""Autograd functions whose backward is a difference, for the places where the rule asks for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def root_mean_square(x: Tensor) -> Tensor:
    return x.pow(2).mean(dim=-1, keepdim=True).add(torch.finfo(x.dtype).tiny).pow(0.5)


class DifferenceFunction(torch.autograd.Function):
    """function(x), whose Jacobian is symmetric, with J g taken as a difference along the incoming gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor], scheme: str, epsilon: float, relative: bool
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function, ctx.scheme, ctx.epsilon, ctx.relative = function, scheme, epsilon, relative
        return function(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x,), (gradient,) = ctx.saved_tensors, gradients
        eps = torch.full_like(x[..., :1], ctx.epsilon)
        if ctx.relative:
            eps = eps * root_mean_square(x) / root_mean_square(gradient)
        high = ctx.function(x + eps * gradient)
        if ctx.scheme == "first_order":
            return (high - ctx.function(x)) / eps, None, None, None, None
        return (high - ctx.function(x - eps * gradient)) / (2 * eps), None, None, None, None


class PerturbedSoftmax(torch.autograd.Function):
    """Softmax over the last dimension whose backward is a central difference of softmaxes."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, epsilon: float, output_gradient: dict[str, Tensor] | None) -> Tensor:
        ctx.save_for_backward(scores)
        ctx.epsilon, ctx.output_gradient = epsilon, output_gradient
        return torch.softmax(scores, dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (scores,), (gradient,) = ctx.saved_tensors, gradients
        eps = torch.full_like(scores[..., :1], ctx.epsilon)
        if ctx.output_gradient is not None:
            # Scores are [1, heads, tokens, tokens]; the gradient of the attention's output is [1, tokens, width].
            eps = eps / root_mean_square(ctx.output_gradient["value"])[:, None]
        plus, minus = torch.softmax(scores + eps * gradient, -1), torch.softmax(scores - eps * gradient, -1)
        return (plus - minus) / (2 * eps), None, None
