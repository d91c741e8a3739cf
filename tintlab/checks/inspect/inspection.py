"""What `tint inspect` shows: how a simulator is laid out, and what stands in the regions of its modules when they run.

Both are read from the declarations of the built modules. Values are the tensors that modules and their parts are called
with and return, seen by hooks: nothing is computed, and nothing is packed to be unpacked again.
B batch, N pieces, T tokens, W width of a quantity, K key/value heads, G queries that share one, d head width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tintformer.auxiliary.ops import Attend, Linear, Norm, Weight
from tintformer.execution.hooks import HookPoint, When
from tintformer.rule.optimiser import trained_weights
from tintformer.simulator import prefix
from tintformer.simulator.geometry import Geometry
from tintformer.simulator.layouts import Module
from tintformer.simulator.module_factory import receives_gradient
from tintformer.simulator.modules.norm import held
from tintformer.simulator.primitives.attention import Attention, Bias, Joined, Port, Positional
from tintformer.simulator.primitives.tokenwise import DimensionWise, SplitWise
from tintformer.simulator.regions import PHASES, PREFIX, Cut, Phase, PieceStream, Region
from tintformer.simulator.simulator import Simulator
from tintformer.simulator.wiring import ModuleOp, WiredOp
from tintlab.checks.accounting.simulator_size import KINDS

Keep = Callable[[WiredOp], bool]
ObservedStage = Literal["forward", "backward", "descent", "updated"]
"""`updated` is the forward pass with the weights that descent has left."""


@dataclass(frozen=True, kw_only=True)
class RegionPlan:
    """Where a module keeps a quantity of an op."""

    name: str
    slot: int
    start: int
    """First coordinate in the embedding."""
    width: int
    """Coordinates that the quantity takes there; the rest of the slot is zero."""
    pieces: int
    """Embeddings side by side that carry the quantity, if it is wider than a slot."""
    beside: bool
    """In an embedding beside the module's own, because all slots are taken at that moment."""


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
    regions: tuple[RegionPlan, ...]
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


def everything(wired: WiredOp) -> bool:
    """Keep all ops."""
    return True


def plan(simulator: Simulator, keep: Keep = everything, *, prefix_token: int = 0) -> list[OpPlan]:
    """How the ops are laid out, in the order of the forward pass."""
    names = {id(modules): name for name, modules in simulator.structure.items()}
    result: list[OpPlan] = []
    for wired in filter(keep, simulator.wired.values()):
        modules, used = simulator.modules_of(wired.op), _phases(simulator, wired)
        result.append(
            OpPlan(
                op=wired.op.name,
                kind=KINDS[type(wired.op)],
                block=wired.block,
                module=names[id(modules)],
                widths=(wired.into.width, wired.out.width),
                prefix=_prefix_plan(simulator, wired, prefix_token),
                modules=tuple(
                    _module_plan(simulator, wired, phase, module)
                    for phase, module in modules.by_phase().items()
                    if phase in used
                ),
            )
        )
    return result


def _phases(simulator: Simulator, wired: WiredOp) -> tuple[Phase, ...]:
    """The directions in which the rule needs an op; what its modules have beyond is there for others."""
    op, rule, num_blocks = wired.op, simulator.rule, len(simulator.auxiliary.blocks)
    if wired.block is None:
        trained = wired.role.startswith("final")
    else:
        trained = wired.block >= num_blocks - rule.num_trained(num_blocks)
    needed = True, trained and receives_gradient(op, rule), trained and bool(trained_weights(rule, op))
    return tuple(phase for phase, used in zip(PHASES, needed, strict=True) if used)


def _module_plan(simulator: Simulator, wired: WiredOp, phase: Phase, module: Module) -> ModulePlan:
    return ModulePlan(
        phase=phase,
        regions=tuple(row for region in module.regions.declared for row in rows_of(region, wired, simulator.geometry)),
        exchanges=tuple(_exchanges(wired.op, phase, module)),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
    )


