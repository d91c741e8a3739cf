"""Which operators of ONNX an op of torch stands for: a table for what goes element by element, else functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch.fx import Node

from tintformer.network.onnx_nodes import Nodes


class UntranslatedError(Exception):
    """An op of torch that is not in the table."""


def translate(w: Nodes, node: Node) -> Any:
    """Write down what a node of the trace computes: the name of its result, or a list of names."""
    name = _op_name(node)
    if name in NO_VALUES:
        return None
    if name.endswith("_") and not name.endswith("__"):
        # Changed in place: the same as a new value, as long as nobody else holds the old one.
        changed = node.args[0]
        assert isinstance(changed, Node)
        if len(changed.users) > 1:
            raise UntranslatedError(f"{node.target} on a value that is used elsewhere")
        name = name.removesuffix("_")
    if name in ELEMENTWISE:
        return _elementwise(w, node, ELEMENTWISE[name])
    if name not in TRANSLATIONS:
        raise UntranslatedError(str(node.target))
    return TRANSLATIONS[name](w, node, *node.args, **node.kwargs)


def _op_name(node: Node) -> str:
    """`add` of `aten.add.Tensor`, or the name of a function of Python."""
    parts = str(node.target).split(".")
    return parts[1] if parts[0] == "aten" else getattr(node.target, "__name__", str(node.target))


def _dtype(node: Node) -> torch.dtype:
    return node.meta["val"].dtype


def _rank(node: Node) -> int:
    return node.meta["val"].dim()


# Element by element: torch widens dtypes by itself, ONNX wants them equal.

ELEMENTWISE = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "pow": "Pow",
    "neg": "Neg",
    "exp": "Exp",
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "erf": "Erf",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "cos": "Cos",
    "sin": "Sin",
    "matmul": "MatMul",
    "bmm": "MatMul",
    "bitwise_not": "Not",
    "logical_not": "Not",
    "bitwise_and": "And",
    "logical_and": "And",
    "__and__": "And",
    "bitwise_or": "Or",
    "logical_or": "Or",
    "__or__": "Or",
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}
NO_VALUES = {"_assert_tensor_metadata", "_assert_scalar", "promote_types", "sym_constrain_range_for_size"}
"""What a trace asserts, and dtypes that it derives: they are known, result by result."""


def _elementwise(w: Nodes, node: Node, kind: str) -> str:
    if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("rounding_mode") is not None:
        raise UntranslatedError(f"{node.target} with {node.kwargs}")
    dtype = node.meta["val"].dtype if isinstance(node.meta["val"], torch.Tensor) else torch.int64
    if dtype == torch.bool:  # a comparison: its operands meet in a dtype of their own
        dtype = torch.result_type(*(_example(each) for each in node.args)) if len(node.args) == 2 else torch.bool
    return w.node(kind, [w.tensor(each, dtype) for each in node.args])


def _example(value: Any) -> Any:
    """A value of the same dtype and rank, as far as widening asks for them."""
    return torch.empty((1,) * _rank(value), dtype=_dtype(value)) if isinstance(value, Node) else value


# Everything else.

Translation = Callable[..., Any]
TRANSLATIONS: dict[str, Translation] = {}


def _translates(*names: str) -> Callable[[Translation], Translation]:
    def register(translation: Translation) -> Translation:
        TRANSLATIONS.update(dict.fromkeys(names, translation))
        return translation

    return register


@_translates("square")
def _square(w: Nodes, node: Node, x: Node) -> str:
    return w.node("Mul", [w.values[x], w.values[x]])


@_translates("rsqrt")
def _rsqrt(w: Nodes, node: Node, x: Node) -> str:
    return w.node("Reciprocal", [w.node("Sqrt", [w.values[x]])])


@_translates("ne")
def _ne(w: Nodes, node: Node, x: Node, y: Any) -> str:
    return w.node("Not", [_elementwise(w, node, "Equal")])


@_translates("rsub")
def _rsub(w: Nodes, node: Node, x: Node, y: Any) -> str:
    return w.node("Sub", [w.tensor(y, _dtype(node)), w.tensor(x, _dtype(node))])


@_translates("gelu")
def _gelu(w: Nodes, node: Node, x: Node, *, approximate: str = "none") -> str:
    if approximate != "none":
        raise UntranslatedError(f"{node.target} with {approximate}")
    scaled = w.node("Div", [w.values[x], w.constant(2**0.5, _dtype(x))])
    gate = w.node("Add", [w.node("Erf", [scaled]), w.constant(1, _dtype(x))])
    return w.node("Mul", [w.node("Mul", [w.values[x], gate]), w.constant(0.5, _dtype(x))])


@_translates("clamp")
def _clamp(w: Nodes, node: Node, x: Node, low: Any = None, high: Any = None, *, min: Any = None) -> str:
    assert high is None, "nothing is clamped from above"
    return w.node("Max", [w.values[x], w.constant(low if min is None else min, _dtype(x))])


@_translates("where")
def _where(w: Nodes, node: Node, condition: Node, x: Any, y: Any) -> str:
    return w.node("Where", [w.values[condition], w.tensor(x, _dtype(node)), w.tensor(y, _dtype(node))])


@_translates("masked_fill")
def _masked_fill(w: Nodes, node: Node, x: Node, mask: Node, value: Any) -> str:
    return w.node("Where", [w.values[mask], w.constant(value, _dtype(x)), w.values[x]])


@_translates("softmax", "_softmax")
def _softmax(w: Nodes, node: Node, x: Node, dim: int, *_: Any) -> str:
    return w.node("Softmax", [w.values[x]], axis=dim)


@_translates("sum", "mean", "amax")
def _reduce(w: Nodes, node: Node, x: Node, dims: Any = None, keepdim: bool = False, **_: Any) -> str:
    kind = {"sum": "ReduceSum", "mean": "ReduceMean", "amax": "ReduceMax"}[_op_name(node)]
    axes = list(range(_rank(x))) if dims is None else [dims] if isinstance(dims, int) else list(dims)
    return w.node(kind, [w.tensor(x, _dtype(node)), w.axes(*axes)], keepdims=int(keepdim))


@_translates("cumsum")
def _cumsum(w: Nodes, node: Node, x: Node, dim: int) -> str:
    return w.node("CumSum", [w.tensor(x, _dtype(node)), w.constant(dim, torch.int64)])


@_translates("einsum")
def _einsum(w: Nodes, node: Node, equation: str, operands: Sequence[Node]) -> str:
    return w.node("Einsum", [w.values[each] for each in operands], equation=equation)


@_translates("linear")
def _linear(w: Nodes, node: Node, x: Node, weight: Node, bias: Node | None = None) -> str:
    if _rank(x) == 2:
        inputs = [w.values[each] for each in (x, weight, bias) if each is not None]
        return w.node("Gemm", inputs, transB=1)
    y = w.node("MatMul", [w.values[x], w.node("Transpose", [w.values[weight]], perm=[1, 0])])
    return y if bias is None else w.node("Add", [y, w.values[bias]])


# Data movement.


@_translates("slice")
def _slice(w: Nodes, node: Node, x: Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> str:
    largest = numpy.iinfo(numpy.int64).max
    start, end = 0 if start is None else start, largest if end is None else end
    if start == 0 and end >= largest and step == 1:
        return w.values[x]
    size = x.meta["val"].shape[dim]
    if isinstance(size, int) and start == 0 and end >= size and step == 1:
        return w.values[x]
    return w.node("Slice", [w.values[x], w.axes(start), w.axes(end), w.axes(dim), w.axes(step)])


@_translates("select")
def _select(w: Nodes, node: Node, x: Node, dim: int, index: int) -> str:
    return w.node("Gather", [w.values[x], w.constant(index, torch.int64)], axis=dim)


@_translates("embedding")
def _embedding(w: Nodes, node: Node, rows: Node, numbers: Node, *_: Any) -> str:
    return w.node("Gather", [w.values[rows], w.values[numbers]], axis=0)


@_translates("index")
def _index(w: Nodes, node: Node, x: Node, indices: Sequence[Any]) -> str:
    if len(indices) != 1 or _dtype(indices[0]) != torch.int64:
        raise UntranslatedError(f"{node.target} by more than rows")
    return w.node("Gather", [w.values[x], w.values[indices[0]]], axis=0)


@_translates("unsqueeze")
def _unsqueeze(w: Nodes, node: Node, x: Node, dim: int) -> str:
    return w.node("Unsqueeze", [w.values[x], w.axes(dim)])


@_translates("squeeze")
def _squeeze(w: Nodes, node: Node, x: Node, dim: int) -> str:
    return w.node("Squeeze", [w.values[x], w.axes(dim)])


@_translates("view", "reshape", "_unsafe_view", "unflatten", "flatten", "view_as")
def _reshape(w: Nodes, node: Node, x: Node, *_: Any) -> str:
    before, after = x.meta["val"].shape, node.meta["val"].shape
    return w.values[x] if before == after else w.reshape(w.values[x], after)


@_translates("expand", "expand_as")
def _expand(w: Nodes, node: Node, x: Node, *_: Any) -> str:
    # A size of 1 leaves what is there: of an unknown size there is nothing to spread.
    sizes = [size if isinstance(size, int) else 1 for size in node.meta["val"].shape]
    return w.node("Expand", [w.values[x], w.constant(sizes, torch.int64)])


@_translates("repeat")
def _repeat(w: Nodes, node: Node, x: Node, counts: Sequence[int]) -> str:
    return w.node("Tile", [w.values[x], w.constant(list(counts), torch.int64)])


@_translates("repeat_interleave")
def _repeat_interleave(w: Nodes, node: Node, x: Node, count: int, dim: int) -> str:
    order = torch.arange(x.meta["val"].shape[dim]).repeat_interleave(count)
    return w.node("Gather", [w.values[x], w.constant(order)], axis=dim)


@_translates("roll")
def _roll(w: Nodes, node: Node, x: Node, shifts: Sequence[int], dims: Sequence[int]) -> str:
    order = torch.arange(x.meta["val"].shape[dims[0]]).roll(shifts[0])
    return w.node("Gather", [w.values[x], w.constant(order)], axis=dims[0])


@_translates("transpose")
def _transpose(w: Nodes, node: Node, x: Node, first: int, second: int) -> str:
    order = list(range(_rank(x)))
    order[first], order[second] = order[second], order[first]
    return w.node("Transpose", [w.values[x]], perm=order)


@_translates("mT", "t", "numpy_T")
def _matrix_transpose(w: Nodes, node: Node, x: Node) -> str:
    return _transpose(w, node, x, -1, -2)


@_translates("permute")
def _permute(w: Nodes, node: Node, x: Node, order: Sequence[int]) -> str:
    return w.node("Transpose", [w.values[x]], perm=list(order))


@_translates("cat", "concat")
def _cat(w: Nodes, node: Node, parts: Sequence[Node], dim: int = 0) -> str:
    names = [w.tensor(part, _dtype(node)) for part in parts]
    return names[0] if len(names) == 1 else w.node("Concat", names, axis=dim)


@_translates("stack")
def _stack(w: Nodes, node: Node, parts: Sequence[Node], dim: int = 0) -> str:
    dim %= _rank(node)
    names = [w.node("Unsqueeze", [w.tensor(part, _dtype(node)), w.axes(dim)]) for part in parts]
    return names[0] if len(names) == 1 else w.node("Concat", names, axis=dim)


@_translates("split", "split_with_sizes", "chunk")
def _split(w: Nodes, node: Node, x: Node, _: Any, dim: int = 0) -> list[str]:
    sizes = [part.shape[dim] for part in node.meta["val"]]
    if len(sizes) == 1:
        return [w.values[x]]
    return w.node("Split", [w.values[x], w.constant(sizes, torch.int64)], count=len(sizes), axis=dim)


@_translates("unbind")
def _unbind(w: Nodes, node: Node, x: Node, dim: int = 0) -> list[str]:
    count = len(node.meta["val"])
    parts = [w.values[x]]
    if count > 1:
        parts = w.node("Split", [w.values[x], w.constant([1] * count, torch.int64)], count=count, axis=dim)
    return [w.node("Squeeze", [part, w.axes(dim)]) for part in parts]


@_translates("getitem")
def _getitem(w: Nodes, node: Node, parts: Node, index: int) -> str:
    return w.values[parts][index]


@_translates("pad", "constant_pad_nd")
def _pad(w: Nodes, node: Node, x: Node, pads: Sequence[int], *more: Any) -> str:
    value = next((each for each in more if each is not None and not isinstance(each, str)), 0)
    if not any(pads):
        return w.values[x]
    count = len(pads) // 2  # torch goes from the last axis backwards
    axes = [_rank(x) - 1 - i for i in range(count)]
    amounts = [*pads[0::2], *pads[1::2]]
    return w.node("Pad", [w.values[x], w.constant(amounts, torch.int64), w.constant(value, _dtype(x)), w.axes(*axes)])


@_translates(
    "to", "_to_copy", "type_as", "clone", "contiguous", "detach", "alias", "lift_fresh_copy", "float", "double"
)
def _same(w: Nodes, node: Node, x: Node, *_: Any, **__: Any) -> str:
    return w.tensor(x, _dtype(node))


# Values that are made of nothing.


@_translates("zeros", "zeros_like", "new_zeros")
def _zeros(w: Nodes, node: Node, *_: Any, **__: Any) -> str:
    return _filled(w, node, 0)


@_translates("ones", "ones_like", "new_ones")
def _ones(w: Nodes, node: Node, *_: Any, **__: Any) -> str:
    return _filled(w, node, 1)


@_translates("full", "full_like", "new_full")
def _full(w: Nodes, node: Node, _: Any, value: Any, **__: Any) -> str:
    return _filled(w, node, value)


@_translates("scalar_tensor")
def _scalar_tensor(w: Nodes, node: Node, value: Any, **_: Any) -> str:
    return _filled(w, node, value)


def _filled(w: Nodes, node: Node, value: Any) -> str:
    shape = node.meta["val"].shape
    if all(isinstance(size, int) for size in shape) and node.meta["val"].numel() < 64:
        return w.constant(torch.full(tuple(shape), value, dtype=_dtype(node)))
    sizes = [size if isinstance(size, int) else w.batch for size in shape]
    return w.node("Expand", [w.constant(value, _dtype(node)), w.sizes(sizes)])


@_translates("arange")
def _arange(w: Nodes, node: Node, *bounds: Any, **_: Any) -> str:
    return w.constant(torch.arange(*bounds, dtype=_dtype(node)))


@_translates("sym_size")
def _sym_size(w: Nodes, node: Node, x: Node, dim: int) -> str:
    w.batch = node
    return w.node("Shape", [w.values[x]], start=dim, end=dim + 1)
