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
    stored = {tensor.name for tensor in model.graph.initializer}
    foreign = {
        node.op_type
        for node in model.graph.node
        if node.op_type not in (in_embed if _in_embed(node) else everywhere)
        # A number that is computed would make a layer choose by data.
        or (node.op_type == "Gather" and not _in_embed(node) and node.input[1] not in stored)
    }
    if foreign:
        raise TintError(
            f"the network's graph has operators that are no part of a transformer: {', '.join(sorted(foreign))}; "
            "this is an error of tintformer, please report it"
        )


def _in_embed(node: onnx.NodeProto) -> bool:
    return node.name.startswith(f"{EMBED}/")