def rows_of(region: Region, wired: WiredOp, g: Geometry) -> list[RegionPlan]:
    """A region as the table has it: a row for every slot."""
    cut = wired.cut_of(region)
    in_slots = isinstance(wired.op, Attend)  # whose pieces stand in slots one after the other
    rows: list[RegionPlan] = []
    for piece in range(region.num_slots):
        slot = region.slot + piece
        rows.append(
            RegionPlan(
                name=region.name if region.num_slots == 1 else f"{region.name} {piece}",
                slot=slot,
                start=slot * g.dim_slot,
                width=region.width or min(cut.step, cut.width - piece * cut.step),
                pieces=1 if in_slots else cut.count,
                beside=region.beside,
            )
        )
    return rows


def _exchanges(op: ModuleOp, phase: Phase, module: nn.Module) -> Iterator[Exchange]:
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
    if first.reads:
        return "prefix" if PREFIX in first.reads else "text"
    return "prefix" if isinstance(first.positional, Positional) else None


def _carries(port: Port | Joined) -> str:
    def names(part: Port) -> list[str]:
        constant = "constant" if isinstance(part.positional, Bias) else "one-hot position"
        return [region.name for region in part.reads] or [constant]

    return " and ".join(name for part in _ports(port) for name in names(part))


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


def _prefix_plan(simulator: Simulator, wired: WiredOp, token: int) -> PrefixPlan | None:
    tokens = simulator.prefix_of(wired.op)
    if tokens is None:
        return None
    _, num_in, _, num_out, num_tokens, _ = tokens.shape
    if isinstance(wired.op, Norm) and simulator.geometry.layout == "lean":
        holds = tuple(held(wired.op))
        return PrefixPlan(pieces=(1, num_in), tokens=num_tokens, token=None, holds=holds, bias=None)
    here = min(token, num_tokens - 1)
    rows = prefix_rows(wired, simulator.geometry)[0, here].tolist()
    holds = ["nothing" if row < 0 else f"row {row}" for row in rows]
    rule = simulator.rule
    for name, kept in (("velocity", rule.momentum), ("base", rule.decay)):
        holds += [f"{name} of row {row}" if row >= 0 else "nothing" for row in rows if kept]
    return PrefixPlan(
        pieces=(num_out, num_in),
        tokens=num_tokens,
        token=here,
        holds=tuple(holds),
        bias=None if getattr(wired.op, "bias", None) is None else simulator.geometry.dim_aux,
    )


def prefix_rows(wired: WiredOp, geometry: Geometry) -> Int[Tensor, "M K S"]:
    """The row of the matrix in every slot of every prefix token, -1 where there is none.

    Found by writing a matrix that holds the numbers of its own rows.
    """
    numbers = torch.arange(wired.out.width, dtype=torch.float64, device="cpu")[:, None] + 1
    source = numbers.expand(-1, min(wired.into.width, wired.into.step))
    into = replace(wired.into, width=source.shape[1])
    numbered = Linear(name=wired.op.name, weight=Weight(name=wired.op.name, source=source))
    tokens = prefix.write(replace(wired, op=numbered, into=into), geometry, torch.float64)
    assert tokens is not None
    by_slot = prefix.tokens(tokens, geometry)[0].unflatten(-1, (geometry.stack, geometry.dim_slot))
    return by_slot[..., 0].long() - 1


# Values.


@dataclass(frozen=True, eq=False, kw_only=True)
class Observation:
    """What stood in the regions of a module when it ran."""

    op: str
    stage: ObservedStage
    step: int | None
    """Step of descent; None below the trained blocks and in the pass with the updated weights."""
    regions: tuple[RegionPlan, ...]
    values: dict[str, Float[Tensor, "B T W"]]
    """By region, as the auxiliary knows them: what the module is given, what it makes on the way, what it returns."""

    @property
    def phase(self) -> Phase:
        """The direction of the module."""
        return "forward" if self.stage == "updated" else self.stage


