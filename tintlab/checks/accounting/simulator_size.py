"""How large a simulator is, without building one: the modules of the construction on tensors that have only shapes.

`constructed` counts what `build` would make, part by part. `formula` is the paper's table, which ignores biases,
head, gates and embeddings and fixes T = 2048; every parameter by which the two differ has a name here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Activation, Attend, Linear, Norm, Product
from tintformer.errors import TintError
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.geometry import derive
from tintformer.simulator.module_factory import signature
from tintformer.simulator.modules.linear import LinearBackward, LinearDescent, LinearForward
from tintformer.simulator.modules.movement import SlotMap
from tintformer.simulator.modules.norm import DiagonalDescent
from tintformer.simulator.primitives.attention import Bias, Positional
from tintformer.simulator.primitives.tokenwise import (
    Combine,
    Constant,
    DimensionWise,
    Distance,
    FixedGate,
    GroupNorm,
    Narrow,
    Rotate,
    SplitWise,
)
from tintformer.simulator.regions import PHASES, Phase
from tintformer.simulator.simulator import Simulator, build
from tintlab.checks.accounting.paper_formula import MAX_POSITIONS, Formula

KINDS: dict[type, str] = {
    Linear: "linear",
    Norm: "norm",
    Attend: "attention",
    Activation: "activation",
    Product: "product",
}
ENDS, SCALES, SLOTS = "ends", "descent of norm scales", "momentum, decay and rates"

_PARTS: dict[type[nn.Module], str] = {
    DimensionWise: "maps between heads",
    SplitWise: "maps between heads",
    Constant: "homogeneous constants",
    Bias: "constant queries and keys",
    Narrow: "means and differences",
    Combine: "means and differences",
    SlotMap: SLOTS,
    GroupNorm: "constants of norms",
    Rotate: "positions of the auxiliary",
    Distance: "positions of the auxiliary",
}


@dataclass(frozen=True, kw_only=True)
class CountedPart:
    """Parameters of one part of the modules of one kind in one direction."""

    kind: str
    """Of the op: linear, norm, attention, activation, product, or the ends of the model."""
    phase: Phase
    """Which direction: forward, backward or descent."""
    part: str
    """What the parameters do."""
    parameters: int
    """How many there are."""


@dataclass(frozen=True, kw_only=True)
class CountDifference:
    """One reason why the construction is larger (or, if negative, smaller) than the paper's formula."""

    reason: str
    """In words."""
    parameters: int
    """How many it adds, or takes away."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The parameters of a simulator as it would be built."""

    layout: str
    """`lean` or `paper`."""
    tie_blocks: bool
    """Whether one block of modules serves all layers."""
    parts: list[CountedPart]
    """All constructed parameters, by what they belong to."""
    structural: int
    """Constructed parameters: all parts together."""
    auxiliary: int
    """Parameters that hold the auxiliary's own weights, padding included."""
    linear_forward: int
    """Parameters of one linear forward module; `structural` has one for every role."""
    formula: int | None
    """The paper's count for the same auxiliary and stack; None where the stack does not divide its width."""
    differences: list[CountDifference]
    """Reasons that add up to `structural - formula`; for the paper's layout without tied blocks."""

    @property
    def total(self) -> int:
        """Constructed parameters and the auxiliary's own."""
        return self.structural + self.auxiliary

    def by_kind(self) -> list[dict[str, Any]]:
        """A row for each kind of module: forward, backward, descent and their total."""
        sums: Counter[tuple[str, str]] = Counter()
        for part in self.parts:
            sums[part.kind, part.phase] += part.parameters
        kinds = list(dict.fromkeys(part.kind for part in self.parts))
        rows: list[dict[str, Any]] = []
        for kind in kinds:
            counts = {phase: sums[kind, phase] for phase in PHASES}
            rows.append({"module": kind, **counts, "total": sum(counts.values())})
        counts = {phase: sum(row[phase] for row in rows) for phase in PHASES}
        return [*rows, {"module": "all", **counts, "total": sum(counts.values())}]


def count_parameters(model: Any, *, rule: LearningRule | None = None, **construction: Any) -> Parameters:
    """Count the simulator of a model; nothing is loaded or fetched.

    Args:
        model: A known name, a configuration file or directory, or an auxiliary.
        rule: What it learns by; some rules need more modules. None is `LearningRule` with its defaults.
        **construction: Fields of `Construction`: layout, stack, tie_blocks, ...
    """
    from tintformer.storage.configs import meta_auxiliary, read_config

    if isinstance(model, Auxiliary):
        model.require_language_model("a count of parameters")
        auxiliary = model if model.device.type == "meta" else meta_auxiliary(model.model.config, model.name)
    else:
        auxiliary = meta_auxiliary(read_config(model), str(model))
    with torch.device("meta"):
        simulator = build(auxiliary, rule or LearningRule(learning_rate=1e-4), **construction)
    return count(simulator)


