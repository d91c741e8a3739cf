"""What an update brings about, part by part: each part alone, and each part on top of all the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from jaxtyping import Float
from torch import Tensor

from tintformer.errors import InputError

if TYPE_CHECKING:
    from tintformer.learning.tuned import Tuned

By = Literal["block", "op", "parameter"]
"""What counts as one part."""


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