def observe(
    simulator: Simulator, input_ids: Int[Tensor, "B T"], keep: Keep = everything, **masks: Tensor | None
) -> tuple[list[Observation], dict[str, Tensor]]:
    """Run the pass and keep what stands in the regions of every module, in the order in which they run.

    Also how far the weights of the first sequence have moved, by Hugging Face name.
    """
    observer = _Observer(simulator, keep)
    handles = [handle for modules in simulator.structure.values() for handle in observer.attach(modules)]
    try:
        with simulator.hook("*.input*", observer.arrive), simulator.hook("*.gradient", observer.arrive):
            out = simulator(input_ids, **masks)
    finally:
        for handle in handles:
            handle.remove()
    return observer.seen, out.updates(0)


class _Observer:
    """The package's hooks say which op comes next, and when; torch's say what its module and the parts of it carry."""

    def __init__(self, simulator: Simulator, keep: Keep):
        self.simulator, self.keep = simulator, keep
        self.seen: list[Observation] = []
        self._next: tuple[When, str] = "below", ""
        self._values: dict[Region, Tensor] = {}

    def arrive(self, value: Tensor, point: HookPoint) -> None:
        """A value or a gradient has arrived at an op, whose module runs next."""
        self._next = point.when, re.sub(r"\.(input(\.\w+)?|gradient)$", "", point.name)

    def attach(self, modules: Any) -> Iterator[Any]:
        """Stand at the modules of an op, and at the parts of them that fill regions."""
        ops = [wired for wired in self.simulator.wired.values() if self.simulator.modules_of(wired.op) is modules]
        for phase, module in modules.by_phase().items():
            yield module.register_forward_pre_hook(self._begin)
            yield module.register_forward_hook(self._end(ops, phase))
            for part, regions in module.regions.filled:
                yield part.register_forward_hook(self._fill(regions))

    def _begin(self, module: Module, given: tuple[Any, ...]) -> None:
        self._values = dict(zip(module.regions.given, given, strict=False))  # behind them come prefix and masks

    def _fill(self, regions: tuple[Region | None, ...]) -> Callable[[nn.Module, Any, Any], None]:
        def note(_part: nn.Module, _given: Any, output: Any) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            filled = zip(regions, outputs, strict=True)
            self._values |= {region: value for region, value in filled if region is not None}

        return note

    def _end(self, ops: list[WiredOp], phase: Phase) -> Callable[[Module, Any, Any], None]:
        def note(module: Module, _given: Any, output: Any) -> None:
            # Ops of the embedding have no hook points, but nobody shares their modules either.
            wired = ops[0] if len(ops) == 1 else self.simulator.wired[self._next[1]]
            outputs = [each for each in (output if isinstance(output, tuple) else (output,)) if each is not None]
            written = module.regions.written  # nothing, where the output is the prefix
            self._values |= dict(zip(written, outputs if written else (), strict=True))
            if self.keep(wired):
                self.seen.append(self._observation(wired, phase, module))

        return note

    def _observation(self, wired: WiredOp, phase: Phase, module: Module) -> Observation:
        when = self._next[0]
        num_rows, _, num_tokens, _ = self._values[module.regions.given[0]].shape
        table: list[RegionPlan] = []
        values: dict[str, Tensor] = {}
        for region in module.regions.declared:
            rows = rows_of(region, wired, self.simulator.geometry)
            table += rows
            if region in self._values:
                value = _plain(self._values[region], wired.cut_of(region))[:, :num_tokens]
                value = value.expand(num_rows, num_tokens, -1)  # rows of the prefix are the same for all tokens
                start = 0
                for row in rows:
                    values[row.name] = value[..., start : start + row.width * row.pieces]
                    start += row.width
        return Observation(
            op=wired.op.name,
            stage="updated" if when == "after" else phase,
            step=when if isinstance(when, int) else None,
            regions=tuple(table),
            values=values,
        )


def _plain(value: Tensor, cut: Cut) -> Float[Tensor, "B T W"]:
    """A value as the auxiliary knows it, from its pieces `[B, N, T, Dslot]` or its heads `[B, K, G, 1, T, d]`."""
    if value.dim() == 6:
        return value.squeeze(3).flatten(1, 2).transpose(1, 2).flatten(2)
    return PieceStream(value.expand(-1, cut.count, -1, -1), cut).plain()
