# pyright: basic
"""Nothing but the primitives computes: a walk over the modules, and one over every operation that a pass runs.

Three things are no part of the network. Left out by name: what is prepared from the batch before the first layer
(masks, and the lesson: which targets count and how much), and the losses that are read off the logits at the end. Left
out by shape: single numbers of the whole batch, as in the check that the result is finite; one that came back into a
stream would be seen there.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from cases import call, make_batch, make_model, make_rule
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tintformer as tint
from tintformer.execution import output
from tintformer.execution.batch import Batch
from tintformer.simulator.primitives.primitive import Primitive
from tintformer.simulator.simulator_executor import SimulatorExecutor

CASES = [
    *itertools.product(["gpt2", "qwen3"], ["default", "paper", "full"]),
    *[("bloom", "full-central"), ("opt-350m-kind", "central-relative")],
]
LAYOUTS = ["lean", "paper"]

MOVES = {
    *("alias", "as_strided", "clone", "copy_", "detach", "expand", "lift_fresh", "permute", "select", "slice"),
    *("split", "squeeze", "t", "transpose", "unbind", "unsafe_split", "unsqueeze", "view", "_unsafe_view"),
    *("cat", "stack", "index", "index_put_", "_index_put_impl_", "new_zeros", "zeros", "zeros_like"),
}
"""Operations that only move numbers, or make zeros."""


def is_movement_or_residual(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Data movement, zeros written in place, and the sums of the residual stream: two terms, or pieces side by side."""
    match name:
        case "add":
            return kwargs.get("alpha", 1) == 1
        case "sum":
            return len(args) > 1 and args[1] == [1]  # the axis of pieces
        case "fill_":
            return float(args[1]) == 0
        case "constant_pad_nd":
            return len(args) == 2 or float(args[2]) == 0
        case _:
            return name in MOVES


class Watch(TorchDispatchMode):
    """Notes which operations run outside of every primitive, and which memory is read by any."""

    def __init__(self, simulator: nn.Module):
        super().__init__()
        self.depth = 0
        self.inside: Counter[str] = Counter()
        self.outside: Counter[str] = Counter()
        self.read: set[int] = set()
        self.handles = [
            handle
            for module in simulator.modules()
            if isinstance(module, Primitive)
            for handle in (module.register_forward_pre_hook(self._enter), module.register_forward_hook(self._leave))
        ]

    def _enter(self, *_: Any) -> None:
        self.depth += 1

    def _leave(self, *_: Any) -> None:
        self.depth -= 1

    @contextmanager
    def left_out(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        self.read |= {memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **kwargs)
        if self.depth:
            self.inside[name] += 1
        elif not is_movement_or_residual(name, args, kwargs) and holds_more_than_a_number(result):
            self.outside[f"{name}{[a for a in args if not isinstance(a, Tensor)]}"] += 1
        return result


def holds_more_than_a_number(result: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.dim() > 0 for leaf in tree_leaves(result))


def memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def watched(simulator: Any, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Watch:
    """One pass of a simulator, every operation seen; input and read-out are left out, by name."""
    watch = Watch(simulator)

    def leave_out(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **knobs: Any) -> Any:
            with watch.left_out():
                return function(*args, **knobs)

        return run

    monkeypatch.setattr(Batch, "additive_mask", leave_out(Batch.additive_mask))
    for name in ("lesson", "num_training"):
        prepare = SimulatorExecutor.__dict__[name].func
        monkeypatch.setattr(SimulatorExecutor, name, property(leave_out(prepare)))
    monkeypatch.setattr(output, "token_loss", leave_out(output.token_loss))
    given = {key: value for key, value in batch.items() if key != "input_ids"}
    prepared = Batch.of(simulator.auxiliary, batch["input_ids"], **given)
    for name in ("targets", "train_positions", "evaluation_positions", "positions"):
        getattr(prepared, name)
    everywhere = torch.ones_like(prepared.evaluation_positions)
    with watch:
        simulator.run(prepared, logits_at=everywhere, before=False)
    assert watch.depth == 0
    for handle in watch.handles:
        handle.remove()
    return watch


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "rule"), CASES)
def test_only_primitives_and_the_prefix_own_parameters(name: str, rule: str, layout: str) -> None:
    simulator = tint.build(make_model(name), make_rule(rule), layout=layout)
    owners = {
        path: module
        for path, module in simulator.named_modules()
        if list(module.parameters(recurse=False)) or list(module.buffers(recurse=False))
    }
    strangers = {path for path, module in owners.items() if not isinstance(module, Primitive)}
    assert strangers == {"prefix"}
    assert len(owners) > 20
    own_classes = {type(module).__module__.split(".")[0] for module in simulator.modules()}
    assert own_classes == {"tintformer", "torch"}
    from_torch = {type(module) for module in simulator.modules() if type(module).__module__.startswith("torch")}
    assert from_torch <= {nn.ModuleList, nn.ModuleDict, nn.ParameterDict}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "rule"), CASES)
