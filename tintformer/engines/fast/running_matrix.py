"""The updated matrix of a stream without end: every step is added in place, one matrix a sequence.

R sequences, n trained tokens, I inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tintformer.auxiliary.ops import Weight
from tintformer.engines.fast.updates import Factors, MatrixUpdate, orthogonalised, widened
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import Moments, StepSize


@dataclass
class RunningMatrix(MatrixUpdate):
    """The updated matrix itself, one a sequence, to which every step is added in place: for streams without end."""

    dual: bool = False
    keep: bool = True
    weight: Weight = field(kw_only=True)

    @classmethod
    def of(cls, weight: Weight, update: MatrixUpdate, num_rows: int, *, momentum: bool) -> RunningMatrix:
        """From what has been learnt so far, and with `momentum` from how fast."""
        formed = update.matrix(weight.read()).expand(num_rows, -1, -1).clone()
        moments = update.formed_moments(momentum)
        return cls(weight=weight, formed=formed, moments=moments, own_bias=True)

    def step(self, x: Tensor, g: Tensor, rule: LearningRule, by: StepSize, rms: Tensor | None = None) -> None:
        assert self.formed is not None
        base = self.weight.read()
        if rule.needs_matrices or (rule.momentum and (by.active is not None or isinstance(by.rate, Tensor))):
            self.moments = self.moments or Moments()
            total = torch.bmm(widened(g).mT, widened(x))
            self.formed = base + self.moments.move(self.formed - base, total, rule, by, rms)
            return
        # In place: a copy of every matrix for every sequence is what a stream holds, and it holds one.
        gradient = Factors(x, g, 0.0, 0.0)
        if rule.momentum:
            self._accelerate(gradient, by)
        else:
            gradient = orthogonalised(gradient) if rule.optimizer == "muon" else gradient
            gradient.stepped(replace(by, decay=0.0), own=1.0).add_into(self.formed)
        if by.decay:
            share = torch.tensor(by.decay, dtype=self.formed.dtype, device=self.formed.device)
            # A row that makes no step keeps what it has learnt.
            share = share if by.active is None else share * by.active.to(share.device)
            self.formed.lerp_(widened(base).expand_as(self.formed), share)

    def _accelerate(self, gradient: Factors, by: StepSize) -> None:
        """A step with momentum, all rows at one rate: the velocity is moved where it stands, and then the matrix."""
        assert self.formed is not None and not isinstance(by.rate, Tensor)
        self.moments = self.moments or Moments()
        inputs, gradients = widened(gradient.x), widened(gradient.g).mT
        if self.moments.velocity is None:
            self.moments.velocity = torch.bmm(gradients, inputs)
        else:
            self.moments.velocity.baddbmm_(gradients, inputs, beta=by.momentum)
        if by.nesterov:
            self.formed.baddbmm_(gradients, inputs, alpha=-by.rate)
        along = by.rate * by.momentum if by.nesterov else by.rate
        self.formed.add_(self.moments.velocity, alpha=-along)

    def full(self) -> Float[Tensor, "R O I"]:
        assert self.formed is not None
        return self.formed - self.weight.read()

    def settled(self, weight: Float[Tensor, "O I"]) -> MatrixUpdate:
        return self

    def reordered(self, rows: Tensor) -> MatrixUpdate:
        assert self.formed is not None
        return RunningMatrix(weight=self.weight, formed=self.formed.index_select(0, rows.to(self.formed.device)))

    def forget(self, rows: Bool[Tensor, " R"]) -> None:
        assert self.formed is not None
        self.formed[rows.to(self.formed.device)] = widened(self.weight.read())
        if self.moments is not None:
            self.moments.forget(rows)

    def row(self, row: int) -> Float[Tensor, "O I"]:
        assert self.formed is not None
        return self.formed[row] - self.weight.read()
