"""Writes a traced pass down as an ONNX graph: every op of torch by the few operators that it stands for.

A translation of our own, because passes are made of some fifty ops and of thousands of nodes: torch's exporter
decomposes, translates and simplifies each of them in general, which takes ten times as long. Here equal constants are
stored once, equal nodes are computed once and nothing is kept that no output depends on.

Which operators of ONNX an op of torch stands for: a table for what goes element by element, else functions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

ONNX_DTYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.int64: TensorProto.INT64,
    torch.bool: TensorProto.BOOL,
}


class Nodes:
    """What has been written so far, and the names of values by node of the trace."""

    def __init__(self) -> None:
        self.values: dict[Node, Any] = {}
        """The name of a node's result, or a list of names, or a number."""
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.known: dict[Any, list[str]] = {}
        """Results by operator, inputs and attributes: the same again is not computed again."""
        self.here = ""
        """The part of the model that is being written; names of nodes begin with it."""
        self.batch: Node | None = None
        """The number of sequences, where it is known at run time alone."""
        self.num_values = 0

    def constant(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """The name of a stored tensor; equal ones are stored once."""
        tensor = value.detach().cpu() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype)
        array = tensor.contiguous().numpy()
        key = hashlib.sha256(repr((array.dtype, array.shape)).encode() + array.tobytes()).hexdigest()[:24]
        name = f"c{key}"
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def node(self, kind: str, inputs: Sequence[str], *, count: int = 1, **attributes: Any) -> Any:
        """The result of an operator, or a list of them."""
        key = kind, tuple(inputs), tuple(sorted((name, repr(value)) for name, value in attributes.items()))
        if key not in self.known:
            results = [f"v{self.num_values + i}" for i in range(count)]
            self.num_values += count
            name = f"{self.here}/{kind}.{results[0]}"
            self.nodes.append(helper.make_node(kind, list(inputs), results, name=name, **attributes))
            self.known[key] = results
        results = self.known[key]
        return results[0] if count == 1 else results

    def tensor(self, value: Any, dtype: torch.dtype) -> str:
        """A value of the trace, or a number, as a tensor of a dtype."""
        if not isinstance(value, Node):
            return self.constant(value, dtype)
        if not isinstance(value.meta["val"], torch.Tensor):  # a size that is known at run time alone
            return self.values[value]
        name = self.values[value]
        if value.meta["val"].dtype != dtype:
            name = self.node("Cast", [name], to=ONNX_DTYPES[dtype])
        return name

    def sizes(self, sizes: Sequence[Any]) -> str:
        """A shape: constant, or put together at run time."""
        if all(isinstance(size, int) for size in sizes):
            return self.constant(list(sizes), torch.int64)
        parts = [self.constant([size], torch.int64) if isinstance(size, int) else self.values[size] for size in sizes]
        return self.node("Concat", parts, axis=0)

    def reshape(self, name: str, shape: Sequence[Any]) -> str:
        # The batch alone may be unknown, and a single size is inferred.
        sizes = [size if isinstance(size, int) else -1 for size in shape]
        assert sizes.count(-1) <= 1, f"{shape} is no shape with one unknown size"
        return self.node("Reshape", [name, self.constant(sizes, torch.int64)])

    def axes(self, *axes: int) -> str:
        return self.constant(list(axes), torch.int64)


OPSET = 18
IR_VERSION = 10
"""Of the file: old enough for runtimes of the last years."""

Scope = Callable[[Node], str]


def write_graph(
    program: ExportedProgram, *, inputs: Sequence[str], outputs: Sequence[str], scope: Scope, description: str
) -> onnx.ModelProto:
    """The ONNX model of a traced module; `scope` names the part of the model that a node belongs to."""
    return _Writer(program, inputs, outputs, scope).model(description)


class _Writer(Nodes):
    """The graph of a trace: its inputs, the translation of every op, and its outputs."""

    def __init__(self, program: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str], scope: Scope):
        super().__init__()
        self.program = program
        self.inputs = [self._placeholder(name) for name in self._enter(inputs)]
        for node in program.graph.nodes:
            if node.op == "call_function":
                self.here = scope(node)
                self.values[node] = translate(self, node)
        (results,) = next(node for node in program.graph.nodes if node.op == "output").args
        self.outputs = [self._leave(node, name) for node, name in zip(results, outputs, strict=True)]

    def model(self, description: str) -> onnx.ModelProto:
        nodes, used = self._needed()
        graph = helper.make_graph(
            nodes,
            "pass",
            [value for value, _ in self.inputs],
            self.outputs,
            [tensor for name, tensor in self.constants.items() if name in used],
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="tintformer",
            doc_string=description,
        )

    def _needed(self) -> tuple[list[onnx.NodeProto], set[str]]:
        """The nodes that an output depends on, in order, and the names of all that is used."""
        used = {output.name for output in self.outputs}
        needed: list[onnx.NodeProto] = []
        for node in reversed(self.nodes):
            if used.intersection(node.output):
                needed.append(node)
                used.update(node.input)
        return needed[::-1], used

    # Where values enter and leave.

    def _enter(self, names: Sequence[str]) -> list[tuple[Node, str]]:
        """Take the module's own tensors as constants; what is left are inputs."""
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        given: list[Node] = []
        for spec in self.program.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            if spec.kind == InputKind.USER_INPUT:
                given.append(node)
                continue
            assert spec.target is not None
            stored = self.program.state_dict if spec.target in self.program.state_dict else self.program.constants
            self.values[node] = self.constant(stored[spec.target])
        return list(zip(given, names, strict=True))

    def _placeholder(self, given: tuple[Node, str]) -> tuple[onnx.ValueInfoProto, str]:
        node, name = given
        self.values[node] = name
        return _value_info(name, node), name

    def _leave(self, node: Node, name: str) -> onnx.ValueInfoProto:
        self.nodes.append(helper.make_node("Identity", [self.values[node]], [name], name=f"output/{name}"))
        return _value_info(name, node)


def _value_info(name: str, node: Node) -> onnx.ValueInfoProto:
    value = node.meta["val"]
    shape = [size if isinstance(size, int) else "batch" for size in value.shape]
    return helper.make_tensor_value_info(name, ONNX_DTYPES[value.dtype], shape)


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
