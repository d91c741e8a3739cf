"""The printer's first half: how a simulator is laid out, read from its table of regions and its modules.

What stands there while it runs is the other half, `observe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor, nn

from tintformer.analysis.accounting import KINDS
from tintformer.auxiliary.ops import Attend, Linear, Norm, Weight
from tintformer.rule.trainable import trained_weights
from tintformer.simulator import prefix
from tintformer.simulator.geometry import Cut, Geometry
from tintformer.simulator.module_factory import receives_gradient
from tintformer.simulator.modules.affine import held
from tintformer.simulator.primitives.attention import Attention, Bias, Joined, Port, Positional
from tintformer.simulator.primitives.linear_maps import DimensionWise, SplitWise
from tintformer.simulator.regions import PHASES, Phase, regions
from tintformer.simulator.simulator import Simulator
from tintformer.simulator.wiring import Place, Placed

Keep = Callable[[Place], bool]


@dataclass(frozen=True, kw_only=True)
class Region:
    """Where a module keeps a quantity."""

    name: str
    slot: int
    start: int
    """First coordinate in the embedding."""
    width: int
    """Coordinates that the quantity takes there; the rest of the slot is zero."""
    pieces: int
    """Embeddings side by side that carry the quantity, if it is wider than a slot."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One attention: who asks with what, who answers with what."""

    asks: str
    query: str
    answers: str
    key: str
    value: str
    heads: int
    transposed: bool
    """The values are those of the asking tokens, and the answering ones collect them."""


@dataclass(frozen=True, kw_only=True)
class ModulePlan:
    """The module of one op in one direction."""

    phase: Phase
    regions: tuple[Region, ...]
    exchanges: tuple[Exchange, ...]
    parameters: int


@dataclass(frozen=True, kw_only=True)
class PrefixPlan:
    """Where the weights of an op sit in its prefix tokens."""

    pieces: tuple[int, int]
    """Pieces of the matrix: those of its rows, and those of its columns."""
    tokens: int
    """Prefix tokens of a piece."""
    token: int | None
    """The prefix token that is looked at, in the first piece; None where tokens have one row each."""
    holds: tuple[str, ...]
    """What its slots hold, one after the other; without a token, what the tokens hold."""
    bias: int | None
    """Coordinate of every slot that holds the bias; None without one, or where it is a token of its own."""


@dataclass(frozen=True, kw_only=True)
class OpPlan:
    """What stands for one op of the auxiliary."""

    op: str
    kind: str
    block: int | None
    module: str
    """Name of the modules; ops with the same one share them."""
    widths: tuple[int, int]
    """Of the input (of the queries, for attention) and of the output."""
    prefix: PrefixPlan | None
    modules: tuple[ModulePlan, ...]


def everything(place: Place) -> bool:
    """Keep all ops."""
    return True


def plan(simulator: Simulator, keep: Keep = everything, *, prefix_token: int = 0) -> list[OpPlan]:
    """How the ops are laid out, in the order of the forward pass."""
    names = {id(modules): name for name, modules in simulator.structure.items()}
    result: list[OpPlan] = []
    for place in filter(keep, simulator.places.values()):
        modules = simulator.modules_of(place.op)
        by_phase = dict(zip(PHASES, (modules.ahead, modules.back, modules.descent), strict=True))
        used = _phases(simulator, place)
        result.append(
            OpPlan(
                op=place.op.name,
                kind=KINDS[type(place.op)],
                block=place.block,
                module=names[id(modules)],
                widths=(place.into.width, place.out.width),
                prefix=_prefix_plan(simulator, place, prefix_token),
                modules=tuple(
                    _module_plan(simulator, place, phase, module)
                    for phase, module in by_phase.items()
                    if module is not None and phase in used
                ),
            )
        )
    return result


def _phases(simulator: Simulator, place: Place) -> tuple[Phase, ...]:
    """The directions in which the rule needs an op; what its modules have beyond is there for others."""
    op, rule = place.op, simulator.rule
    needed = True, receives_gradient(op, rule), bool(trained_weights(rule, op))
    trained = is_trained(simulator, place)
    return tuple(phase for phase, used in zip(PHASES, needed, strict=True) if used and (trained or phase == "forward"))


def is_trained(simulator: Simulator, place: Place) -> bool:
    """Whether an op stands in a trained block or behind the last."""
    if place.block is None:
        return place.role.startswith("final")
    num_blocks = len(simulator.auxiliary.blocks)
    return place.block >= num_blocks - simulator.rule.num_trained(num_blocks)


def _module_plan(simulator: Simulator, place: Place, phase: Phase, module: nn.Module) -> ModulePlan:
    return ModulePlan(
        phase=phase,
        regions=region_table(simulator, place, phase),
        exchanges=tuple(_exchanges(place.op, phase, module)),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
    )


