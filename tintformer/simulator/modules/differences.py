"""How a gradient passes a norm or an activation by a difference of two of its own forward passes.

Paper: definitions "epsilon-approximate Layer Normalization Gradient" and "Approximate Activation backpropagation".
The linear layer in front places x + h g beside x (or x - h g), the function runs on both, the one behind subtracts.
With a relative step the direction is brought to unit length first, and the step follows the length of x.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tintformer.rule.learning_rule import Gradient, LearningRule
from tintformer.simulator.modules.means import Groups, Length
from tintformer.simulator.primitives.gate import Gated
from tintformer.simulator.primitives.linear_maps import Combine


class Difference(nn.Module):
    """The Jacobian of a function at x, applied to a direction."""

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        groups: Groups,
        *,
        scheme: Gradient,
        rule: LearningRule,
        tiny: float,
    ):
        super().__init__()
        self.function = function
        step = rule.difference_step(scheme)
        behind, width = (0.0, 1.0) if scheme == "first_order" else (-step, 2.0)
        self.before = Combine(torch.tensor([[1.0, step], [1.0, behind]], dtype=torch.float64))
        self.after = Combine(torch.tensor([[1.0, -1.0]], dtype=torch.float64), 1 / (width * step))
        self.relative = rule.epsilon_mode == "relative"
        self.of_input, self.of_direction = (Length(groups, tiny) if self.relative else None for _ in range(2))
        self.product = Gated()

    def forward(self, x: Tensor, direction: Tensor) -> Tensor:
        if not self.relative:
            return self._subtract(x, direction)
        assert self.of_input is not None and self.of_direction is not None
        unit, length, _ = self.of_direction(direction)
        _, size, inverse_size = self.of_input(x)
        change = self._subtract(x, self.product(unit, size))
        return self.product(self.product(change, inverse_size), length)

    def _subtract(self, x: Tensor, direction: Tensor) -> Tensor:
        ahead, behind = self.before(x, direction)
        return self.after(self.function(ahead), self.function(behind))[0]
