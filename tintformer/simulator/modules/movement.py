"""How the gradient that descent has sent to prefix tokens moves the weights that they hold.

Where every step has one rate, minus the rate is part of the attention's map and the residual does the rest. Otherwise
the attention sends the gradient g itself, and one linear map within each prefix token follows, whose factors are
constants of the layer and the step. Momentum has S more slots for the velocity v, decay S more for the base W0:

    weights    W <- (1 - decay) (W - rate v) + decay W0        with nesterov g + momentum v in place of v
    velocity   v <- v + g by the attention, then momentum v    between two steps it stands there multiplied already
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import step_rate
from tintformer.simulator.primitives.tokenwise import Combine, Gate

Prefix = Float[Tensor, "#B N H M K d"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Descending:
    """Prefix tokens before or after a step, where they hold more than weights or rates differ."""

    weights: Prefix
    velocity: Prefix | None
    """What momentum has gathered; None: nothing yet."""
    base: Prefix
    """The weights before any step."""
    moving: Float[Tensor, "B 1 1 1 1 1"] | None
    """1 for sequences that make the step, 0 for those without a target in it; None: all make it."""
    rate: float
    """Of this op in this step."""


class SlotMap(Combine):
    """Multiples of what the slots of a prefix token hold, added to one another."""


class Movement(nn.Module):
    """What descent does with a gradient, for all layers and steps that share a module."""

    def __init__(self, rule: LearningRule):
        super().__init__()
        self.rule = rule
        self.factor = -rule.rate if rule.moves_evenly else 1.0
        """What the attention multiplies the gradient by."""
        self.rates: list[float] = []
        self.steps = nn.ModuleList()
        """How a step moves, rate by rate."""

    def add(self, op: str) -> None:
        """Be ready for an op's rates in all steps."""
        if self.rule.moves_evenly:
            return
        for rate in rates_of(self.rule, op):
            if rate not in self.rates:
                self.rates.append(rate)
                self.steps.append(SlotStep(self.rule, rate))

    def forward(self, change: Prefix, prefix: Prefix | Descending) -> Prefix | Descending:
        if isinstance(prefix, Tensor):
            # Into the memory of the change: a sequence's own weights are as large as the auxiliary, and made once.
            return torch.add(prefix, change, out=change)
        return self.steps[self.rates.index(prefix.rate)](change, prefix)


class SlotStep(nn.Module):
    """A step of one rate: from the gradient, and from what the slots of a prefix token hold."""

    def __init__(self, rule: LearningRule, rate: float):
        super().__init__()
        momentum, decay = rule.momentum, rule.decay
        self.momentum, self.decay = momentum > 0, decay > 0
        self.into_weights = SlotMap([[-rate]]) if rule.nesterov or not momentum else None
        self.settle = None
        if not (momentum or decay):
            return
        along = rate * (momentum if rule.nesterov else 1.0)
        # What is added to weights and velocity, as multiples of weights, velocity and base, as far as they are there.
        # The weights first and the base last, so that weights which have not moved are not moved by rounding either.
        to_weights, to_velocity = [-decay], [0.0]
        if momentum:
            to_weights, to_velocity = [*to_weights, -(1 - decay) * along], [*to_velocity, momentum - 1]
        if decay:
            to_weights, to_velocity = [*to_weights, decay], [*to_velocity, 0.0]
        self.settle = SlotMap([to_weights, to_velocity] if momentum else [to_weights])
        self.gate = Gate()

    def forward(self, change: Prefix, prefix: Descending) -> Descending:
        weights, velocity = prefix.weights, prefix.velocity
        if self.into_weights is not None:
            weights = torch.add(weights, self.into_weights(change)[0])
        if self.momentum:
            velocity = change if velocity is None else torch.add(velocity, change)
        if self.settle is None:
            return replace(prefix, weights=weights)
        held = [weights, *([velocity] if self.momentum else []), *([prefix.base] if self.decay else [])]
        moves = self.settle(*(each.expand_as(change) for each in held if each is not None))
        if prefix.moving is not None:
            moves = [self.gate(move, prefix.moving) for move in moves]
        weights = torch.add(weights, moves[0])
        if self.momentum:
            assert velocity is not None
            velocity = torch.add(velocity, moves[1])
        return replace(prefix, weights=weights, velocity=velocity)


def rates_of(rule: LearningRule, op: str) -> Iterable[float]:
    """The rates of an op in all steps, each once."""
    # Behind its end, a schedule goes on as it ends.
    last = min(rule.steps, max(1, len(rule.schedule)))
    return dict.fromkeys(step_rate(rule, op, step) for step in range(1, last + 1))


def num_held(rule: LearningRule) -> int:
    """What prefix tokens hold of every row: the weights, and velocity and base where the rule needs them."""
    return 1 + (rule.momentum > 0) + (rule.decay > 0)
