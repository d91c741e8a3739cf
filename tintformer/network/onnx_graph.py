"""Writes a traced pass down as an ONNX graph: every op of torch by the few operators that it stands for.

A translation of our own, because passes are made of some fifty ops and of thousands of nodes: torch's exporter
decomposes, translates and simplifies each of them in general, which takes ten times as long. Here equal constants are
stored once, equal nodes are computed once and nothing is kept that no output depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import helper
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from tintformer.network.onnx_nodes import ONNX_DTYPES, Nodes
from tintformer.network.onnx_translations import translate

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
