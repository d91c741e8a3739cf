"""Named regions of a token's embedding: what each module keeps in which slot.

A region is a slot of D~ coordinates. Names are bound to slots in the order given here; a module whose regions do not
fit the embedding cannot be wired. The table also decodes an embedding back into named quantities.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from jaxtyping import Float
from torch import Tensor, cat, zeros_like

from tintformer.auxiliary.ops import Activation, Attend, Linear, Norm, Product
from tintformer.errors import InputError
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.geometry import Geometry
from tintformer.simulator.wiring import Place

Phase = Literal["forward", "backward", "descent"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "descent")

_DIFFERENCE = ("signal", "input", "length of gradient", "length of input", "one over length of input")


def regions(place: Place, phase: Phase, rule: LearningRule) -> tuple[str, ...]:
    """The regions of an op's module, slot by slot; the signal (input, output or gradient) comes first."""
    match place.op:
        case Linear():
            return ("signal", "input") if phase == "descent" else ("signal",)
        case Norm() as op:
            rows = tuple(name for name in ("scale", "bias") if getattr(op, name) is not None)
            if phase == "forward":
                return ("signal", *rows)
            if phase == "descent":
                return "signal", "input"
            if rule.norm_gradient == "exact":
                return "signal", "input", "one over sigma", "mean"
            return _difference(rule)
        case Activation():
            if phase == "forward":
                return ("signal",)
            return ("signal", "input") if rule.activation_gradient == "exact" else _difference(rule)
        case Product():
            return ("signal", "other") if phase == "forward" else ("signal", "left", "right")
        case Attend():
            queries, keys = range(place.into.count), range(place.keys.count)
            heads = (
                *_numbered("query", queries),
                *_numbered("key", keys),
                *_numbered("value", keys),
            )
            if phase == "forward":
                return heads
            if rule.attention_gradient == "value":
                return *_numbered("signal", queries), *_numbered("query", queries), *_numbered("key", keys)
            length = ("length of gradient",) if rule.epsilon_mode == "relative" else ()
            return *_numbered("signal", queries), *heads, *length


def _difference(rule: LearningRule) -> tuple[str, ...]:
    return _DIFFERENCE if rule.epsilon_mode == "relative" else _DIFFERENCE[:2]


def _numbered(name: str, pieces: range) -> tuple[str, ...]:
    return tuple(name if len(pieces) == 1 else f"{name} {piece}" for piece in pieces)


def num_slots(places: Iterable[Place], rule: LearningRule) -> int:
    """The slots that the widest module needs: memory is added where the stack leaves too little."""
    return max(len(regions(place, phase, rule)) for place in places for phase in PHASES)


def encode(
    values: dict[str, Float[Tensor, "*shape Dslot"]], names: tuple[str, ...], geometry: Geometry
) -> Float[Tensor, "*shape Dsim"]:
    """The embedding that holds the values in their regions, zero elsewhere."""
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise InputError(f"no region {', '.join(unknown)} in this module; it has {', '.join(names)}")
    if len(names) > geometry.slots:
        raise InputError(f"{len(names)} regions do not fit an embedding of {geometry.slots} slots")
    some = next(iter(values.values()))
    slots = [values.get(name, zeros_like(some)) for name in names]
    slots += [zeros_like(some)] * (geometry.slots - len(names))
    return cat(slots, dim=-1)


def decode(
    embedding: Float[Tensor, "*shape Dsim"], names: tuple[str, ...], geometry: Geometry
) -> dict[str, Float[Tensor, "*shape Dslot"]]:
    """The named quantities that an embedding holds."""
    if embedding.shape[-1] != geometry.dim_sim:
        raise InputError(f"an embedding is {geometry.dim_sim} wide, not {embedding.shape[-1]}")
    slots = embedding.unflatten(-1, (geometry.slots, geometry.dim_slot)).unbind(-2)
    return dict(zip(names, slots, strict=False))