def test_outside_of_primitives_data_only_moves(
    name: str, rule: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator = tint.build(make_model(name), make_rule(rule, steps=2), layout=layout)
    watch = watched(simulator, make_batch(), monkeypatch)
    assert watch.outside == {}
    assert watch.inside["bmm"] > 20 and watch.inside["_softmax"] > 2


@pytest.mark.parametrize(
    "knobs",
    [
        {"attention": "softmax"},
        {"attention": "softmax", "softmax_form": "printed"},
        {"transposition": "stored"},
        {"stack": 1, "tie_blocks": False},
    ],
    ids=lambda knobs: "-".join(map(str, knobs.values())),
)
def test_other_constructions_compute_in_primitives_too(knobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = tint.build(make_model("llama-grouped"), make_rule("default"), **knobs)
    watch = watched(simulator, make_batch(lengths=(6, 5)), monkeypatch)
    assert watch.outside == {}
    assert watch.inside["bmm"] > 20


def test_the_watch_sees_arithmetic_outside_of_primitives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: a residual that scales by hand is found, by a number as well, and a sum over coordinates."""
    simulator = tint.build(make_model("gpt2"), make_rule("default"))
    honest = SimulatorExecutor.add
    monkeypatch.setattr(SimulatorExecutor, "add", lambda self, terms: honest(self, [_scaled(terms[0]), *terms[1:]]))
    watch = watched(simulator, make_batch(), monkeypatch)
    assert {name.split("[")[0] for name in watch.outside} == {"mul", "sum"}


def _scaled(tokens: Any) -> Any:
    tokens.data.sum(-1)
    return tokens.like(tokens.data * tokens.data.mean())


@pytest.mark.parametrize(("name", "rule"), CASES)
def test_every_constructed_tensor_is_read(name: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted as a parameter takes part; only the paper's layout has weights that stand idle."""
    simulator = tint.build(make_model(name), make_rule(rule))
    watch = watched(simulator, make_batch(), monkeypatch)
    unread = [path for path, parameter in simulator.named_parameters() if memory(parameter) not in watch.read]
    assert unread == []


@pytest.mark.parametrize(("name", "rule"), CASES)
def test_no_tensor_of_the_auxiliary_is_read(name: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What computes is a parameter of the simulator: nothing is borrowed from the model behind its back."""
    simulator = tint.build(make_model(name), make_rule(rule))
    watch = watched(simulator, make_batch(), monkeypatch)
    own = {memory(parameter) for parameter in simulator.parameters()}
    model = simulator.auxiliary.model
    theirs = [*model.named_parameters(), *model.named_buffers()]
    assert [path for path, tensor in theirs if memory(tensor) in watch.read - own] == []


@pytest.mark.parametrize(("name", "rule"), CASES)
def test_no_autograd_no_optimiser_and_no_module_of_the_auxiliary(
    name: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy.deepcopy(make_model(name))
    expected = call(tint.build(model, make_rule(rule)), make_batch())

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("the simulator computes by itself")

    for home, function in [
        (torch.autograd, "grad"),
        (torch.autograd, "backward"),
        (Tensor, "backward"),
        (torch.func, "grad"),
        (torch.func, "functional_call"),
        (torch.optim.Optimizer, "__init__"),
    ]:
        monkeypatch.setattr(home, function, forbidden)
    for module in model.modules():
        monkeypatch.setattr(module, "forward", forbidden)
    simulator = tint.build(model, make_rule(rule))
    outputs: list[Tensor] = []

    def look(_module: nn.Module, inputs: Any, output: Any) -> None:
        assert not torch.is_grad_enabled()
        outputs.extend(leaf for leaf in tree_leaves((inputs, output)) if isinstance(leaf, Tensor))

    for module in simulator.modules():
        if module is not simulator:
            module.register_forward_hook(look)
    with torch.enable_grad():
        out = call(simulator, make_batch())
    assert torch.equal(out.logits, expected.logits)
    assert len(outputs) > 100 and not any(tensor.requires_grad for tensor in outputs)
    assert not any(parameter.requires_grad for parameter in simulator.parameters())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "rule"), CASES)
def test_a_pass_leaves_every_parameter_as_it_was(name: str, rule: str, layout: str) -> None:
    simulator = tint.build(make_model(name), make_rule(rule, steps=2), layout=layout)
    before = {path: (parameter.clone(), parameter._version) for path, parameter in simulator.named_parameters()}
    out = call(simulator, make_batch(), before=True)
    assert not torch.equal(out.logits, out.logits_before)
    after = dict(simulator.named_parameters())
    assert after.keys() == before.keys()
    for path, (value, version) in before.items():
        assert torch.equal(after[path], value) and after[path]._version == version, path
