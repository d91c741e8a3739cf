# pyright: basic
"""The network is one stream and one list of layers: shown for every operation of a pass, layer by layer.

- A layer computes with the stream that it is given, with its own constants, and with what it has made of them since.
  It is given what the layer before it returned, between layers nothing is computed, and within one no tensor becomes a
  number of Python: so nothing survives between layers but the stream (`Reach`).
- Layers that are not attention act within a token: change one token, and no other changes.
- Attention is what a textbook calls so: each layer equals its dense form, which is four linear maps of the whole
  stream, positional terms, and a sum over all tokens (`dense_form`).
- Prefix tokens keep their text slots zero, and text tokens their weight slots, exactly, after every layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import DESCENTS, assert_same, call, make_batch, make_model, make_rule, some, swept
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tintformer as tint
from tintformer.execution.batch import Batch
from tintformer.network.attention_layers import LinearForward
from tintformer.network.dense import dense_form
from tintformer.network.layers import ActivationUnit, TokenLayer
from tintformer.network.stream import Stream

CASES = [
    ("gpt2", "default"),
    ("qwen3", "full"),
    ("bloom", "paper"),
    ("mistral", "norm-scale"),
    ("opt-350m-kind", "full"),
]


def make(name: str, rule: str = "default", layers: int | None = None, **knobs: Any) -> tuple[tint.Network, Batch, Any]:
    """A network, and a batch of three documents of different lengths, with its flags."""
    data = make_batch()
    learn = make_rule(rule, layers=layers)
    network = tint.compile(make_model(name), learn, max_tokens=data["input_ids"].shape[1], **knobs)
    batch = Batch.of(network.auxiliary, **data)
    return network, batch, network.flags(batch)


def tensors_of(e: Any) -> list[Tensor]:
    return [e] if isinstance(e, Tensor) else [*e.text, *e.prefix, *e.velocity, *e.base]


class Reach(TorchDispatchMode):
    """Every operation of a pass must be one of a part of it: of the embedding, of a layer or of the head.

    Those of a layer must read the layer's stream, its constants, or what the layer has made of them.
    """

    def __init__(self, network: tint.Network) -> None:
        super().__init__()
        self.network = network
        self.part: nn.Module | None = None
        self.stream: Any = None
        """What the last part has returned."""
        self.known: dict[int, Any] = {}
        """Memory within reach, kept so that no address is used twice."""
        self.operations = 0
        self.foreign: list[str] = []

    def enter(self, part: nn.Module, args: Any) -> None:
        self.part, self.known = part, {}
        if part is self.network.embed:
            return
        if args[0] is not self.stream:
            self.foreign.append(f"{type(part).__name__} is given another stream than the part before it returned")
        self.allow(tensors_of(args[0]))
        self.allow(part.parameters())

    def leave(self, part: nn.Module, args: Any, output: Any) -> None:
        self.part, self.stream = None, output

    def allow(self, tensors: Any) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self.known[storage._cdata] = storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.part is self.network.embed:
            return result  # it reads ids and flags, which come from outside
        self.operations += 1
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        reached = all(tensor.untyped_storage()._cdata in self.known for tensor in given)
        # A number of Python is no tensor: nobody could see where it is used.
        if self.part is None or not reached or func is torch.ops.aten._local_scalar_dense.default:
            self.foreign.append(f"{func} in {'no part' if self.part is None else type(self.part).__name__}")
        self.allow(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result


@contextmanager
def watched(network: tint.Network) -> Iterator[Reach]:
    reach = Reach(network)
    hooks = [
        handle
        for part in (network.embed, *network.layers, network.head)
        for handle in (part.register_forward_pre_hook(reach.enter), part.register_forward_hook(reach.leave))
    ]
    try:
        with reach:
            yield reach
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize(
    ("case", "form"),
    [
        *((case, "structured") for case in CASES),
        (("mistral", "norm-scale"), "dense"),
        *swept((case, "dense") for case in CASES if case[0] != "mistral"),
    ],
)
def test_a_layer_reads_the_stream_and_its_own_constants(case: tuple[str, str], form: str) -> None:
    network, batch, flags = make(*case, dense=form == "dense")
    with torch.no_grad(), watched(network) as reach:
        network(batch.input_ids, flags)
    assert reach.operations > len(network.layers) and reach.foreign == []


def test_a_value_kept_beside_the_stream_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    network, batch, flags = make("gpt2")
    kept: dict[str, Tensor] = {}

    def keep(self: Any, *regions: Tensor) -> Any:
        kept.setdefault("x", regions[0] * 1)
        return [kept["x"] * 0 + self.unit(x) for x in regions]

    monkeypatch.setattr(ActivationUnit, "compute", keep)
    with torch.no_grad(), watched(network) as reach:
        network(batch.input_ids, flags)
    assert reach.foreign and all("ActivationUnit" in line for line in reach.foreign)


def test_a_number_of_python_kept_beside_the_stream_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    network, batch, flags = make("gpt2")
    kept: dict[str, float] = {}

    def keep(self: Any, *regions: Tensor) -> Any:
        kept.setdefault("x", float(regions[0].sum()))
        return [self.unit(x) + kept["x"] for x in regions]

    monkeypatch.setattr(ActivationUnit, "compute", keep)
    with torch.no_grad(), watched(network) as reach:
        network(batch.input_ids, flags)
    assert reach.foreign and all("_local_scalar_dense" in line for line in reach.foreign)


@pytest.mark.parametrize("sabotage", ["kept", "shifted"])
def test_what_happens_between_layers_is_found(monkeypatch: pytest.MonkeyPatch, sabotage: str) -> None:
    network, batch, flags = make("gpt2")

    def run(self: tint.Network, input_ids: Tensor, flags: Any) -> Any:
        e, kept = self.embed(input_ids, flags), {}
        for number, layer in enumerate(self.layers):
            e = layer(e)
            if number == 5:
                kept["e"] = e.text if sabotage == "kept" else tuple(torch.cat((x[:, 1:], x[:, :1]), 1) for x in e.text)
            elif number == 20:  # nothing is computed: an older text stands in the stream
                e = replace(e, text=(kept["e"][0], *e.text[1:]))
        return e

    monkeypatch.setattr(tint.Network, "run", run)
    with torch.no_grad(), watched(network) as reach:
        network(batch.input_ids, flags)
    assert any("another stream" in line for line in reach.foreign)
    assert any("cat.default in no part" in line for line in reach.foreign) == (sabotage == "shifted")


def steps_of(network: tint.Network, batch: Batch, flags: Any) -> Iterator[tuple[Any, Stream, Stream]]:
    """Every layer, with the stream before and behind it."""
    e = network.embed(batch.input_ids, flags)
    for layer in network.layers:
        before, e = e, layer(e)
        yield layer, before, e


def mixed_by(layer: Any, e: Stream, behind: Stream) -> bool:
    """Whether changing one token changes what the layer adds to another."""
    token = 4
    other = [slot.clone() for slot in e.text]
    for slot in other:
        slot[:, token] += torch.randn_like(slot[:, token])
    changed = layer(Stream(tuple(other), e.prefix))
    rest = torch.arange(other[0].shape[1]) != token
    return any(
        not torch.equal(now[:, rest], then[:, rest]) for now, then in zip(changed.text, behind.text, strict=True)
    )


@pytest.mark.parametrize(("name", "rule"), CASES)
@torch.no_grad()
def test_only_attention_carries_anything_to_another_token(name: str, rule: str) -> None:
    network, batch, flags = make(name, rule)
    kinds: set[type] = set()
    for layer, before, behind in steps_of(network, batch, flags):
        if isinstance(layer, TokenLayer):
            assert not mixed_by(layer, before, behind), layer
            assert before.prefix is behind.prefix
            kinds.add(type(layer))
    assert len(kinds) >= 4


@torch.no_grad()
def test_a_shift_of_tokens_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    network, batch, flags = make("gpt2")
    monkeypatch.setattr(
        ActivationUnit, "compute", lambda self, *regions: [torch.cat((x[:, 1:], x[:, :1]), dim=1) for x in regions]
    )
    found = [
        mixed_by(layer, before, behind)
        for layer, before, behind in steps_of(network, batch, flags)
        if isinstance(layer, ActivationUnit)
    ]
    assert found and all(found)


@pytest.mark.parametrize(("name", "rule"), some(CASES, 3))
@pytest.mark.parametrize("layers", some([1, None]))
@torch.no_grad()
def test_every_layer_is_the_one_of_a_textbook(name: str, rule: str, layers: int | None) -> None:
    assert_textbook(*make(name, rule, layers))


@torch.no_grad()
def test_momentum_and_decay_are_layers_of_a_textbook_too() -> None:
    rule = make_rule("default", steps=2, layers=1, **DESCENTS["all"])
    network = tint.compile(make_model("gpt2"), rule, max_tokens=11)
    batch = Batch.of(network.auxiliary, **make_batch())
    assert network.frame.weight_slots == 3 * network.frame.stack
    assert_textbook(network, batch, network.flags(batch))


def assert_textbook(network: tint.Network, batch: Batch, flags: Any) -> None:
    frame, weights = network.frame, network.frame.weight_slots * network.frame.width
    for layer, before, behind in steps_of(network, batch, flags):
        e = behind.pack()
        assert e.shape == (3, frame.length, frame.dim)
        assert_same(dense_form(layer, frame, network.dtype)(before.pack()), e, times=100)
        # Prefix tokens have nothing in the text slots, text tokens nothing in the weight slots: exactly.
        assert not e[:, : frame.num_prefix, weights:].any() and not e[:, frame.num_prefix :, :weights].any()


@torch.no_grad()
def test_a_shift_inside_of_an_attention_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    network, batch, flags = make("gpt2")
    run = LinearForward.forward

    def shifted(self: Any, e: Stream) -> Stream:
        return run(self, Stream(tuple(torch.cat((x[:, 1:], x[:, :1]), dim=1) for x in e.text), e.prefix))

    monkeypatch.setattr(LinearForward, "forward", shifted)
    layer, before, behind = next(step for step in steps_of(network, batch, flags) if isinstance(step[0], LinearForward))
    assert not torch.allclose(dense_form(layer, network.frame, network.dtype)(before.pack()), behind.pack())


@torch.no_grad()
def test_packing_loses_nothing() -> None:
    network, batch, flags = make("llama")
    e = network.run(batch.input_ids, flags)
    back = Stream.unpack(e.pack(), network.frame)
    assert all(map(torch.equal, back.text, e.text))
    assert all(torch.equal(one, other.expand_as(one)) for one, other in zip(back.prefix, e.prefix, strict=True))


@torch.no_grad()
def test_nothing_of_the_network_changes_and_two_passes_are_equal() -> None:
    network, batch, flags = make("llama", "full")
    before = {name: parameter.clone() for name, parameter in network.named_parameters()}
    first, second = network(batch.input_ids, flags), network(batch.input_ids, flags)
    assert torch.equal(first, second)
    assert all(torch.equal(before[name], parameter) for name, parameter in network.named_parameters())


@torch.no_grad()
def test_every_document_has_its_own_updated_prefix() -> None:
    network, batch, flags = make("gpt2")
    e = network.run(batch.input_ids, flags)
    moved = [block for block in e.prefix if len(block) == 3]
    assert moved
    for block in moved:
        assert not any(torch.equal(block[i], block[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    truth = call(tint.Tint(make_model("gpt2"), make_rule("default"), engine="oracle"), make_batch())
    for row in range(3):
        for name, update in truth.updates(row).items():
            assert_same(network.updates(e, row)[name], update)
