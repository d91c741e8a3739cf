"""What a theorem's check returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Check:
    """A bound next to what was measured, token by token; the numbers are the largest over the tokens."""

    name: str
    """The theorem."""
    where: str
    """The op that the tensors come from."""
    dtype: str
    """The dtype in which it was measured."""
    bound: float
    """Our bound: the theorem with explicit constants, and what arithmetic may lose."""
    measured: float
    ratio: float
    """The largest measured / bound of a single token; at most 1 if the bound holds."""
    holds: bool
    size: float
    """Norm of the quantity that is approximated (the largest over the tokens), to set the error in proportion."""
    rounding: float
    """The share of the bound that allows for arithmetic (the largest over the tokens)."""
    printed: float | None = None
    """The paper's expression for the same tensors; None where it does not apply."""
    note: str = ""

    @property
    def printed_holds(self) -> bool | None:
        """Whether the paper's expression bounds what was measured, up to rounding."""
        return None if self.printed is None else self.measured <= self.printed + self.rounding


def check_tokens(
    name: str,
    where: str,
    *,
    measured: Float[Tensor, "*tokens"],
    bound: Float[Tensor, "*tokens"],
    rounding: Float[Tensor, "*tokens"],
    size: Float[Tensor, "*tokens"],
    printed: float | None = None,
    note: str = "",
) -> Check:
    """Compare every token with its own bound, to which `rounding` is added."""
    bound = bound + rounding
    tiny = torch.finfo(bound.dtype).tiny
    return Check(
        name=name,
        where=where,
        dtype=str(measured.dtype).removeprefix("torch."),
        bound=float(bound.max()),
        measured=float(measured.max()),
        ratio=float((measured / bound.clamp(min=tiny)).max()),
        holds=bool((measured <= bound).all()),
        size=float(size.max()),
        rounding=float(rounding.max()),
        printed=printed,
        note=note,
    )


def unit_roundoff(dtype: torch.dtype) -> float:
    """Largest relative error of one rounding."""
    return torch.finfo(dtype).eps / 2
