# pyright: basic
"""Every module against the mathematics of its op, on random numbers: forward, backward and descent."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from cases import FIRST, assert_same, call, make_batch, make_model, make_rule, some, swept
from torch import Tensor

import tintformer as tint
from tintformer.auxiliary.activations import FUNCTIONS
from tintformer.auxiliary.ops import Activation, Alibi, Attend, Linear, Norm, Product, Rotary, Weight
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.rule import activation, attention, linear, norm
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator import prefix
from tintformer.simulator.geometry import Geometry
from tintformer.simulator.layouts import Layout
from tintformer.simulator.module_factory import ModuleFactory
from tintformer.simulator.modules.self_attention import AttentionInputs
from tintformer.simulator.primitives import attention as forms
from tintformer.simulator.regions import Cut, PieceStream
from tintformer.simulator.simulator_executor import SimulatorExecutor
from tintformer.simulator.wiring import WiredOp

CLOSE = {"rtol": 0, "atol": 1e-12}
RATE = 0.05
GEOMETRIES = {
    "lean": Geometry(layout="lean", dim_aux=10, stack=3, shards=3, slots=17, max_tokens=16),
    "lean-alone": Geometry(layout="lean", dim_aux=10, stack=1, shards=1, slots=17, max_tokens=16),
    "paper": Geometry(layout="paper", dim_aux=10, stack=3, shards=2, slots=17, max_tokens=16),
    "paper-unsharded": Geometry(layout="paper", dim_aux=10, stack=4, shards=1, slots=17, max_tokens=16),
}
SCHEMES = [
    ("exact", "fixed", None),
    *itertools.product(["first_order", "central"], ["fixed", "relative"], [1e-2]),
]
"""How a gradient passes: scheme, mode of the step, step."""


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(op: Any, cuts: tuple[Cut, Cut], g: Geometry, rule: LearningRule, **knobs: Any) -> tuple[Any, WiredOp]:
    """The modules of one op, as the simulator has them."""
    wired = WiredOp(op=op, into=cuts[0], out=cuts[1], keys=knobs.pop("keys", cuts[0]), role=op.name, block=0)
    how: dict[str, Any] = {"weigh": forms.linear, "transposition": "scores", **knobs}
    factory = ModuleFactory(layout=Layout(g), rule=rule, dtype=torch.float64, first_trained=0, **how)
    return factory.make(wired, None).double(), wired


def laid_out(value: Tensor, cut: Cut, g: Geometry) -> Tensor:
    return PieceStream.of(value, cut, g.dim_slot).data


def plain(data: Tensor, cut: Cut) -> Tensor:
    """What the pieces hold; beyond it everything must be zero."""
    tokens = PieceStream(data, cut)
    assert torch.equal(laid_out_again(tokens), data), "padding is not zero"
    return tokens.plain()


def laid_out_again(tokens: PieceStream) -> Tensor:
    return PieceStream.of(tokens.plain(), tokens.cut, tokens.data.shape[-1]).data


@pytest.mark.parametrize("g", GEOMETRIES.values(), ids=GEOMETRIES)
@pytest.mark.parametrize(("num_in", "num_out"), [(10, 10), (7, 10), (10, 3), (23, 10), (10, 34), (21, 30)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear(num_in: int, num_out: int, has_bias: bool, g: Geometry) -> None:
    weight = Weight(name="w", source=randn(num_out, num_in, seed=0))
    bias = Weight(name="b", source=randn(num_out, seed=1)) if has_bias else None
    into, out = Cut(num_in, 10), Cut(num_out, 10)
    modules, wired = make(
        Linear(name="layer", weight=weight, bias=bias), (into, out), g, LearningRule(learning_rate=RATE)
    )
    tokens: Any = prefix.write(wired, g, torch.float64)
    x, dy = randn(2, 5, num_in, seed=2), randn(2, 5, num_out, seed=3)
    x_pieces, dy_pieces = laid_out(x, into, g), laid_out(dy, out, g)
    y = plain(modules.forward_module(x_pieces, tokens), out)
    torch.testing.assert_close(y, linear.forward(x, weight.source, bias and bias.source), **CLOSE)
    dx = plain(modules.backward_module(dy_pieces, tokens), into)
    torch.testing.assert_close(dx, linear.backward(dy, weight.source), **CLOSE)
    moved = modules.descent_module(dy_pieces, x_pieces, tokens)
    assert len(moved) == 2, "every sequence has a prefix of its own"
    for row in range(2):
        change = prefix.read(wired, moved[row : row + 1] - tokens, g)
        torch.testing.assert_close(change[weight], -RATE * linear.weight_gradient(x, dy)[row], **CLOSE)
        if bias is not None:
            torch.testing.assert_close(change[bias], -RATE * linear.bias_gradient(dy)[row], **CLOSE)
    # With its own prefix each sequence goes on.
    again = plain(modules.forward_module(x_pieces, moved), out)
    weights = weight.source - RATE * linear.weight_gradient(x, dy)
    biases = None if bias is None else bias.source - RATE * linear.bias_gradient(dy)
    torch.testing.assert_close(again, linear.forward(x, weights, biases), rtol=0, atol=1e-11)


NORMS = [
    *itertools.product(["layer", "rms"], [(10, 1, 10)], ["scale", "bias", "scale bias", ""]),
    *itertools.product(["layer", "rms"], [(9, 1, 10), (8, 2, 8), (20, 5, 8), (6, 2, 9), (4, 4, 10)], ["scale bias"]),
    ("rms", (20, 4, 10), "scale"),
]
"""Kind; width, groups and step of the cut (groups never straddle pieces); what the norm holds."""


def make_norm(kind: Any, width: int, groups: int, holds: str) -> Norm:
    size = width // groups
    weights: dict[str, Any] = {
        name: Weight(name=name, source=(name == "scale") + 0.3 * randn(size, seed=seed))
        for seed, name in enumerate(("scale", "bias"))
        if name in holds
    }
    return Norm(name="norm", kind=kind, epsilon=1e-2, num_groups=groups, **weights)


@pytest.mark.parametrize("g", some(list(GEOMETRIES.values()), keep=2), ids=GEOMETRIES)
@pytest.mark.parametrize(("kind", "shape", "holds"), NORMS)
def test_norm(kind: Any, shape: tuple[int, int, int], holds: str, g: Geometry) -> None:
    width, groups, step = shape
    op, cut = make_norm(kind, width, groups, holds), Cut(width, step)
    rule = LearningRule(learning_rate=RATE, update_norm_scale=True)
    modules, wired = make(op, (cut, cut), g, rule)
    tokens: Any = prefix.write(wired, g, torch.float64)
    scale, bias = (weight and weight.source for weight in (op.scale, op.bias))
    x, dy = randn(2, 5, width, seed=3), randn(2, 5, width, seed=4)
    pieces = laid_out(dy, cut, g), laid_out(x, cut, g)
    by_group, dy_by_group = norm.cut(x, groups), norm.cut(dy, groups)
    y = PieceStream(modules.forward_module(pieces[1], tokens), cut).plain()
    expected = norm.forward(by_group, scale, bias, kind=kind, epsilon=1e-2).view_as(x)
    torch.testing.assert_close(y, expected, **CLOSE)
    for scheme, mode, step_size in SCHEMES:
        other = LearningRule(learning_rate=RATE, norm_gradient=scheme, epsilon=step_size, epsilon_mode=mode)
        back = make(op, (cut, cut), g, other)[0].backward_module
        dx = norm.backward(
            by_group, dy_by_group, scale, kind=kind, epsilon=1e-2, scheme=scheme, step=step_size or 0.0, mode=mode
        )
        torch.testing.assert_close(plain(back(*pieces, tokens), cut), dx.view_as(x), rtol=0, atol=1e-11)
    if not holds:
        assert tokens is None and modules.descent_module is None
        return
    moved = modules.descent_module(*pieces, tokens)
    for row in range(2):
        change = prefix.read(wired, moved[row : row + 1] - tokens, g)
        if op.scale is not None:
            expected = norm.scale_gradient(by_group, dy_by_group, kind=kind, epsilon=1e-2)[row]
            torch.testing.assert_close(change[op.scale], -RATE * expected, **CLOSE)
        if op.bias is not None:
            torch.testing.assert_close(change[op.bias], -RATE * norm.bias_gradient(dy_by_group)[row], **CLOSE)


@pytest.mark.parametrize("g", GEOMETRIES.values(), ids=GEOMETRIES)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_frozen_scale_does_not_move(groups: int, g: Geometry) -> None:
    op: Any = make_norm("layer", 8, groups, "scale bias")
    cut = Cut(8, 8)
    modules, wired = make(op, (cut, cut), g, LearningRule(learning_rate=RATE))
    tokens: Any = prefix.write(wired, g, torch.float64)
    pieces = laid_out(randn(2, 5, 8, seed=0), cut, g), laid_out(randn(2, 5, 8, seed=1), cut, g)
    change = prefix.read(wired, (modules.descent_module(*pieces, tokens) - tokens)[:1], g)
    assert bool((change[op.scale] == 0).all())
    assert float(change[op.bias].abs().min()) > 0


@pytest.mark.parametrize("width", [10, 3, 24])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_activation(function: str, width: int) -> None:
    g, cut = GEOMETRIES["lean"], Cut(width, 10)
    op = Activation(name="act", function=function)
    x, dy = 2 * randn(2, 5, width, seed=0), randn(2, 5, width, seed=1)
    dy[0, 3] = 0  # a token without gradient divides nothing
    pieces = laid_out(dy, cut, g), laid_out(x, cut, g)
    for scheme, mode, step in SCHEMES:
        rule = LearningRule(learning_rate=RATE, activation_gradient=scheme, epsilon=step, epsilon_mode=mode)
        modules, _ = make(op, (cut, cut), g, rule)
        y = plain(modules.forward_module(pieces[1]), cut)
        torch.testing.assert_close(y, activation.forward(x, function=function), **CLOSE)
        expected = activation.backward(x, dy, function=function, scheme=scheme, step=step or 0.0, mode=mode)
        dx = plain(modules.backward_module(*pieces), cut)
        torch.testing.assert_close(dx, expected, rtol=0, atol=1e-11)
        assert modules.descent_module is None and bool((dx[0, 3] == 0).all())


@pytest.mark.parametrize("width", [10, 24])
def test_product(width: int) -> None:
    g, cut = GEOMETRIES["lean"], Cut(width, 10)
    modules, _ = make(Product(name="p"), (cut, cut), g, LearningRule(learning_rate=RATE))
    left, right, dy = (randn(2, 5, width, seed=seed) for seed in range(3))
    pieces = [laid_out(value, cut, g) for value in (dy, left, right)]
    torch.testing.assert_close(plain(modules.forward_module(*pieces[1:]), cut), left * right, **CLOSE)
    gradients = modules.backward_module(*pieces)
    torch.testing.assert_close(plain(gradients[0], cut), dy * right, **CLOSE)
    torch.testing.assert_close(plain(gradients[1], cut), dy * left, **CLOSE)


def make_position(scheme: str, num_heads: int, head_dim: int) -> Rotary | Alibi | None:
    frequencies = torch.tensor([1.0, 0.3, 0.1][: head_dim // 2])
    match scheme:
        case "rotary":
            return Rotary(inverse_frequencies=frequencies)
        case "partial-interleaved":
            return Rotary(inverse_frequencies=frequencies[:1], scaling=1.3, interleaved=True)
        case "alibi":
            return Alibi(slopes=torch.tensor([0.5, 0.25, 0.1, 0.05])[:num_heads])
        case _:
            return None


HEADS = {
    "one-a-piece": (4, 4, 6, 6),
    "two-a-piece": (4, 4, 5, 10),
    "grouped": (4, 2, 5, 10),
    "one-key-and-a-rest": (3, 1, 5, 10),
}
"""Heads, heads of keys and values, width of a head, coordinates of a piece."""
ATTENTION: dict[str, dict[str, Any]] = {
    "value": {},
    "fixed": {"epsilon_mode": "fixed"},
    "relative": {"epsilon_mode": "relative"},
}


def make_attention_inputs(window: int | None) -> tuple[AttentionInputs, Tensor]:
    """Two sequences of seven tokens: one in two segments, one with padding on the left."""
    batch = Batch.of(
        tint.load(make_model("gpt2")),
        torch.full((2, 7), 3),
        train_mask=torch.ones(2, 7, dtype=torch.bool),
        attention_mask=torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]]),
        segment_ids=torch.tensor([[-1, 0, 0, 0, 1, 1, 1], [0] * 7]),
    )
    mask = batch.additive_mask(torch.float64, window)
    return AttentionInputs(mask[:, None, None, None], batch.positions), mask


@pytest.mark.parametrize("layout", some(["lean", "paper"]))
@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(
    ("position", "window"),
    [("none", None), ("rotary", None), ("partial-interleaved", None), ("alibi", None), ("rotary", 3), ("alibi", 2)],
)
def test_attention(position: str, window: int | None, heads: str, kind: str, layout: str) -> None:
    g = GEOMETRIES[layout]
    num_heads, num_keys, head_dim, step = HEADS[heads]
    where_from = make_position(position, num_heads, head_dim)
    op = Attend(
        name="a",
        num_heads=num_heads,
        num_key_value_heads=num_keys,
        head_dim=head_dim,
        scale=0.4,
        position=where_from,
        window=window,
    )
    scheme: Any = "value" if kind == "value" else "perturbed"
    rule = LearningRule(learning_rate=RATE, attention_gradient=scheme, epsilon=1e-2, **ATTENTION[kind])
    queries, keys = Cut(num_heads * head_dim, step), Cut(num_keys * head_dim, step)
    modules, _ = make(op, (queries, queries), g, rule, keys=keys)
    given, mask = make_attention_inputs(window)
    cuts = (queries, keys, keys)
    inputs = [randn(2, 7, cut.width, seed=seed) for seed, cut in enumerate(cuts)]
    dy = randn(2, 7, queries.width, seed=9)
    rotation = None
    if isinstance(where_from, Rotary):
        rotation = attention.rotation(where_from, given.positions, torch.float64)
    where = attention.AttentionContext(mask=mask[:, None, None], positions=given.positions, rotation=rotation)
    by_head = attention.split(inputs, op, where)
    pieces = [laid_out(value, cut, g) for value, cut in zip(inputs, cuts, strict=True)]
    y = plain(modules.forward_module(*pieces, given), queries)
    torch.testing.assert_close(y, attention.forward(by_head, op, where), **CLOSE)
    gradients = modules.backward_module(laid_out(dy, queries, g), *pieces, given)
    expected = attention.backward(by_head, dy, op, where, scheme=scheme, step=1e-2, mode=rule.epsilon_mode)
    for found, wanted, cut in zip(gradients, expected, cuts, strict=True):
        assert (found is None) == (wanted is None)
        if wanted is not None:
            torch.testing.assert_close(plain(found, cut), wanted, rtol=0, atol=1e-11)


STORED = ("gpt2", "llama", "bloom", "gpt_neo")


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *((name, "lean") for name in STORED),
        ("llama", "paper"),
        *swept((name, "lean") for name in FIRST if name not in STORED),
        *swept(itertools.product(["gpt2", "bloom"], ["paper"])),
    ],
)
def test_stored_scores_are_transposed_scores(name: str, layout: str) -> None:
    batch = make_batch(lengths=(7, 6))
    scores, stored = (
        call(tint.build(make_model(name), make_rule("default"), layout=layout, transposition=way), batch)
        for way in ("scores", "stored")
    )
    torch.testing.assert_close(stored.logits, scores.logits, **CLOSE)
    updates = stored.updates(0)
    assert sum(float(update.abs().sum()) for update in updates.values()) > 1e-3
    for parameter, update in scores.updates(0).items():
        torch.testing.assert_close(updates[parameter], update, **CLOSE)


def test_scores_that_do_not_fit_a_head_are_refused() -> None:
    simulator = tint.build(make_model("gpt2"), make_rule("default"), transposition="stored")
    assert simulator.geometry.dim_sim // 3 == 21
    message = "^23 tokens train but a head stores 21 scores: shorten the training part, or use transposition='scores'$"
    batch = make_batch(lengths=(24,))
    batch["train_mask"][:] = torch.arange(24) < 23
    with pytest.raises(tint.InputError, match=message):
        call(simulator, batch)
    batch["train_mask"][:] = torch.arange(24) < 21
    assert call(simulator, batch).logits.shape == (1, 24, 29)


def test_the_papers_layout_stores_scores_where_they_fit() -> None:
    """By default, and pass by pass: the length of a training part is known with the batch."""
    model, rule = make_model("gpt2"), make_rule("default")
    by_default, stored, scores = (
        tint.build(model, rule, layout="paper", transposition=way) for way in (None, "stored", "scores")
    )
    capacity: Any = by_default.store_capacity
    assert capacity == stored.store_capacity == 21 and scores.store_capacity is None
    for num_tokens, way, name in ((capacity, stored, "stored"), (capacity + 1, scores, "scores")):
        batch = make_batch(lengths=(24,))
        batch["train_mask"][:] = torch.arange(24) < num_tokens
        assert by_default.transposition_of(num_tokens) == way.transposition_of(num_tokens) == name
        found, wanted = call(by_default, batch), call(way, batch)
        assert_same(found.logits, wanted.logits)
        for parameter, update in wanted.updates(0).items():
            assert_same(found.updates(0)[parameter], update)
    lean = tint.build(model, rule)
    assert lean.store_capacity is None and lean.transposition_of(2) == "scores"


@pytest.mark.parametrize("layout", ["lean", "paper"])
def test_the_bias_behind_several_pieces_moves_once(layout: str) -> None:
    """fc2 reads four pieces; its bias stands in one of them. The authors' code moves it once a piece."""
    name, batch = "transformer.h.1.mlp.c_proj.bias", make_batch(lengths=(9,))
    simulator = tint.build(make_model("gpt2"), make_rule("default"), layout=layout)
    truth = call(tint.Tint(make_model("gpt2"), make_rule("default"), engine="oracle"), batch)
    assert simulator.wired["blocks.1.down"].into.count == 4
    torch.testing.assert_close(call(simulator, batch).updates()[name], truth.updates()[name], rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *itertools.product(["gpt2-odd", "llama-grouped", "bloom", "phi-grouped"], ["lean"]),
        *itertools.product(["gpt2-odd", "qwen3"], ["paper"]),
        *swept((name, "lean") for name in (*FIRST, "gemma-grouped") if name != "bloom"),
        *swept(itertools.product(["gpt2", "phi-grouped"], ["paper"])),
    ],
)
def test_padding_stays_exactly_zero(name: str, layout: str) -> None:
    """Three steps that move everything leave no trace beyond the coordinates of the auxiliary, in prefix or stream."""
    simulator = tint.build(make_model(name), make_rule("full", steps=3), layout=layout)
    streams: list[PieceStream] = []
    executor = Keeping(simulator, batch_of(simulator), streams)
    with torch.no_grad():
        walk.train_in_the_pass(executor, simulator.auxiliary, simulator.rule)
    assert len(streams) > 100
    for tokens in streams:
        assert torch.equal(laid_out_again(tokens), tokens.data)
    assert len(executor.updated_prefix) > 10
    for op_name, moved in executor.updated_prefix.items():
        wired = simulator.wired[op_name]
        weights = prefix.read(wired, moved[:1], simulator.geometry)
        copies = sum(value.numel() for value in weights.values())
        start: Any = simulator.prefix_of(wired.op)
        if isinstance(wired.op, Linear):
            assert int((moved[0] != 0).sum()) == copies
        else:
            assert bool((moved[0][start[0] == 0] == 0).all())