def count(simulator: Simulator) -> Parameters:
    """The parameters of a simulator, built or on the meta device."""
    parts = [
        CountedPart(kind=kind, phase=phase, part=name, parameters=number)
        for (kind, phase, name), number in _sums(simulator).items()
    ]
    formula = _formula(simulator)
    comparable = formula is not None and simulator.construction.layout == "paper"
    comparable = comparable and not simulator.construction.tie_blocks
    return Parameters(
        layout=simulator.construction.layout,
        tie_blocks=simulator.construction.tie_blocks,
        parts=parts,
        structural=sum(part.parameters for part in parts),
        auxiliary=simulator.num_auxiliary,
        linear_forward=_linear_forward(simulator),
        formula=None if formula is None else formula.total,
        differences=_differences(simulator, formula) if formula is not None and comparable else [],
    )


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One way to count the machinery, and what it contributes to the distance from the paper's count."""

    count: str
    linear: int
    """Parameters of one linear forward module."""
    total: int
    smaller: float
    """By which factor it is smaller than the row before."""


def factors(
    auxiliary: Auxiliary, *, stack: int, counted: Iterable[Parameters] = (), rule: LearningRule | None = None
) -> list[Factor]:
    """From the paper's formula to the default construction, one factor a row; `counted` need not be counted again."""
    known = {(each.layout, each.tie_blocks): each for each in counted}
    formula = Formula.of(auxiliary.model.config, stack=stack)
    g = derive(auxiliary, layout="lean", stack=stack)
    # The paper's convention: every query, key, value and output has a split-wise and a dimension-wise map of full size,
    # the first three a table of all positions. Here with the lean layout's padded width and its S' = S parts.
    lean = Formula(dim_aux=g.dim_slot, num_layers=formula.num_layers, num_heads_aux=g.num_heads, stack=stack)
    rows = [("the paper's formula", formula.linear, formula.total)]
    for layout, tied, name in (
        ("paper", False, "the paper's layout as constructed"),
        ("lean", False, "lean: maps shared by all coordinates"),
        ("lean", True, "lean, tied: one block for all layers"),
    ):
        found = known.get((layout, tied)) or count_parameters(
            auxiliary, rule=rule, layout=layout, stack=stack, tie_blocks=tied
        )
        rows.append((name, found.linear_forward, found.structural))
    rows.insert(2, ("lean sizes by the paper's formula", lean.linear, lean.total))
    before = [rows[0][2], *(total for _, _, total in rows)]
    return [
        Factor(count=name, linear=linear, total=total, smaller=last / total)
        for (name, linear, total), last in zip(rows, before, strict=False)
    ]


NON_ZERO_LIMIT = 6_000_000
"""Parameters of a linear module beyond which none is written out to be counted: it would take minutes."""


def non_zero_share(auxiliary: Auxiliary, *, stack: int) -> float | None:
    """The share of non-zero entries in the paper's layout, one block and the final norm; None where it is too large.

    Each kind of modules is constructed with its numbers, counted, and dropped.
    """
    with torch.device("meta"):
        simulator = build(auxiliary, LearningRule(learning_rate=1e-4), layout="paper", stack=stack)
    if _linear_forward(simulator) > NON_ZERO_LIMIT:
        return None
    factory, seen, non_zero, entries = simulator.factory(simulator.geometry), set[int](), 0, 0
    # Modules of one signature and the same directions hold the same numbers, whatever their role.
    counted: dict[tuple[Any, ...], tuple[int, int]] = {}
    for wired in reversed(simulator.wired.values()):
        modules = simulator.modules_of(wired.op)
        if id(modules) not in seen:
            seen.add(id(modules))
            kind = signature(wired, factory.rule), *modules.by_phase()
            if kind not in counted:
                with torch.device("cpu"):
                    parameters = [each for each in factory.make(wired, None).parameters() if each.device.type == "cpu"]
                numbers = sum(int(each.count_nonzero()) for each in parameters)
                counted[kind] = numbers, sum(each.numel() for each in parameters)
            non_zero, entries = non_zero + counted[kind][0], entries + counted[kind][1]
    return non_zero / entries


def _linear_forward(simulator: Simulator) -> int:
    first = next(each for each in simulator.wired.values() if isinstance(each.op, Linear) and each.block == 0)
    return sum(parameter.numel() for parameter in simulator.modules_of(first.op).forward_module.parameters())


