# pyright: basic
"""What turns gradients into steps: Muon for the matrices inside the blocks, AdamW for everything else."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from training.settings import Settings

# The quintic iteration of Jordan et al. (2024): from any singular value in (0, 1] to about 1 in five rounds.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """Steps along the momentum with all its singular values made alike.

    `torch.optim.Muon` does the same in bfloat16, which most CPUs emulate: its step took twice as long as the forward
    and backward pass of these models. This one works in float32, on all matrices of one shape at once.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step; the sizes of its entries are those of AdamW, so that one rate serves both."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                directions = torch.stack([self._direction(parameter, group["momentum"]) for parameter in parameters])
                rate = group["lr"] * 0.2 * max(shape) ** 0.5
                for parameter, direction in zip(parameters, orthogonalize(directions), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=rate)

    def _direction(self, parameter: torch.nn.Parameter, momentum: float) -> torch.Tensor:
        gradient = parameter.grad
        assert gradient is not None, "every matrix of a block takes part in the loss"
        average = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
        average.lerp_(gradient, 1 - momentum)
        return gradient.lerp(average, momentum)


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Matrices with the same singular vectors and singular values of about 1 (0.7 to 1.2; tiny ones stay smaller)."""
    a, b, c = _COEFFICIENTS
    wide = matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.mT
    x = wide / wide.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-12)
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x if wide is matrices else x.mT


def create_optimizers(model: Any, settings: Settings) -> list[torch.optim.Optimizer]:
    """The optimisers of a model; together they hold every parameter once."""
    embeddings = {id(parameter) for module in model.modules() for parameter in _embedding(module)}
    parameters = list(model.parameters())
    matrices = [parameter for parameter in parameters if parameter.ndim > 1 and id(parameter) not in embeddings]
    tables = [parameter for parameter in parameters if parameter.ndim > 1 and id(parameter) in embeddings]
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups = [
        {"params": tables, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return [
        Muon(matrices, lr=settings.learning_rate, weight_decay=settings.weight_decay),
        torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.99), fused=True),
    ]


def _embedding(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    return list(module.parameters()) if isinstance(module, torch.nn.Embedding) else []
