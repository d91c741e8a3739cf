# pyright: basic
"""Nothing but the primitives computes, nothing but attention moves data between tokens, and modules read what they
have declared: a walk over the modules, and one over every operation that a pass runs.

- Outside of primitives data only moves, or is added in the residual stream.
- It moves within its token. Every element of every tensor carries the number of its token along (`Routes`); where a
  primitive is called, row t of its input must hold data of token t, or constants. The last axis but one is that of
  tokens; pieces and heads are other axes, which data may cross.
- A module computes with what it is called with (its declared regions, its prefix, masks and positions), with its own
  parameters, and with what it has made of them since; a value from anywhere else is found.

Three things are no part of the network. Left out by name: what is prepared from the batch before the first layer
(masks, and the loss inputs: which targets count and how much), and the losses that are read off the logits at the end.
Left out by shape: single numbers of the whole batch, as in the check that the result is finite; one that came back into
a stream would be seen there. Not shown: that attentions have the masks that they should (parity with the oracle does),
and that the order of modules is a network's own (it is a program, as docs/simulator.md says).
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
from cases import DESCENTS, call, covering, make_batch, make_model, make_rule, some, swept, with_steps
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

import tintformer as tint
from tintformer.auxiliary.model_record import CopiedWeights, ModelRecord
from tintformer.execution import output
from tintformer.execution.batch import Batch
from tintformer.simulator.layouts import Module
from tintformer.simulator.modules.linear import LinearForward
from tintformer.simulator.modules.pointwise import ActivationForward
from tintformer.simulator.primitives.attention import Attention, Positional
from tintformer.simulator.primitives.tokenwise import FixedGate, Primitive
from tintformer.simulator.simulator_executor import SimulatorExecutor

CASES = [
    *[("gpt2", "default"), ("qwen3", "full"), ("bloom", "full-central"), ("opt-350m-kind", "central-relative")],
    *[("gpt2", "paper"), ("gpt2", "full"), ("qwen3", "default"), ("qwen3", "paper")],
]
LAYOUTS = ["lean", "paper"]
FEWER = covering(CASES[:5], LAYOUTS) + swept(itertools.product(CASES[5:], LAYOUTS))

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


NO_TOKEN, PREFIX = -1, 1000
"""Labels of constants, and of prefix token 0; text tokens have their own number."""


class Routes:
    """The number of the token that each element of each tensor belongs to, moved along with the data."""

    def __init__(self, simulator: Any):
        self.labels: dict[int, tuple[Tensor, Tensor]] = {}
        """By identity, with the tensor itself, so that no identity is used twice."""
        self.crossed: Counter[str] = Counter()
        self.followed = 0
        """Inputs of primitives that held data of tokens."""
        for tokens in simulator.prefix.values():
            self.set(tokens, PREFIX)

    def of(self, tensor: Tensor) -> Tensor:
        found = self.labels.get(id(tensor))
        return torch.full_like(tensor, NO_TOKEN, dtype=torch.long) if found is None else found[1]

    def set(self, tensor: Tensor, first: int | Tensor) -> None:
        """Number the rows: from `first` on, or as given; a single row stands for every token."""
        label = torch.empty_strided(tensor.size(), tensor.stride(), dtype=torch.long)
        if isinstance(first, Tensor):
            label.copy_(first)
        elif tensor.dim() < 2 or tensor.shape[-2] == 1:
            label.fill_(NO_TOKEN)
        else:
            label.copy_(first + torch.arange(tensor.shape[-2])[:, None])
        self.labels[id(tensor)] = tensor, label

    def move(self, name: str, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Do to the labels what was done to the data."""
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if not outputs or not outputs[0].is_floating_point():
            return
        if name in ("zeros", "zeros_like", "new_zeros"):
            return
        if name == "add":
            left, right = torch.broadcast_tensors(self.of(args[0]), self.of(args[1]))
            if bool(((left != right) & (left >= 0) & (right >= 0)).any()):
                self.crossed["add"] += 1
            self.set(result, torch.maximum(left, right))
        elif name == "sum":
            of_pieces = self.of(args[0])
            total = of_pieces.amax(1, keepdim=True)
            if bool(((of_pieces != total) & (of_pieces >= 0)).any()):
                self.crossed["sum"] += 1
            self.set(result, total if len(args) > 2 and args[2] else total.squeeze(1))
        elif name == "fill_":
            self.of(args[0]).fill_(NO_TOKEN)
        elif name == "constant_pad_nd":
            self.set(result, func(self.of(args[0]), args[1], NO_TOKEN))
        else:
            known = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
            for tensor in known:
                self.labels.setdefault(id(tensor), (tensor, self.of(tensor)))
            moved = func(*tree_map(self._label, args), **{k: v for k, v in kwargs.items() if k != "dtype"})
            for tensor, label in zip(outputs, (x for x in tree_leaves(moved) if isinstance(x, Tensor)), strict=True):
                self.labels[id(tensor)] = tensor, label

    def _label(self, leaf: Any) -> Any:
        return self.of(leaf) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    def enter(self, primitive: nn.Module, args: Any) -> None:
        """What a primitive is given must stand where its token does."""
        for tensor in (leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor) and leaf.is_floating_point()):
            label = self.of(tensor)
            if tensor.dim() == 2:  # rows of chosen tokens, side by side
                continue
            rows = torch.arange(tensor.shape[-2])[:, None]
            self.followed += int((label != NO_TOKEN).any())
            if not any(bool(((label == home) | (label == NO_TOKEN)).all()) for home in (rows, rows + PREFIX)):
                self.crossed[type(primitive).__name__] += 1

    def leave(self, primitive: nn.Module, args: Any, output: Any) -> None:
        """What a primitive gives stands in the rows of the tokens that asked; all others keep their tokens."""
        given = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        first = 0
        if isinstance(primitive, Attention):
            query = getattr(primitive.query, "positional", None)
            first = PREFIX if isinstance(query, Positional) and not args[0] else 0
        elif isinstance(primitive, FixedGate) or any(bool((self.of(tensor) >= PREFIX).any()) for tensor in given):
            first = PREFIX  # a fixed gate sends one sum to every prefix token, and lets it pass at the row's own place
        for tensor in (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)):
            chosen = tensor.dim() == 2
            self.set(tensor, self.of(given[0])[:, :1].expand_as(tensor) if chosen else first)


