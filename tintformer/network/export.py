"""Exports a pass that learns as one ONNX graph: token ids and two masks go in, logits come out.

B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from tintformer.auxiliary.description import Auxiliary, compute_dtype, ops
from tintformer.auxiliary.ops import Weight
from tintformer.engines.traced import TracedExecutor
from tintformer.errors import InputError, cause
from tintformer.execution import walk
from tintformer.execution.batch import TracedBatch
from tintformer.network.network import Network
from tintformer.network.operators import EMBED, OperatorCount, check_operators, count_operators
from tintformer.rule.learning_rule import LearningRule, require_built
from tintformer.rule.optimiser import trainable_weights

if TYPE_CHECKING:
    import onnx
    from torch.export import ExportedProgram
    from torch.fx import Node

INPUTS = ("input_ids", "attention_mask", "train_mask")
LARGEST = 2**31 - 2**24
"""Bytes of weights that fit a file: protobuf ends at 2 GB, and the graph itself needs some."""


class PortablePass(nn.Module):
    """A pass of three tensors `[B, T]`: positions, targets and flags are made of them inside."""

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, *, updates: bool):
        super().__init__()
        auxiliary.require_language_model("an export")
        self.auxiliary, self.rule = auxiliary, require_built(rule, "an export")
        self.names = sorted({weight.name for weight in trainable_weights(rule, auxiliary)}) if updates else []
        """The Hugging Face parameters whose updated values are put out behind the logits."""

    def forward(
        self, input_ids: Int[Tensor, "B T"], attention_mask: Int[Tensor, "B T"], train_mask: Int[Tensor, "B T"]
    ) -> tuple[Tensor, ...]:
        logits, learnt = self.run(TracedBatch.of_masks(input_ids, attention_mask, train_mask))
        return logits, *(updated_parameter(name, self.auxiliary, self.rule, learnt) for name in self.names)

    def run(self, batch: TracedBatch) -> tuple[Tensor, dict[Weight, Tensor]]:
        """Logits, and what the first sequence has learnt, if that is put out."""
        raise NotImplementedError


class PortableNetwork(PortablePass):
    """The compiled network."""

    def __init__(self, network: Network, *, updates: bool = False):
        super().__init__(network.auxiliary, network.rule, updates=updates)
        self.network = network

    def run(self, batch: TracedBatch) -> tuple[Tensor, dict[Weight, Tensor]]:
        e = self.network.run(batch.input_ids, self.network.flags(batch))
        assert self.network.head is not None
        return self.network.head(e), self.network.learnt(e) if self.names else {}


class PortableFast(PortablePass):
    """The fast engine's pass."""

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, *, updates: bool = False):
        super().__init__(auxiliary, rule, updates=updates)

    def run(self, batch: TracedBatch) -> tuple[Tensor, dict[Weight, Tensor]]:
        executor = TracedExecutor(self.auxiliary, self.rule, batch)
        x = walk.train_in_the_pass(executor, self.auxiliary, self.rule)
        learnt: dict[Weight, Tensor] = {}
        for steps in (*self.auxiliary.blocks, self.auxiliary.final) if self.names else ():
            for op in ops(steps):
                learnt.update(executor.updates_of(op, 0))
        return executor.logits(x), learnt


def updated_parameter(name: str, auxiliary: Auxiliary, rule: LearningRule, learnt: Mapping[Weight, Tensor]) -> Tensor:
    """A Hugging Face parameter after learning, put together from the weights that are parts of it."""
    parts = [weight for weight in trainable_weights(rule, auxiliary) if weight.name == name]
    base = parts[0].source.to(compute_dtype(auxiliary.dtype))
    found = [(weight, learnt[weight]) for weight in parts if weight in learnt]
    if not found:
        return base
    first, change = found[0]
    if first.part is not None:
        # Fused rows stand group by group, part by part; a part that is frozen has learnt nothing.
        changes = {weight.part.index: each for weight, each in found if weight.part is not None}
        rows = [changes.get(index, torch.zeros_like(change)) for index in range(first.part.count)]
        change = torch.stack([each.unflatten(0, (first.part.groups, -1)) for each in rows], dim=1).flatten(0, 2)
    return base + (change.mT if first.transposed else change)


