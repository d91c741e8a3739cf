"""From an op to its modules: the one place where ops and modules meet."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tintformer.auxiliary.ops import Activation, Attend, Linear, Norm, Product
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import trained_weights
from tintformer.simulator.layouts import Layout, Module
from tintformer.simulator.modules.linear import LinearBackward, LinearDescent, LinearForward
from tintformer.simulator.modules.movement import Movement, num_held
from tintformer.simulator.modules.norm import NormBackward, NormDescent, NormForward
from tintformer.simulator.modules.pointwise import (
    ActivationBackward,
    ActivationForward,
    ProductBackward,
    ProductForward,
)
from tintformer.simulator.modules.self_attention import AttentionBackward, AttentionForward, Transposition
from tintformer.simulator.primitives.attention import Weigh
from tintformer.simulator.regions import PHASES, Phase
from tintformer.simulator.wiring import ModuleOp, WiredOp


class OpModules(nn.Module):
    """The modules of an op: forward, and backward and descent where the rule trains it."""

    def __init__(self, forward_module: Module):
        super().__init__()
        self.forward_module = forward_module
        self.backward_module: Module | None = None
        self.descent_module: Module | None = None

    def by_phase(self) -> dict[Phase, Module]:
        """The modules that there are."""
        modules = zip(PHASES, (self.forward_module, self.backward_module, self.descent_module), strict=True)
        return {phase: module for phase, module in modules if module is not None}


@dataclass(frozen=True, kw_only=True)
class ModuleFactory:
    """Makes the modules of one op after the other."""

    layout: Layout
    rule: LearningRule
    weigh: Weigh
    transposition: Transposition | None
    dtype: torch.dtype
    first_trained: int
    """Number of the first block that learns."""

    @property
    def tiny(self) -> float:
        """The smallest normal number of the dtype: the length of a zero vector."""
        return torch.finfo(self.dtype).tiny

    def make(self, wired: WiredOp, shared: OpModules | None) -> OpModules:
        """The modules of an op; what ops of the same role have made already is shared, what it lacks is added."""
        trained = wired.role.startswith("final") if wired.block is None else wired.block >= self.first_trained
        modules = OpModules(self._forward(wired).to(self.dtype)) if shared is None else shared
        if trained and modules.backward_module is None and receives_gradient(wired.op, self.rule):
            modules.backward_module = self._backward(wired).to(self.dtype)
        if trained and modules.descent_module is None and (descent := self._descent(wired)) is not None:
            modules.descent_module = descent
        if trained and isinstance(descent := modules.descent_module, LinearDescent | NormDescent):
            descent.movement.add(wired.op.name)
            descent.to(self.dtype)
        return modules

    def _forward(self, wired: WiredOp) -> Module:
        match wired.op:
            case Linear() as op:
                return LinearForward(self.layout, has_bias=op.bias is not None, weigh=self.weigh)
            case Norm() as op:
                return NormForward(op, wired.into, self.layout, self.weigh)
            case Activation() as op:
                return ActivationForward(op, self.layout)
            case Product():
                return ProductForward(self.layout)
            case Attend() as op:
                return AttentionForward(op, (wired.into, wired.keys), self.layout)

    def _backward(self, wired: WiredOp) -> Module:
        match wired.op:
            case Linear():
                return LinearBackward(self.layout, weigh=self.weigh)
            case Norm() as op:
                return NormBackward(op, wired.into, self.layout, self.rule, self.weigh, self.tiny)
            case Activation() as op:
                return ActivationBackward(op, wired.into, self.layout, self.rule, self.tiny)
            case Product():
                return ProductBackward(self.layout)
            case Attend() as op:
                cuts = wired.into, wired.keys
                return AttentionBackward(op, cuts, self.layout, self.rule, self.weigh, self.tiny, self.transposition)

    def _descent(self, wired: WiredOp) -> Module | None:
        op, movement = wired.op, Movement(self.rule)
        free = trained_weights(self.rule, op)
        if not free:
            return None
        if isinstance(op, Linear):
            return LinearDescent(self.layout, has_bias=op.bias is not None, movement=movement, weigh=self.weigh)
        assert isinstance(op, Norm), f"{op.name} has no parameters"
        return NormDescent(op, wired.into, self.layout, movement, self.weigh, moves_scale=op.scale in free)


def receives_gradient(op: ModuleOp, rule: LearningRule) -> bool:
    """Whether a gradient ever arrives: not at queries and keys where the scores are constants."""
    behind_scores = isinstance(op, Linear | Norm) and op.group == "query_key"
    return not (behind_scores and rule.attention_gradient == "value")


def signature(wired: WiredOp, rule: LearningRule) -> tuple[Any, ...]:
    """What the modules of an op depend on besides its role: ops of one role and signature share them."""
    op = wired.op
    cuts = (wired.into, wired.out, wired.keys)
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

    modules: dict[str, OpModules]
    keys: dict[str, str]


def make_structure(factory: ModuleFactory, ops: Iterable[WiredOp], *, tie_blocks: bool) -> Structure:
    """Modules for every op; tied, those of one block serve all."""
    structure = Structure(modules={}, keys={})
    names: dict[tuple[Any, ...], str] = {}
    for wired in ops:
        role = re.sub(r"^blocks\.\d+", "block", wired.role) if tie_blocks else wired.role
        identity = role, signature(wired, factory.rule)
        if identity not in names:
            number = 1 + sum(other == role for other, _ in names)
            names[identity] = module_name(role if number == 1 else f"{role}.{number}")
        name = structure.keys[wired.op.name] = names[identity]
        structure.modules[name] = factory.make(wired, structure.modules.get(name))
    return structure


def num_slots(factory: ModuleFactory, ops: Iterable[WiredOp]) -> int:
    """The slots that prefix tokens and the widest module need: each kind is built once, in a lean one without end."""
    endless = replace(factory.layout.geometry, layout="lean", shards=factory.layout.geometry.stack, slots=2**20)
    # Stored scores stand beside the embedding and take no slot of it, but their table grows with its width.
    trial = replace(factory, layout=Layout(endless), transposition="scores")
    # Roles decide which modules are shared, not which regions they declare: one op of every signature is enough.
    made: dict[tuple[Any, ...], OpModules] = {}
    for wired in ops:
        kind = signature(wired, factory.rule)
        made[kind] = trial.make(wired, made.get(kind))
    text = max(module.regions.needed for each in made.values() for module in each.by_phase().values())
    return max(text, endless.stack * num_held(factory.rule))


def module_name(name: str) -> str:
    """Names of modules and parameters must not hold dots."""
    return name.replace(".", "/")
