"""Where a hook may stand: a pass, an op of the auxiliary, and what of the op is meant."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tintformer.auxiliary.ops import Attend, Join, Linear, Norm, Op, Weight

When = Literal["before", "below", "after"] | int
"""Which pass: `before` learning, the number of a step (from 1), or `after` the last one. `below` are the embedding and
the blocks below the trained ones: no step changes them, so they run once for all steps and for the pass after."""


class HookPoint(NamedTuple):
    """One value of one pass. It equals the tuple `(when, name)`."""

    when: When
    name: str
    """The op and the value: `blocks.3.down.output`.

    `.input` (of a join, by branch: `.input.query`, `.input.0`), `.output`, `.gradient` (of the loss, at the op's
    output), and `.update.weight`, `.update.bias`, `.update.scale` (how far one step moves a parameter).
    """


def input_names(op: Op | Join, count: int) -> list[str]:
    """The names of an op's inputs; only a join has several, one from each branch."""
    if not isinstance(op, Join):
        return [f"{op.name}.input"]
    branches = ("query", "key", "value") if isinstance(op, Attend) else range(count)
    return [f"{op.name}.input.{branch}" for branch in branches]


def parameter_names(op: Op | Join) -> dict[Weight, str]:
    """The parameters of an op, named as nothing else is: parts of a fused Hugging Face parameter are told apart."""
    match op:
        case Linear():
            held = {"weight": op.weight, "bias": op.bias}
        case Norm():
            held = {"scale": op.scale, "bias": op.bias}
        case _:
            held = {}
    return {weight: f"{op.name}.{role}" for role, weight in held.items() if weight is not None}


def update_names(op: Op | Join) -> dict[Weight, str]:
    """The points at which the changes of an op's parameters are told."""
    return {
        weight: f"{op.name}.update.{name.removeprefix(op.name + '.')}" for weight, name in parameter_names(op).items()
    }