class Watch(TorchDispatchMode):
    """Notes which operations run outside of every primitive, where they move data, and which memory is read by any."""

    def __init__(self, simulator: Any):
        super().__init__()
        self.depth = 0
        self.inside: Counter[str] = Counter()
        self.outside: Counter[str] = Counter()
        self.read: set[int] = set()
        self.routes = Routes(simulator)
        self.undeclared: Counter[str] = Counter()
        self._module: nn.Module | None = None
        self._own: dict[int, Tensor] = {}
        """Memory that the running module may read, with a tensor that keeps it alive."""
        self.handles = [
            handle
            for module in simulator.modules()
            for enter, leave in self._hooks(module)
            for handle in (module.register_forward_pre_hook(enter), module.register_forward_hook(leave))
        ]

    def _hooks(self, module: nn.Module) -> Iterator[tuple[Any, Any]]:
        if isinstance(module, Primitive):
            yield self._enter, self._leave
        elif isinstance(module, Module):
            yield self._begin, self._end

    def _enter(self, primitive: nn.Module, args: Any) -> None:
        if self.depth == 0:
            with _disable_current_modes():
                self.routes.enter(primitive, args)
        self.depth += 1

    def _leave(self, primitive: nn.Module, args: Any, output: Any) -> None:
        self.depth -= 1
        if self.depth == 0:
            with _disable_current_modes():
                self.routes.leave(primitive, args, output)

    def _begin(self, module: Module, args: Any) -> None:
        if self._module is not None:  # a module inside of another computes with what that one may read
            return
        # Behind the declared regions come the prefix tokens, or what is given with the input.
        regions, beyond = len(module.regions.given), [arg for arg in args if not isinstance(arg, Tensor)]
        unread = 1 if len(args) == 5 and regions == 3 else 0  # values, where the scores are constants
        assert len(args) - regions - unread <= 1 and len(beyond) <= 1, type(module).__name__
        given = [*args, *(value for arg in beyond if arg is not None for value in vars(arg).values())]
        tensors = [*given[:regions], *given[regions + unread :], *module.parameters()]
        self._module, self._own = module, {memory(each): each for each in tensors if isinstance(each, Tensor)}

    def _end(self, module: Module, args: Any, output: Any) -> None:
        if module is self._module:
            self._module, self._own = None, {}

    @contextmanager
    def left_out(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        self.read |= {memory(leaf) for leaf in inputs}
        if self._module is not None:
            strange = [leaf for leaf in inputs if memory(leaf) not in self._own and leaf.numel() > 1]
            self.undeclared[f"{type(self._module).__name__}: {name}"] += len(strange)
        result = func(*args, **kwargs)
        if self._module is not None:
            self._own |= {memory(leaf): leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        if self.depth:
            self.inside[name] += 1
        elif is_movement_or_residual(name, args, kwargs):
            self.routes.move(name, func, args, kwargs, result)
        elif holds_more_than_a_number(result):
            self.outside[f"{name}{[a for a in args if not isinstance(a, Tensor)]}"] += 1
        return result

    def assert_clean(self) -> None:
        assert self.outside == {}
        assert self.routes.crossed == {} and self.routes.followed > 200
        assert +self.undeclared == {}


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
    for name in ("loss_inputs", "moving"):
        monkeypatch.setattr(SimulatorExecutor, name, leave_out(getattr(SimulatorExecutor, name)))
    num_training = SimulatorExecutor.__dict__["num_training"].func
    monkeypatch.setattr(SimulatorExecutor, "num_training", property(leave_out(num_training)))
    monkeypatch.setattr(output, "token_loss", leave_out(output.token_loss))
    given = {key: value for key, value in batch.items() if key != "input_ids"}
    prepared = Batch.of(simulator.auxiliary, batch["input_ids"], **given)
    for name in ("targets", "train_positions", "last_step", "evaluation_positions", "positions"):
        getattr(prepared, name)
    everywhere = torch.ones_like(prepared.evaluation_positions)
    with watch:
        simulator.run(prepared, logits_at=everywhere, before=False)
    assert watch.depth == 0
    for handle in watch.handles:
        handle.remove()
    return watch


@pytest.mark.parametrize(("case", "layout"), FEWER)
def test_only_primitives_and_the_prefix_own_parameters(case: tuple[str, str], layout: str) -> None:
    name, rule = case
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


@pytest.mark.parametrize(("case", "layout"), FEWER)
def test_outside_of_primitives_data_only_moves(
    case: tuple[str, str], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, rule = case
    simulator = tint.build(make_model(name), make_rule(rule, steps=2), layout=layout)
    watch = watched(simulator, make_batch(), monkeypatch)
    watch.assert_clean()
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
    watch.assert_clean()
    assert watch.inside["bmm"] > 20


@pytest.mark.parametrize("layout", some(LAYOUTS))
def test_momentum_decay_and_rates_compute_in_primitives_too(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = tint.build(make_model("gpt2"), make_rule("full", steps=2, **DESCENTS["all"]), layout=layout)
    watched(simulator, with_steps(make_batch(), 2, idle=(1, 2)), monkeypatch).assert_clean()


def test_the_watch_sees_arithmetic_outside_of_primitives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: a residual that scales by hand is found, by a number as well, and a sum over coordinates."""
    simulator = tint.build(make_model("gpt2"), make_rule("default"))
    honest = SimulatorExecutor.add
    monkeypatch.setattr(SimulatorExecutor, "add", lambda self, terms: honest(self, [_scaled(terms[0]), *terms[1:]]))
    watch = watched(simulator, make_batch(), monkeypatch)
    assert {name.split("[")[0] for name in watch.outside} == {"mul", "sum"}


def test_the_watch_sees_a_shift_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that moves every token one place on, without any arithmetic."""

    def shifted(self: Any, x: Tensor) -> Tensor:
        return self.activation(torch.cat((x[:, :, :1], x[:, :, :-1]), dim=2))

    monkeypatch.setattr(ActivationForward, "forward", shifted)
    watch = watched(tint.build(make_model("gpt2"), make_rule("default")), make_batch(), monkeypatch)
    assert watch.outside == {} and watch.routes.crossed["Activation"] > 0


def test_the_watch_sees_a_value_that_no_region_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that reads what another one has left in a dictionary; tokens and arithmetic are in order."""
    left: dict[str, Tensor] = {}
    honest = LinearForward.forward

    def leaving(self: Any, x: Tensor, prefix: Tensor) -> Tensor:
        left["x"] = honest(self, x, prefix)
        return left["x"].clone()

    monkeypatch.setattr(LinearForward, "forward", leaving)
    monkeypatch.setattr(ActivationForward, "forward", lambda self, x: self.activation(left["x"]))
    watch = watched(tint.build(make_model("gpt2"), make_rule("default")), make_batch(), monkeypatch)
    assert watch.outside == {} and watch.routes.crossed == {}
    assert {name.split(":")[0] for name, number in watch.undeclared.items() if number} == {"ActivationForward"}


def _scaled(tokens: Any) -> Any:
    tokens.data.sum(-1)
    return tokens.like(tokens.data * tokens.data.mean())


@pytest.mark.parametrize(("name", "rule"), some(CASES, 4))
def test_every_constructed_tensor_is_read_and_none_of_the_auxiliary(
    name: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted as a parameter takes part, and nothing is borrowed from the model behind the simulator's back.

    Only the paper's layout has weights that stand idle.
    """
    simulator = tint.build(make_model(name), make_rule(rule))
    # Whether the model has changed since is asked before a pass, and is no part of it.
    monkeypatch.setattr(CopiedWeights, "changed", lambda self: False)
    watch = watched(simulator, make_batch(), monkeypatch)
    unread = [path for path, parameter in simulator.named_parameters() if memory(parameter) not in watch.read]
    assert unread == []
    own = {memory(parameter) for parameter in simulator.parameters()}
    model = simulator.auxiliary.model
    theirs = [*model.named_parameters(), *model.named_buffers()]
    assert [path for path, tensor in theirs if memory(tensor) in watch.read - own] == []


@pytest.mark.parametrize(("name", "rule"), some(CASES, 4))
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
    simulator = tint.build(model, make_rule(rule))
    # Once it is built, and with no look at what has changed since: a model whose modules are hooked is refused.
    monkeypatch.setattr(ModelRecord, "changes", lambda self: iter(()))
    own = set(model.modules())
    called = nn.modules.module.register_module_forward_pre_hook(
        lambda module, _inputs: forbidden() if module in own else None
    )
    outputs: list[Tensor] = []

    def look(_module: nn.Module, inputs: Any, output: Any) -> None:
        assert not torch.is_grad_enabled()
        outputs.extend(leaf for leaf in tree_leaves((inputs, output)) if isinstance(leaf, Tensor))

    for module in simulator.modules():
        if module is not simulator:
            module.register_forward_hook(look)
    try:
        with torch.enable_grad():
            out = call(simulator, make_batch())
    finally:
        called.remove()
    assert torch.equal(out.logits, expected.logits)
    assert len(outputs) > 100 and not any(tensor.requires_grad for tensor in outputs)
    assert not any(parameter.requires_grad for parameter in simulator.parameters())


@pytest.mark.parametrize(("case", "layout"), FEWER)
def test_a_pass_leaves_every_parameter_as_it_was(case: tuple[str, str], layout: str) -> None:
    name, rule = case
    simulator = tint.build(make_model(name), make_rule(rule, steps=2), layout=layout)
    before = {path: (parameter.clone(), parameter._version) for path, parameter in simulator.named_parameters()}
    out = call(simulator, make_batch(), before=True)
    assert not torch.equal(out.logits, out.logits_before)
    after = dict(simulator.named_parameters())
    assert after.keys() == before.keys()
    for path, (value, version) in before.items():
        assert torch.equal(after[path], value) and after[path]._version == version, path