def _sums(simulator: Simulator) -> Counter[tuple[str, Phase, str]]:
    sums: Counter[tuple[str, Phase, str]] = Counter()
    for kind, phase, module in _modules(simulator):
        for name, number in _parts(module):
            sums[kind, phase, name] += number
    return sums


def _modules(simulator: Simulator) -> Iterator[tuple[str, Phase, nn.Module]]:
    """Every module of the structure once, by the kind of its op and its direction."""
    seen: set[int] = set()
    for wired in simulator.wired.values():
        modules = simulator.modules_of(wired.op)
        if id(modules) in seen:
            continue
        seen.add(id(modules))
        for phase, module in modules.by_phase().items():
            yield KINDS[type(wired.op)], phase, module
    yield ENDS, "backward", simulator.loss_gradient.next_token


def _parts(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Parameters of a module by what they are; each owner's own, so that nothing counts twice."""
    moving_scales = [each for each in module.modules() if isinstance(each, DiagonalDescent)]
    of_scales = {id(each) for descent in moving_scales if descent.scale is not None for each in descent.scale.modules()}
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if id(owner) in of_scales or isinstance(owner, FixedGate):
                yield SCALES, parameter.numel()
            elif isinstance(owner, Positional):
                yield ("one-hot positions" if name == "table" else "switches"), parameter.numel()
            else:
                yield _PARTS[type(owner)], parameter.numel()


def _formula(simulator: Simulator) -> Formula | None:
    try:
        return Formula.of(simulator.auxiliary.model.config, stack=simulator.construction.stack)
    except TintError:
        return None


def _differences(simulator: Simulator, formula: Formula) -> list[CountDifference]:
    """Why the paper's layout has other counts than the paper's table, reason by reason.

    The table has, in every direction of every block, four linear modules, two of norms and one attention, Q each.
    """
    g, layers, q = simulator.geometry, formula.num_layers, formula.linear
    sums = _sums(simulator)
    like_linear = {key: number for key, number in sums.items() if key[0] in ("linear", "norm")}
    num_modules = sum(_num_linear(module) for kind, _, module in _modules(simulator) if kind in ("linear", "norm"))

    def of(name: str) -> int:
        return sum(number for (_, _, part), number in like_linear.items() if part == name)

    def all_of(*kinds: str) -> int:
        return sum(number for (kind, _, _), number in sums.items() if kind in kinds)

    split = g.num_heads * g.head_dim**2 + g.head_dim * g.num_heads**2
    positions = (g.num_prefix + MAX_POSITIONS) * g.head_dim
    second_map = g.head_dim * g.num_heads**2
    difference = 2 * formula.dim_sim * formula.num_heads
    stored = sum(sums["attention", "backward", part] for part in ("one-hot positions", "switches"))
    like_table = ("maps between heads", "switches", "homogeneous constants", "one-hot positions")
    reasons = {
        "slots padded for the homogeneous coordinate": num_modules * (4 * split + 3 * positions - q),
        "text positions other than 2048": num_modules * 3 * (g.max_tokens - MAX_POSITIONS) * g.head_dim,
        "a second map across heads where rows are spread over slots": num_modules * second_map,
        "memory slots beyond the stack": of("maps between heads") - num_modules * (4 * split + second_map),
        "switches of positional terms": of("switches"),
        "homogeneous constants": of("homogeneous constants"),
        "modules outside of the blocks, such as the final norm": (num_modules - 18 * layers) * q,
        "norm gradients by means and products, not by a wide layer": all_of("norm", "linear")
        - sum(of(part) for part in (*like_table, SCALES, SLOTS))
        - 2 * layers * difference,
        "descent of norm scales, which the table leaves out": of(SCALES),
        "momentum, decay and rates within prefix tokens": of(SLOTS),
        "attention over the auxiliary's own heads": all_of("attention") - stored - 2 * layers * q,
        "positions by which stored scores are read": stored,
        "descent of attention uses the backward module's value gradient": -layers * q,
        "activations and products need no linear layer": all_of("activation", "product")
        - layers * (formula.split + difference),
        "next-token attention of the loss": all_of(ENDS),
    }
    return [CountDifference(reason=reason, parameters=number) for reason, number in reasons.items() if number]


def _num_linear(module: nn.Module) -> int:
    """How many attentions of the size Q a module has: one for a linear, one for a norm with its diagonal."""
    return sum(isinstance(inner, LinearForward | LinearBackward | LinearDescent) for inner in module.modules())
