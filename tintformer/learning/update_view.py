"""What an update consists of, parameter by parameter, and what each part of it brings about.

n trained tokens of all steps, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from tintformer.auxiliary.ops import Weight
from tintformer.engines.fast.updates import MatrixUpdate
from tintformer.errors import InputError

if TYPE_CHECKING:
    from tintformer.learning.tuned import Tuned

By = Literal["block", "op", "parameter"]
"""What counts as one part."""


@dataclass(frozen=True, eq=False, kw_only=True)
class UpdateView:
    """The update of one parameter; numbers are computed when asked for, from factors where these are smaller."""

    name: str
    """The op and its parameter, `blocks.3.value.weight`: parts of a fused parameter are updates of their own."""
    weight: Weight = field(repr=False)
    """The parameter (or part of one) that it belongs to, as the auxiliary describes it."""
    update: MatrixUpdate | Float[Tensor, " O"] = field(repr=False)
    """As it is kept: factors, a matrix or a vector; `delta` forms it."""

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
        # An update of zeros has 0 / 0 here, and no direction.
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
        # From as many tokens as the matrix has rows or columns on, factors are no longer the smaller form.
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


@dataclass(frozen=True, eq=False, kw_only=True)
class PartEffect:
    """What one part of an update adds to the log-probability of every scored token; 0 at the others.

    Where parts neither help nor hinder each other, `alone` and `on_top` are the same.
    """

    alone: Float[Tensor, "batch tokens"]
    """With this part alone, against the model as it was."""
    on_top: Float[Tensor, "batch tokens"]
    """With the whole update, against all of it but this part."""


@dataclass(frozen=True, eq=False, kw_only=True)
class UpdateEffects:
    """The effect of an update, whole and by part."""

    total: Float[Tensor, "batch tokens"]
    """With the whole update, against the model as it was."""
    parts: dict[str, PartEffect]
    """From the first block to the last."""


def effects(tuned: Tuned, losses: Callable[[Tuned], Tensor], by: By) -> UpdateEffects:
    """Score with every part alone and with all but it; `losses` scores some tokens, `[batch, tokens]`."""
    without_any, with_all = losses(tuned.only()), losses(tuned)
    return UpdateEffects(
        total=without_any - with_all,
        parts={
            part: PartEffect(
                alone=without_any - losses(tuned.only(*names)),
                on_top=losses(tuned.without(*names)) - with_all,
            )
            for part, names in _parts(tuned.update_views(), by).items()
        },
    )


def _parts(names: Iterable[str], by: By) -> dict[str, list[str]]:
    """The names of updates, put together by what they belong to."""
    if by not in get_args(By):
        raise InputError(f"by={by!r} is unknown; choose one of {', '.join(get_args(By))}")
    parts: dict[str, list[str]] = {}
    for name in names:
        op, _, _ = name.rpartition(".")
        block = ".".join(name.split(".")[: 2 if name.startswith("blocks.") else 1])
        parts.setdefault({"block": block, "op": op, "parameter": name}[by], []).append(name)
    return parts
