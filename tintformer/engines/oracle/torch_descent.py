"""Descent by torch.optim on autograd's gradients, where torch has the same optimiser; else by its definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary, ops
from tintformer.auxiliary.ops import Linear, Norm, Weight
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import EPSILON, NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS, SMALLEST_NORM


class TorchDescent:
    """The parameters of one sequence under an optimiser.

    A fused parameter is cut into those of the described ops, which have rates, and for muon matrices, of their own.
    """

    def __init__(
        self,
        auxiliary: Auxiliary,
        rule: LearningRule,
        rate: float,
        parameters: Mapping[str, Tensor],
        statistics: Mapping[str, Tensor] | None,
    ):
        self.rule, self.rate, self.statistics = rule, rate, statistics
        self.values = {name: value.detach().clone() for name, value in parameters.items()}
        self.ops = {
            weight: op.name
            for op in chain(*(ops(steps) for steps in (*auxiliary.blocks, auxiliary.final)))
            if isinstance(op, Linear | Norm)
            for weight in ((op.weight, op.bias) if isinstance(op, Linear) else (op.scale, op.bias))
            if weight is not None and weight.name in parameters
        }
        self.base = {weight: _part(weight, parameters[weight.name]).clone() for weight in self.ops}
        self.leaves = {weight: base.clone() for weight, base in self.base.items()}
        groups = [{"params": [leaf], "factor": self._factor(self.ops[weight])} for weight, leaf in self.leaves.items()]
        self.optimizer = self._optimizer(groups)

    def _factor(self, op: str) -> float:
        fitting = [factor for pattern, factor in self.rule.rates if fnmatchcase(op, pattern)]
        return fitting[-1] if fitting else 1.0

    def _optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        if self.rule.optimizer == "adam":
            return torch.optim.AdamW(groups, lr=self.rate, weight_decay=0.0)
        return torch.optim.SGD(groups, lr=self.rate, momentum=self.rule.momentum, nesterov=self.rule.nesterov)

    def step(self, gradients: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
        """Step number `number`; the parameters after it."""
        rule = self.rule
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * rule.schedule_factor(number) * group["factor"]
        before = {weight: leaf.clone() for weight, leaf in self.leaves.items()}
        for weight, leaf in self.leaves.items():
            leaf.grad = _part(weight, gradients[weight.name]).clone()
            if rule.optimizer == "rms":
                assert self.statistics is not None
                leaf.grad /= _part(weight, self.statistics[weight.name]) + EPSILON
        self.optimizer.step()
        for weight, leaf in self.leaves.items():
            with torch.no_grad():
                if rule.optimizer == "muon" and leaf.dim() == 2:
                    # What SGD has moved by, momentum included, orthogonalised: its length is of no consequence.
                    group = next(each for each in self.optimizer.param_groups if each["params"][0] is leaf)
                    outputs, inputs = leaf.shape
                    along = _orthogonalised(before[weight] - leaf) * max(1.0, outputs / inputs) ** 0.5
                    leaf.copy_(before[weight] - group["lr"] * along)
                leaf.copy_(self.base[weight] + (1 - rule.decay) * (leaf - self.base[weight]))
            weight.write(leaf, into=self.values[weight.name])
        return {name: value.clone() for name, value in self.values.items()}


def _part(weight: Weight, tensor: Tensor) -> Tensor:
    return replace(weight, source=tensor, device=None).read()


def _orthogonalised(matrix: Tensor) -> Tensor:
    """Five Newton-Schulz steps, which act on singular values alone."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.norm().clamp(min=SMALLEST_NORM)
    a, b, c = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        values = a * values + b * values**3 + c * values**5
    return (left * values) @ right
