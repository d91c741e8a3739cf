"""What an update consists of: what one parameter has learnt, its size and its spectrum.

n trained tokens of all steps, I inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.auxiliary.ops import Weight
from tintformer.engines.fast.updates import MatrixUpdate


@dataclass(frozen=True, eq=False, kw_only=True)
class UpdateView:
    """The update of one parameter; numbers are computed when asked for, from factors where these are smaller."""

    name: str
    """The op and its parameter, `blocks.3.value.weight`: parts of a fused parameter are updates of their own."""
    weight: Weight = field(repr=False)
    update: MatrixUpdate | Float[Tensor, " O"] = field(repr=False)

    @property
    def parameter(self) -> str:
        """The Hugging Face parameter that the update belongs to."""
        return self.weight.name

    @property
    def delta(self) -> Float[Tensor, ...]:
        """The update itself, formed; a matrix is oriented `[out, in]`."""
        return self.update.row(0) if isinstance(self.update, MatrixUpdate) else self.update

    @cached_property
    def singular_values(self) -> Float[Tensor, " k"]:
        """In falling order; a vector has one, its length."""
        return torch.linalg.svdvals(self._core)

    @property
    def norm(self) -> float:
        """The Frobenius norm."""
        return float(self._core.norm())

    @property
    def relative_norm(self) -> float:
        """The norm, relative to that of the parameter (of its part, where it is fused) before learning."""
        return self.norm / float(self.weight.read().to(self._core.dtype).norm())

    @property
    def rank(self) -> int:
        """Singular values above what rounding leaves of a zero; never more than there were tokens to learn from."""
        largest, width = float(self.singular_values[0]), max(self.weight.read().shape)
        return int((self.singular_values > largest * width * torch.finfo(self._core.dtype).eps).sum())

    @property
    def stable_rank(self) -> float:
        """The squared norm in units of the largest squared singular value: how many directions matter."""
        shares = self.singular_values / self.singular_values[0]
        return float(shares.square().sum().nan_to_num())

    @cached_property
    def _core(self) -> Float[Tensor, "a b"]:
        """A matrix with the update's singular values, and no larger than it must be.

        With G^T = Q R and X^T = P S (orthonormal columns, triangles), G^T X = Q (R S^T) P^T: R S^T will do, and its
        sides are at most n.
        """
        update = self.update
        if isinstance(update, Tensor):
            return update[:, None]
        tokens = sum(part.x.shape[1] for part in update.factors)
        if update.dense is not None or tokens >= min(self.weight.read().shape):
            return _computable(update.row(0))
        gradients = torch.cat([_computable(part.g[0]) * -part.rate for part in update.factors])
        inputs = torch.cat([_computable(part.x[0]) for part in update.factors])
        _, of_gradients = torch.linalg.qr(gradients.mT, mode="r")
        _, of_inputs = torch.linalg.qr(inputs.mT, mode="r")
        return of_gradients @ of_inputs.mT


def _computable(x: Tensor) -> Tensor:
    """Half precisions have no decompositions."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