def region_table(simulator: Simulator, place: Place, phase: Phase) -> tuple[Region, ...]:
    """The regions of a module with their slots and coordinates."""
    dim_slot = simulator.geometry.dim_slot
    table: list[Region] = []
    for slot, name in enumerate(regions(place, phase, simulator.rule)):
        cut, piece = cut_of(place, phase, name)
        width = min(cut.step, cut.width) if piece is None else min(cut.step, cut.width - piece * cut.step)
        pieces = cut.count if piece is None else 1
        table.append(Region(name=name, slot=slot, start=slot * dim_slot, width=width, pieces=pieces))
    return tuple(table)


def cut_of(place: Place, phase: Phase, name: str) -> tuple[Cut, int | None]:
    """The cut of what a region holds and, for attention, whose pieces have regions of their own, the piece."""
    if isinstance(place.op, Attend):
        quantity, _, number = name.partition(" ")
        cut = place.keys if quantity in ("key", "value") else place.into
        return cut, int(number) if number.isdigit() else 0
    gradient = name == "signal" and phase != "forward"
    return (place.out if gradient else place.into), None


def _exchanges(op: Placed, phase: Phase, module: nn.Module) -> Iterator[Exchange]:
    for attention in module.modules():
        if isinstance(attention, Attention):
            ports = attention.query, attention.key, attention.value
            yield Exchange(
                asks=_side(attention.query) or ("prefix" if phase == "descent" else "text"),
                query=_carries(attention.query),
                answers=_side(attention.key) or _side(attention.value) or "text",
                key=_carries(attention.key),
                value=_carries(attention.value),
                heads=op.num_heads if isinstance(op, Attend) else max(map(_num_heads, ports)),
                transposed=attention.transposed,
            )


def _ports(port: Port | Joined) -> list[Port]:
    return [part for part in port.modules() if isinstance(part, Port)]


def _side(port: Port | Joined) -> str | None:
    """The tokens that a port reads; None for a constant."""
    first = _ports(port)[0]
    if first.reads is not None:
        return "prefix" if first.reads == "rows" else "text"
    return "prefix" if isinstance(first.positional, Positional) else None


def _carries(port: Port | Joined) -> str:
    def name(part: Port) -> str:
        if part.reads is not None:
            return part.reads.replace("_", " ")
        return "constant" if isinstance(part.positional, Bias) else "one-hot position"

    return " and ".join(name(part) for part in _ports(port))


def _num_heads(port: Port | Joined) -> int:
    """Heads of a port, as far as its weights say."""
    counts = [1]
    for part in _ports(port):
        if isinstance(part.positional, Bias):
            counts.append(len(part.positional.value))
        match list(part.factors)[-1:]:
            case [DimensionWise() as last]:
                counts.append(last.weight.shape[1])
            case [SplitWise() as last]:
                counts.append(last.weight.shape[0])
            case _:
                pass
    return max(counts)


def _prefix_plan(simulator: Simulator, place: Place, token: int) -> PrefixPlan | None:
    tokens = simulator.prefix_of(place.op)
    if tokens is None:
        return None
    _, num_in, _, num_out, num_tokens, _ = tokens.shape
    if isinstance(place.op, Norm) and simulator.geometry.layout == "lean":
        holds = tuple(held(place.op))
        return PrefixPlan(pieces=(1, num_in), tokens=num_tokens, token=None, holds=holds, bias=None)
    here = min(token, num_tokens - 1)
    rows = prefix_rows(place, simulator.geometry)[0, here].tolist()
    return PrefixPlan(
        pieces=(num_out, num_in),
        tokens=num_tokens,
        token=here,
        holds=tuple("nothing" if row < 0 else f"row {row}" for row in rows),
        bias=None if getattr(place.op, "bias", None) is None else simulator.geometry.dim_aux,
    )


def prefix_rows(place: Place, geometry: Geometry) -> Int[Tensor, "M K S"]:
    """The row of the matrix in every slot of every prefix token, -1 where there is none.

    Found by writing a matrix that holds the numbers of its own rows.
    """
    numbers = torch.arange(place.out.width, dtype=torch.float64, device="cpu")[:, None] + 1
    source = numbers.expand(-1, min(place.into.width, place.into.step))
    into = replace(place.into, width=source.shape[1])
    numbered = Linear(name=place.op.name, weight=Weight(name=place.op.name, source=source))
    tokens = prefix.write(replace(place, op=numbered, into=into), geometry, torch.float64)
    assert tokens is not None
    by_slot = prefix.tokens(tokens, geometry)[0].unflatten(-1, (geometry.stack, geometry.dim_slot))
    return by_slot[..., 0].long() - 1