@dataclass(frozen=True, eq=False, kw_only=True)
class Exported:
    """An exported pass."""

    model: onnx.ModelProto
    operators: list[OperatorCount]
    num_bytes: int


def require_onnx() -> None:
    """Refuse to begin without the packages of the extra."""
    if missing := [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]:
        raise InputError(f"an export needs {' and '.join(missing)}; pip install 'tintformer[export]'")


def check_tokens(auxiliary: Auxiliary, num_tokens: int) -> None:
    """Refuse lengths that the model has no positions for, or that leave nothing to learn."""
    if num_tokens < 2:
        raise InputError(f"{num_tokens} tokens are too few to export: give at least 2, a token and the next one")
    if auxiliary.max_positions is not None and num_tokens > auxiliary.max_positions:
        raise InputError(
            f"{num_tokens} tokens are to be exported, but {auxiliary.name} was built for {auxiliary.max_positions} "
            "positions; give fewer"
        )


@torch.no_grad()
def export(module: PortablePass, num_tokens: int, *, dynamic_batch: bool = False) -> Exported:
    """The ONNX graph of a pass over `num_tokens` tokens, of one sequence or of any number of them."""
    require_onnx()
    from tintformer.network.onnx import write_graph

    check_tokens(module.auxiliary, num_tokens)
    if dynamic_batch and module.names:
        raise InputError("every sequence has updated weights of its own: export them without a dynamic batch")
    program = trace(module, num_tokens, dynamic_batch=dynamic_batch)
    _check_size(program)
    rule = module.rule
    model = write_graph(
        program,
        inputs=INPUTS,
        outputs=("logits", *module.names),
        scope=_NetworkParts() if isinstance(module, PortableNetwork) else lambda _: "pass",
        description=f"{module.auxiliary.name} learns from the tokens of train_mask, {rule.steps} step(s) of "
        f"{rule.rate:g}, and predicts",
    )
    if isinstance(module, PortableNetwork):
        check_operators(model)
    return Exported(model=model, operators=count_operators(model), num_bytes=model.ByteSize())


def trace(module: PortablePass, num_tokens: int, *, dynamic_batch: bool) -> ExportedProgram:
    """The pass by torch.export."""
    # Sizes of 0 and 1 are always taken for constants, so that a batch of any size is traced with two.
    example = torch.ones(1 + dynamic_batch, num_tokens, dtype=torch.long, device=module.auxiliary.device)
    sizes = {0: torch.export.Dim("batch", min=1)} if dynamic_batch else {}
    # Tensors of their own: one that came in three times would be traced as one input.
    examples = tuple(example.clone() for _ in INPUTS)
    return torch.export.export(module, examples, dynamic_shapes=(sizes,) * 3, strict=False)


def _check_size(program: ExportedProgram) -> None:
    tensors = [*program.state_dict.values(), *program.constants.values()]
    stored = {each.data_ptr(): each.nbytes for each in tensors if isinstance(each, Tensor)}
    if (size := sum(stored.values())) > LARGEST:
        raise InputError(f"the weights take {size / 1e9:.1f} GB but an ONNX file holds 2 GB; export a smaller model")


class _NetworkParts:
    """Says which part of the network a node belongs to: embedding, layer, head, or reading the updated weights."""

    def __init__(self) -> None:
        self.entered = False

    def __call__(self, node: Node) -> str:
        paths = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
        inside = [path for path in paths if path.startswith(("network.layers.", "network.head"))]
        self.entered = self.entered or bool(inside)
        if inside:
            return ".".join(inside[0].split(".")[1:3])
        # Positions and flags are made of the masks outside of any module, before the first layer.
        return "updates" if self.entered else EMBED


def run_exported(model: onnx.ModelProto, inputs: Sequence[Tensor]) -> list[Any]:
    """What onnxruntime makes of the graph: arrays by output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feed = {name: tensor.cpu().numpy() for name, tensor in zip(INPUTS, inputs, strict=True)}
        return list(session.run(None, feed))
    except Exception as error:  # onnxruntime's own classes share no base but Exception
        raise InputError(f"onnxruntime cannot run the graph ({cause(error)}); try --dtype float32") from error
