"""The printer: how a simulator is laid out, and its stream decoded back into named quantities.

Nothing is computed here. Plans are read from the table of regions and from the modules themselves; quantities go into
an embedding of the simulator's width and are read back from it by region, so what is printed is what the regions hold.
B batch, N pieces, T tokens, W width of a quantity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tintformer import walk
from tintformer.auxiliary.ops import Attend, Linear, Norm, Weight
from tintformer.batch import Batch
from tintformer.engines.engine import to_parameters
from tintformer.simulator import prefix
from tintformer.simulator.executor import SimulatorExecutor
from tintformer.simulator.geometry import Cut, Geometry
from tintformer.simulator.modules.affine import ReadRows, held
from tintformer.simulator.modules.attention import ScoreGradient
from tintformer.simulator.modules.differences import Difference
from tintformer.simulator.modules.norm import ExactGradient
from tintformer.simulator.primitives.attention import Attention, Bias, Joined, Port, Positional
from tintformer.simulator.primitives.linear import DimensionWise, SplitWise
from tintformer.simulator.regions import PHASES, Phase, decode, encode, regions
from tintformer.simulator.simulator import Simulator
from tintformer.simulator.tokens import Tokens
from tintformer.simulator.wiring import Place, Placed

Stage = Literal["forward", "backward", "descent", "updated"]
"""`updated` is the forward pass with the weights that descent has left."""
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
    token: int
    """The prefix token that is looked at, in the first piece."""
    holds: tuple[str, ...]
    """What its slots hold, one after the other."""
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Observation:
    """What stood in the regions of a module when it ran."""

    op: str
    stage: Stage
    step: int | None
    """Step of descent; None below the trained blocks and in the pass with the updated weights."""
    values: dict[str, Float[Tensor, "B T W"]]
    """The quantities as the auxiliary knows them, by region: what the module is given, and what it makes on the way."""

    @property
    def phase(self) -> Phase:
        """The direction of the module."""
        return "forward" if self.stage == "updated" else self.stage


def everything(place: Place) -> bool:
    """Keep all ops."""
    return True


# The plan.


def plan(simulator: Simulator, keep: Keep = everything, *, prefix_token: int = 0) -> list[OpPlan]:
    """How the ops are laid out, in the order of the forward pass."""
    names = {id(modules): name for name, modules in simulator.structure.items()}
    result: list[OpPlan] = []
    for place in filter(keep, simulator.places.values()):
        modules = simulator.modules_of(place.op)
        by_phase = dict(zip(PHASES, (modules.ahead, modules.back, modules.descent), strict=True))
        result.append(
            OpPlan(
                op=place.op.name,
                kind=type(place.op).__name__.lower(),
                block=place.block,
                module=names[id(modules)],
                widths=(place.into.width, place.out.width),
                prefix=_prefix_plan(simulator, place, prefix_token),
                modules=tuple(
                    _module_plan(simulator, place, phase, module)
                    for phase, module in by_phase.items()
                    if module is not None
                ),
            )
        )
    return result


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
        cut, piece = _cut(place, phase, name)
        width = min(cut.step, cut.width) if piece is None else min(cut.step, cut.width - piece * cut.step)
        pieces = cut.count if piece is None else 1
        table.append(Region(name=name, slot=slot, start=slot * dim_slot, width=width, pieces=pieces))
    return tuple(table)


def _cut(place: Place, phase: Phase, name: str) -> tuple[Cut, int | None]:
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
        return part.reads or ("constant" if isinstance(part.positional, Bias) else "one-hot position")

    return " and ".join(name(part) for part in _ports(port))


def _num_heads(port: Port | Joined) -> int:
    """Heads of a port, as far as its weights say."""
    counts = [1]
    for part in port.modules():
        match part:
            case Bias():
                counts.append(len(part.value))
            case DimensionWise() | SplitWise():
                counts.append(part.weight.shape[-2 if isinstance(part, DimensionWise) else 0])
            case _:
                pass
    return max(counts)


def _prefix_plan(simulator: Simulator, place: Place, token: int) -> PrefixPlan | None:
    tokens = simulator.prefix_of(place.op)
    if tokens is None:
        return None
    _, num_in, _, num_out, num_tokens, _ = tokens.shape
    if isinstance(place.op, Norm) and simulator.geometry.layout == "lean":
        names = held(place.op)
        here = min(token, len(names) - 1)
        return PrefixPlan(pieces=(1, num_in), tokens=num_tokens, token=here, holds=(names[here],), bias=None)
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


# The stream.


def observe(simulator: Simulator, batch: Batch, keep: Keep = everything) -> tuple[list[Observation], dict[str, Tensor]]:
    """Run the pass and decode what stands in the regions of every module, in the order in which they run.

    Also how far the weights of the first sequence have moved, by Hugging Face name.
    """
    observer = _Observer(simulator, keep)
    executor = SimulatorExecutor(simulator, batch, observer.see)
    handles = [part.register_forward_hook(observer.hook(names)) for part, names in _makers(simulator.structure)]
    try:
        with torch.no_grad():
            below, trained = walk.train(executor, simulator.auxiliary, simulator.rule)
            observer.close()
            observer.updated = True
            walk.run_without_tape(executor, trained, below)
            observer.close()
    finally:
        for handle in handles:
            handle.remove()
    return observer.seen, to_parameters(executor.changes(0))


class _Observer:
    """Collects the regions of one module after the other: what it is given, and what it makes on the way."""

    def __init__(self, simulator: Simulator, keep: Keep):
        self.simulator, self.keep = simulator, keep
        self.seen: list[Observation] = []
        self.updated = False
        self._step, self._last = 1, "forward"
        self._open: tuple[Place, Phase, dict[str, Tensor]] | None = None

    def see(self, op: Placed, phase: Phase, values: dict[str, Tensor]) -> None:
        """A module is about to run."""
        self.close()
        if phase == "forward" and self._last != "forward":
            self._step += 1
        self._last = phase
        place = self.simulator.places[op.name]
        self._open = (place, phase, dict(values)) if self.keep(place) else None

    def hook(self, names: tuple[str | None, ...]) -> Callable[[nn.Module, Any, Any], None]:
        """Keeps what a part of the running module leaves in regions: one name for each of its outputs, or none."""

        def note(part: nn.Module, inputs: Any, output: Any) -> None:
            if self._open is None:
                return
            place, _, values = self._open
            outputs = output if isinstance(output, tuple) else (output,)
            given = held(place.op) if isinstance(part, ReadRows) and isinstance(place.op, Norm) else names
            values.update({name: each for name, each in zip(given, outputs, strict=True) if name is not None})

        return note

    def close(self) -> None:
        """The module has run."""
        if self._open is None:
            return
        (place, phase, values), self._open = self._open, None
        self.seen.append(
            Observation(
                op=place.op.name,
                stage="updated" if self.updated else phase,
                step=None if self.updated or not self._is_trained(place) else self._step,
                values=decoded(self.simulator, place, phase, values),
            )
        )

    def _is_trained(self, place: Place) -> bool:
        if place.block is None:
            return place.role.startswith("final")
        num_blocks = len(self.simulator.auxiliary.blocks)
        return place.block >= num_blocks - self.simulator.rule.num_trained(num_blocks)


def _makers(structure: nn.Module) -> Iterator[tuple[nn.Module, tuple[str | None, ...]]]:
    """The parts of modules that fill regions by themselves, with the region of each output."""
    for part in structure.modules():
        match part:
            case ReadRows():
                yield part, ()  # scale and bias, or the one of them that the norm has
            case ExactGradient():
                yield part.invert, ("one over sigma",)
                yield part.mean, ("mean",)
            case Difference() if part.of_input is not None and part.of_direction is not None:
                yield part.of_direction, (None, "length of gradient", None)
                yield part.of_input, (None, "length of input", "one over length of input")
            case ScoreGradient() if part.length is not None:
                yield part.length, (None, "length of gradient", None)
            case _:
                pass


def decoded(simulator: Simulator, place: Place, phase: Phase, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put the regions of a module into one embedding, and read them back by name.

    Piece p of every value stands in embedding p; where one value has fewer pieces than another, its slot is empty.
    """
    names = regions(place, phase, simulator.rule)
    live = {name: values[name] for name in names if name in values}
    batch, pieces, tokens = (max(value.shape[axis] for value in live.values()) for axis in range(3))
    embedding = encode(
        {
            name: functional.pad(value, (0, 0, 0, 0, 0, pieces - value.shape[1])).expand(batch, -1, tokens, -1)
            for name, value in live.items()
        },
        names,
        simulator.geometry,
    )
    slots = decode(embedding, names, simulator.geometry)
    return {name: _plain(slots[name], *_cut(place, phase, name)) for name in live}


def _plain(slot: Float[Tensor, "B N T Dslot"], cut: Cut, piece: int | None) -> Float[Tensor, "B T W"]:
    if piece is None:
        return Tokens(slot[:, : cut.count], cut).plain()
    return slot[:, 0, :, : min(cut.step, cut.width - piece * cut.step)]
