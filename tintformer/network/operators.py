"""Which operators an exported network may be made of, and those that a graph has."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tintformer.errors import TintError

if TYPE_CHECKING:
    import onnx

EMBED = "embed"
"""Opens the names of the nodes that bring in what is given: ids, masks, positions, and the weights' tokens."""

ALLOWED: dict[str, frozenset[str]] = {
    # Maps of slots, attention scores and what they weigh, residual connections, gated units.
    "linear algebra": frozenset({"Add", "Div", "Einsum", "Gemm", "MatMul", "Mul", "Neg", "ReduceSum", "Sub"}),
    # A group's mean square and the factor that follows from it.
    "normalisation": frozenset({"Pow", "Reciprocal", "ReduceMean", "Sqrt"}),
    # Over tokens, and over the vocabulary, where the sum is taken by an operator of its own.
    "softmax": frozenset({"Exp", "ReduceMax", "Softmax"}),
    # With the comparisons and selections inside of them: the step of a ReLU's derivative, and who sees whom.
    "activation": frozenset(
        {"And", "Equal", "Erf", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Not", "Or", "Relu"}
        | {"Sigmoid", "Tanh", "Where"}
    ),
    # Rows of a table by number. Behind the embedding the number is a constant, which makes it data movement.
    "embedding": frozenset({"Gather"}),
    # Nothing is computed: the same numbers in another shape, order or dtype.
    "data movement": frozenset(
        {"Cast", "Concat", "Expand", "Identity", "Pad", "Reshape", "Shape", "Slice", "Split", "Squeeze", "Tile"}
        | {"Transpose", "Unsqueeze"}
    ),
}
ALLOWED_IN_EMBED: dict[str, frozenset[str]] = {
    # Tokens are counted, padding left out, and rotary positions are angles: what a tokenizer or a table could give.
    "positions": frozenset({"Cos", "CumSum", "Sin"}),
}
PLACED_BY_NUMBERS = frozenset(
    {"Expand", "Gather", "Pad", "ReduceMax", "ReduceMean", "ReduceSum", "Reshape", "Slice", "Split", "Squeeze", "Tile"}
    | {"Unsqueeze"}
)
"""Operators whose inputs but the first say where, along which axis or how many."""


@dataclass(frozen=True)
class OperatorCount:
    """How often a graph has an operator."""

    operator: str
    group: str
    embed: int
    """In the embedding."""
    layers: int
    """In the layers and behind them; in the fast engine's graph, which has no such parts, everywhere."""


def count_operators(model: onnx.ModelProto) -> list[OperatorCount]:
    """The operators of a graph, the most frequent first."""
    groups = {kind: group for group, kinds in (ALLOWED | ALLOWED_IN_EMBED).items() for kind in kinds}
    counts = Counter((node.op_type, _in_embed(node)) for node in model.graph.node)
    found = [
        OperatorCount(kind, groups.get(kind, ""), counts[kind, True], counts[kind, False])
        for kind in {kind for kind, _ in counts}
    ]
    return sorted(found, key=lambda row: (-row.layers, -row.embed, row.operator))


def check_operators(model: onnx.ModelProto) -> None:
    """Refuse a network with an operator that is no part of a transformer."""
    everywhere = frozenset[str]().union(*ALLOWED.values())
    in_embed = everywhere.union(*ALLOWED_IN_EMBED.values())
    fixed = {tensor.name for tensor in model.graph.initializer}
    """Whatever the input holds: constants, shapes, and what is made of these alone."""
    foreign: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "Shape" or all(name in fixed for name in node.input):
            fixed.update(node.output)
        # A place or a size that is computed from data would make a layer choose by them.
        chooses = node.op_type in PLACED_BY_NUMBERS and not all(name in fixed for name in node.input[1:])
        if node.op_type not in (in_embed if _in_embed(node) else everywhere) or (chooses and not _in_embed(node)):
            foreign.add(node.op_type)
    if foreign:
        raise TintError(
            f"the network's graph has operators that are no part of a transformer: {', '.join(sorted(foreign))}; "
            "this is an error of tintformer, please report it"
        )


def _in_embed(node: onnx.NodeProto) -> bool:
    return node.name.startswith(f"{EMBED}/")
