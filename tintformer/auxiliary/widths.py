"""Whether the ops of a description fit each other: a configuration may say one size and the weights another."""

from __future__ import annotations

from collections.abc import Sequence

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Activation, Attend, Fork, Join, Linear, Move, Norm, Step
from tintformer.errors import UnsupportedModelError


def check_widths(auxiliary: Auxiliary) -> None:
    """Refuse a model in which an op gets another width than it has weights for."""
    # torch would say so in the middle of a pass, in terms of matrices that no user has seen.
    try:
        width = auxiliary.embedding.tokens.source.shape[-1]
        if auxiliary.embedding.projection is not None:
            width = _after((auxiliary.embedding.projection,), width)
        for steps in (*auxiliary.blocks, auxiliary.final):
            width = _after(steps, width)
        _require("the head", auxiliary.head.weight.source.shape[-1], width)
    except _Misfit as misfit:
        raise UnsupportedModelError(auxiliary.name, [f"{misfit}: its sizes contradict each other"]) from None


class _Misfit(Exception):
    """An op and what reaches it are of different widths."""


def _require(what: str, width: int, found: int) -> None:
    if width != found:
        raise _Misfit(f"{what} takes {width} numbers a token and gets {found}")


def _after(steps: Sequence[Step], width: int) -> int:
    """The width of a stream behind steps."""
    for step in steps:
        match step:
            case Linear():
                outputs, inputs = _shape(step)
                _require(step.name, inputs, width)
                width = outputs
            case Norm():
                if step.scale is not None:
                    _require(step.name, step.scale.source.shape[0] * step.num_groups, width)
            case Fork():
                width = _joined(step.join, [_after(branch, width) for branch in step.branches])
            case Activation() | Move():
                pass
    return width


def _joined(join: Join, widths: list[int]) -> int:
    if isinstance(join, Attend):
        query, key = join.num_heads * join.head_dim, join.num_key_value_heads * join.head_dim
        for branch, wanted, found in zip(("queries", "keys", "values"), (query, key, key), widths, strict=True):
            _require(f"{join.name} ({branch})", wanted, found)
        return query
    for other in widths[1:]:
        _require(join.name, widths[0], other)
    return widths[0]


def _shape(op: Linear) -> tuple[int, int]:
    """Outputs and inputs, without reading the weight."""
    first, second = op.weight.source.shape
    outputs, inputs = (second, first) if op.weight.transposed else (first, second)
    return outputs if op.weight.part is None else outputs // op.weight.part.count, inputs