class Keeping(SimulatorExecutor):
    """Keeps every value and gradient that passes between modules."""

    def __init__(self, simulator: Any, batch: Batch, streams: list[PieceStream]):
        super().__init__(simulator, batch)
        self.streams = streams

    def forward(self, op: Any, inputs: Any) -> Any:
        y, saved = super().forward(op, inputs)
        self.streams.append(y)
        return y, saved

    def backward(self, op: Any, saved: Any, gradient: Any) -> Any:
        gradients = super().backward(op, saved, gradient)
        self.streams.extend(each for each in gradients if each is not None)
        return gradients


def batch_of(simulator: Any) -> Batch:
    batch = make_batch(padding="left")
    return Batch.of(simulator.auxiliary, batch.pop("input_ids"), **batch)


@pytest.mark.parametrize("layout", some(["lean", "paper"]))
@pytest.mark.parametrize("rule", ["default", "paper", "full", "central-fixed", "central-relative", "perturbed-fixed"])
@pytest.mark.parametrize("name", some(["qwen3", "gpt2"]))
def test_a_loss_masked_out_entirely_moves_the_prefix_by_exactly_zero(name: str, rule: str, layout: str) -> None:
    """Biases are zero here, so that not even a step of 1e-160 is lost in what it is added to."""
    model = copy.deepcopy(make_model(name))
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.mul_(not path.endswith("bias"))
    batch = make_batch(lengths=(9,))
    batch["loss_mask"] = torch.zeros_like(batch["train_mask"])
    simulator = tint.build(model, make_rule(rule), layout=layout)
    with pytest.warns(tint.TintWarning, match="no training target"):
        out = call(simulator, batch, before=True)
    updates = out.updates()
    assert len(updates) >= 10
    assert max(float(update.abs().max()) for update in updates.values()) == 0
    assert torch.equal(out.logits, out.logits_before)


def test_one_masked_sequence_of_a_batch_moves_by_exactly_zero() -> None:
    batch = make_batch()
    batch["loss_mask"] = torch.ones_like(batch["train_mask"])
    batch["loss_mask"][1] = False
    with pytest.warns(tint.TintWarning, match="row 1 has no training target"):
        out = call(tint.build(make_model("gpt2"), make_rule("full", steps=2)), batch, before=True)
    assert all(bool((update == 0).all()) for update in out.updates(1).values())
    assert any(bool((update != 0).any()) for update in out.updates(0).values())
