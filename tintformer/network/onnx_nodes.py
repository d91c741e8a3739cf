"""Nodes and constants of an ONNX graph as it is written: equal ones are there once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
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
