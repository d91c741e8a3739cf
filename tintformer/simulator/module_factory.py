"""From an op to its modules: the one place where ops and modules meet."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tintformer.auxiliary.ops import Activation, Attend, Linear, Norm, Product
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.trainable import trained_weights
from tintformer.simulator.layouts import Layout
from tintformer.simulator.modules.linear import LinearBackward, LinearDescent, LinearForward
from tintformer.simulator.modules.norm import NormBackward, NormDescent, NormForward
from tintformer.simulator.modules.pointwise import (
    ActivationBackward,
    ActivationForward,
    ProductBackward,
    ProductForward,
)
from tintformer.simulator.modules.self_attention import AttentionBackward, AttentionForward, Transposition
from tintformer.simulator.primitives.attention import Weigh
from tintformer.simulator.wiring import Place, Placed


class Modules(nn.Module):
    """The modules of an op: forward, and backward and descent where the rule trains it."""

    def __init__(self, ahead: nn.Module):
        super().__init__()
        self.ahead = ahead
        self.back: nn.Module | None = None
        self.descent: nn.Module | None = None


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Makes the modules of one op after the other."""

    layout: Layout
    rule: LearningRule
    weigh: Weigh
    transposition: Transposition
    dtype: torch.dtype
    first_trained: int
    """Number of the first block that learns."""

    @property
    def tiny(self) -> float:
        """The smallest normal number of the number format: the length of a zero vector."""
        return torch.finfo(self.dtype).tiny

    def make(self, place: Place, shared: Modules | None) -> Modules:
        """The modules of an op; what ops of the same role have made already is shared, what it lacks is added."""
        trained = place.role.startswith("final") if place.block is None else place.block >= self.first_trained
        modules = Modules(self._forward(place)) if shared is None else shared
        if trained and modules.back is None and receives_gradient(place.op, self.rule):
            modules.back = self._backward(place)
        if trained and modules.descent is None:
            modules.descent = self._descent(place)
        return modules.to(self.dtype)

    def _forward(self, place: Place) -> nn.Module:
        match place.op:
            case Linear() as op:
                return LinearForward(self.layout, has_bias=op.bias is not None, weigh=self.weigh)
            case Norm() as op:
                return NormForward(op, place.into, self.layout, self.weigh)
            case Activation() as op:
                return ActivationForward(op)
            case Product():
                return ProductForward()
            case Attend() as op:
                return AttentionForward(op, (place.into, place.keys), self.layout)

    def _backward(self, place: Place) -> nn.Module:
        dim_slot = self.layout.geometry.dim_slot
        match place.op:
            case Linear():
                return LinearBackward(self.layout, weigh=self.weigh)
            case Norm() as op:
                return NormBackward(op, place.into, self.layout, self.rule, self.weigh, self.tiny)
            case Activation() as op:
                return ActivationBackward(op, place.into, dim_slot, self.rule, self.tiny)
            case Product():
                return ProductBackward()
            case Attend() as op:
                cuts = place.into, place.keys
                return AttentionBackward(op, cuts, self.layout, self.rule, self.weigh, self.tiny, self.transposition)

    def _descent(self, place: Place) -> nn.Module | None:
        op, rate = place.op, self.rule.learning_rate
        free = trained_weights(self.rule, op)
        if not free:
            return None
        if isinstance(op, Linear):
            return LinearDescent(self.layout, has_bias=op.bias is not None, learning_rate=rate, weigh=self.weigh)
        assert isinstance(op, Norm), f"{op.name} has no parameters"
        return NormDescent(op, place.into, self.layout, self.rule, self.weigh, moves_scale=op.scale in free)


def receives_gradient(op: Placed, rule: LearningRule) -> bool:
    """Whether a gradient ever arrives: not at queries and keys where the scores are constants."""
    behind_scores = isinstance(op, Linear | Norm) and op.group == "query_key"
    return not (behind_scores and rule.attention_gradient == "value")


def signature(place: Place, rule: LearningRule) -> tuple[Any, ...]:
    """What the modules of an op depend on besides its role: ops of one role and signature share them."""
    op = place.op
    cuts = (place.into, place.out, place.keys)
    match op:
        case Linear():
            # The pieces of any cut share one module.
            return "linear", op.bias is not None
        case Norm():
            held = op.scale is not None, op.bias is not None
            return "norm", op.kind, op.epsilon, op.num_groups, held, cuts, len(trained_weights(rule, op))
        case Activation():
            return "activation", op.function, cuts
        case Product():
            return ("product",)
        case Attend():
            heads = op.num_heads, op.num_key_value_heads, op.head_dim
            return "attend", heads, op.scale, id(op.position), cuts


@dataclass(frozen=True, kw_only=True)
class Structure:
    """All modules by name, and the name of each op's."""

    modules: dict[str, Modules]
    keys: dict[str, str]


def make_structure(maker: Maker, places: Iterable[Place], *, tie_blocks: bool) -> Structure:
    """Modules for every op; tied, those of one block serve all."""
    structure = Structure(modules={}, keys={})
    names: dict[tuple[Any, ...], str] = {}
    for place in places:
        role = re.sub(r"^blocks\.\d+", "block", place.role) if tie_blocks else place.role
        identity = role, signature(place, maker.rule)
        if identity not in names:
            number = 1 + sum(other == role for other, _ in names)
            names[identity] = module_name(role if number == 1 else f"{role}.{number}")
        name = structure.keys[place.op.name] = names[identity]
        structure.modules[name] = maker.make(place, structure.modules.get(name))
    return structure


def module_name(name: str) -> str:
    """Names of modules and parameters must not hold dots."""
    return name.replace(".", "/")
