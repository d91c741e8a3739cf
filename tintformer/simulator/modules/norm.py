"""LayerNorm and RMSNorm y = g * f(x) + b (paper: sections "Layer normalization" and "Root mean square normalization").

f is a group norm; scale and bias are prefix tokens (`affine`). Backward is exact by gated units, or a difference of f.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tintformer.auxiliary.ops import Norm
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.geometry import Cut, groups_in_pieces
from tintformer.simulator.layouts import Layout
from tintformer.simulator.modules.affine import affine_backward, affine_descent, affine_forward
from tintformer.simulator.modules.differences import Difference
from tintformer.simulator.modules.means import Groups, Mean
from tintformer.simulator.primitives.attention import Weigh
from tintformer.simulator.primitives.gate import Gated
from tintformer.simulator.primitives.linear_maps import Combine, Narrow

Pieces = Float[Tensor, "B N T Dslot"]


class Normalise(nn.Module):
    """f(x), without the constant coordinate."""

    def __init__(self, op: Norm, groups: Groups):
        super().__init__()
        self.norm = groups.norm(op.kind, op.epsilon)

    def forward(self, x: Pieces) -> Pieces:
        return self.norm(x)[0]


class NormForward(nn.Module):
    """g * f(x) + b."""

    def __init__(self, op: Norm, cut: Cut, layout: Layout, weigh: Weigh):
        super().__init__()
        self.normalise = Normalise(op, Groups(cut, op.num_groups, layout.geometry.dim_slot))
        self.affine = affine_forward(op, layout, weigh)

    def forward(self, x: Pieces, prefix: Tensor) -> Pieces:
        z = self.normalise(x)
        return z if self.affine is None else self.affine(z, prefix)


class ExactGradient(nn.Module):
    """dx = (dz - mean(dz) - z mean(dz z)) / sigma: three products and two means; RMSNorm has no mean(dz)."""

    def __init__(self, op: Norm, groups: Groups):
        super().__init__()
        self.norm = groups.norm(op.kind, op.epsilon)
        self.mean = Mean(groups)
        self.invert = Narrow(groups.membership().mT / self.norm.coordinate)
        self.product = Gated()
        self.centred = op.kind == "layer"
        terms = [1.0, -1.0, -1.0] if self.centred else [1.0, -1.0]
        self.subtract = Combine(torch.tensor([terms], dtype=torch.float64))

    def forward(self, x: Pieces, dz: Pieces) -> Pieces:
        z, handed = self.norm(x)
        along = self.product(z, self.mean(self.product(dz, z)))
        terms = (dz, along, self.mean(dz)) if self.centred else (dz, along)
        return self.product(self.subtract(*terms)[0], self.invert(handed))


class NormBackward(nn.Module):
    """dx, by gated units or by a difference of f along g * dy."""

    def __init__(self, op: Norm, cut: Cut, layout: Layout, rule: LearningRule, weigh: Weigh, tiny: float):
        super().__init__()
        groups = Groups(cut, op.num_groups, layout.geometry.dim_slot)
        self.affine = affine_backward(op, layout, weigh)
        if rule.norm_gradient == "exact":
            self.gradient: nn.Module = ExactGradient(op, groups)
        else:
            self.gradient = Difference(Normalise(op, groups), groups, scheme=rule.norm_gradient, rule=rule, tiny=tiny)

    def forward(self, dy: Pieces, x: Pieces, prefix: Tensor) -> Pieces:
        return self.gradient(x, dy if self.affine is None else self.affine(dy, prefix))


class NormDescent(nn.Module):
    """b - eta sum_t dy_t and, if the rule asks for it, g - eta sum_t dy_t z_t."""

    def __init__(self, op: Norm, cut: Cut, layout: Layout, rule: LearningRule, weigh: Weigh, *, moves_scale: bool):
        super().__init__()
        groups = Groups(cut, op.num_groups, layout.geometry.dim_slot)
        self.moves_bias = op.bias is not None
        self.normalise = Normalise(op, groups) if moves_scale else None
        self.product = Gated() if moves_scale else None
        self.pool = Pool(cut, groups) if op.num_groups > 1 else None
        self.affine = affine_descent(op, layout, rule.learning_rate, weigh, moves_scale=moves_scale)

    def forward(self, dy: Pieces, x: Pieces, prefix: Tensor) -> Tensor:
        gradients = {"bias": dy} if self.moves_bias else {}
        if self.normalise is not None and self.product is not None:
            gradients["scale"] = self.product(dy, self.normalise(x))
        if self.pool is not None:
            gradients = {name: self.pool(gradient) for name, gradient in gradients.items()}
        return self.affine(gradients, prefix)


class Pool(nn.Module):
    """Groups that share one scale send it the sum of their gradients, and all their copies of it move alike."""

    def __init__(self, cut: Cut, groups: Groups):
        super().__init__()
        one = torch.eye(groups.size, dtype=torch.float64)
        copies = torch.zeros(cut.count, groups.size, groups.dim_slot, dtype=torch.float64)
        for piece, num_groups in zip(copies, groups_in_pieces(cut, groups.size), strict=True):
            piece[:, : num_groups * groups.size] = one.repeat(1, num_groups)
        self.gather, self.copy = Narrow(copies), Narrow(copies.mT.clone())

    def forward(self, x: Pieces) -> Pieces:
        return self.copy(self.gather(x).sum(1, keepdim=True))
