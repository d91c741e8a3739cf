# pyright: basic
"""Both layouts, any stack, any width: the same numbers, from integers that are all derived."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from cases import MODELS, TOKENS, VOCABULARY, call, covering, make_batch, make_model, make_rule, some

import tintformer as tint
from tintformer.simulator import prefix
from tintformer.simulator.geometry import Geometry, derive
from tintformer.simulator.primitives.attention import Port
from tintformer.simulator.wiring import wire

LAYOUTS = ["lean", "paper"]
STACKS = [1, 2, 3, 4, 6]
FAMILIES = ["gpt2", "llama-grouped", "qwen3", "gemma-grouped"]


def _llama(kind: str = "Llama", **knobs: Any) -> Any:
    shape = {"num_hidden_layers": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
    config = getattr(transformers, f"{kind}Config")
    model = getattr(transformers, f"{kind}ForCausalLM")
    return model(config(vocab_size=VOCABULARY, max_position_embeddings=32, **TOKENS, **shape, **knobs))


def _gpt2(**knobs: Any) -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCABULARY, n_layer=2, n_positions=32, **TOKENS, **knobs)
    )


ODD = {
    "gpt2-14-13": lambda: _gpt2(n_embd=14, n_head=2, n_inner=13),
    "gpt2-22-31": lambda: _gpt2(n_embd=22, n_head=11, n_inner=31),
    "gpt2-26-53": lambda: _gpt2(n_embd=26, n_head=13, n_inner=53),
    "llama-29": lambda: _llama(hidden_size=10, intermediate_size=29, num_attention_heads=5, num_key_value_heads=5),
    "llama-heads-that-leave-a-rest": lambda: _llama(
        hidden_size=15, intermediate_size=7, num_attention_heads=5, num_key_value_heads=5, head_dim=6, mlp_bias=True
    ),
    "llama-heads-wider-than-the-stream": lambda: _llama(
        hidden_size=10, intermediate_size=11, num_attention_heads=5, num_key_value_heads=1, head_dim=14
    ),
    "llama-keys-in-one-piece": lambda: _llama(
        hidden_size=9,
        intermediate_size=40,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=8,
        attention_bias=True,
    ),
    "qwen3-norms-that-leave-a-rest": lambda: _llama(
        "Qwen3", hidden_size=10, intermediate_size=23, num_attention_heads=5, num_key_value_heads=5, head_dim=4
    ),
}
"""Widths that divide by nothing: streams, layers and heads that never fill their last piece."""


@cache
def make_odd(name: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = ODD[name]().double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@cache
def truth(name: str, rule: str) -> Any:
    model = make_odd(name) if name in ODD else make_model(name)
    return call(tint.Tint(model, make_rule(rule), engine="oracle"), make_batch())


def assert_true(simulator: Any, expected: Any, tolerance: float = 1e-8) -> None:
    """Logits and every update of every sequence, as the oracle has them."""
    batch = make_batch()
    seen = batch["attention_mask"].bool()
    found = call(simulator, batch)
    torch.testing.assert_close(found.logits[seen], expected.logits[seen], rtol=0, atol=tolerance)
    for row in range(len(seen)):
        updates, expected_updates = found.updates(row), expected.updates(row)
        assert updates.keys() == expected_updates.keys()
        assert sum(float(update.abs().sum()) for update in expected_updates.values()) > 1e-3
        for name, update in updates.items():
            torch.testing.assert_close(
                update, expected_updates[name], rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize(("name", "shape"), covering(FAMILIES, list(itertools.product(LAYOUTS, STACKS))))
def test_any_stack_agrees_with_the_oracle(name: str, shape: tuple[str, int]) -> None:
    layout, stack = shape
    simulator = tint.build(make_model(name), make_rule("default"), layout=layout, stack=stack)
    assert_true(simulator, truth(name, "default"))


SHAPES = [("lean", 1), ("paper", 3), ("lean", 4), ("paper", 4), ("lean", 7)]


@pytest.mark.parametrize(("name", "shape"), covering(list(ODD), SHAPES))
def test_widths_that_divide_by_nothing(name: str, shape: tuple[str, int]) -> None:
    layout, stack = shape
    simulator = tint.build(make_odd(name), make_rule("default"), layout=layout, stack=stack)
    assert_true(simulator, truth(name, "default"))


@pytest.mark.parametrize(("name", "layout"), covering(list(ODD), LAYOUTS))
def test_odd_widths_with_every_parameter_free(name: str, layout: str) -> None:
    simulator = tint.build(make_odd(name), make_rule("full"), layout=layout, stack=3)
    assert_true(simulator, truth(name, "full"), 1e-6)


@pytest.mark.parametrize(("stack", "shards"), [(2, 2), (3, 3), (4, 3), (5, 2)])
def test_the_papers_layout_with_several_shards(stack: int, shards: int) -> None:
    """13 heads of the auxiliary allow rows to be read in several parts, and K = D~/S is then smaller than d."""
    simulator = tint.build(make_odd("gpt2-26-53"), make_rule("default"), layout="paper", stack=stack)
    assert simulator.geometry.shards == shards
    assert_true(simulator, truth("gpt2-26-53", "default"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_untied_blocks_compute_the_same(layout: str) -> None:
    tied, untied = (
        tint.build(make_model("qwen3"), make_rule("default"), layout=layout, tie_blocks=tie) for tie in (True, False)
    )
    first, second = call(tied, make_batch()), call(untied, make_batch())
    assert torch.equal(first.logits, second.logits)
    blocks = [key for key in tied.structure if key.startswith("block/")]
    assert len(untied.structure) == len(tied.structure) + len(blocks)
    assert untied.num_auxiliary == tied.num_auxiliary


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom", "gptj", "opt", "gpt_neo", "qwen3", "phi"])
def test_a_tied_structure_does_not_grow_with_depth(name: str) -> None:
    kind, knobs = MODELS[name]
    count = {}
    for depth in (2, 4):
        more = {"n_layer": depth} if "n_layer" in knobs else {"num_hidden_layers": depth}
        if name == "gpt_neo":
            more = {"num_layers": depth, "attention_types": [[["global", "local"], depth // 2]]}
        config = getattr(transformers, f"{kind}Config")(vocab_size=VOCABULARY, **TOKENS, **{**knobs, **more})
        head = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
        simulator = tint.build(getattr(transformers, kind + head)(config), make_rule("full"))
        count[depth] = simulator.num_structural
    assert count[4] == count[2] > 0


def test_memory_is_added_where_the_stack_leaves_none() -> None:
    """A stack of 1 has one slot; the modules of this model need four (an exact norm gradient has four regions)."""
    geometries = {stack: tint.build(make_model("gpt2"), make_rule("default"), stack=stack).geometry for stack in STACKS}
    assert [g.slots for g in geometries.values()] == [4, 4, 4, 4, 6]
    assert [g.dim_sim for g in geometries.values()] == [4 * 13, 4 * 14, 4 * 15, 4 * 16, 6 * 18]
    wider = tint.build(make_model("gpt2"), make_rule("full"), stack=1).geometry
    assert wider.slots == 5  # gradient, query, key, value and the length of the gradient


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stack", some(list(STACKS), keep=2))
@pytest.mark.parametrize("name", [*FAMILIES, *ODD])
def test_the_integers_of_a_geometry(name: str, stack: int, layout: Any) -> None:
    auxiliary = tint.load(make_odd(name) if name in ODD else make_model(name))
    g = derive(auxiliary, layout=layout, stack=stack)
    heads = next(iter(auxiliary.attentions()))
    assert g.dim_aux == max(auxiliary.stream_width, heads.head_dim)
    assert g.dim_aux < g.dim_slot <= g.dim_aux + g.stack * g.shards
    assert g.dim_slot % g.stack == 0 and g.dim_slot % g.shards == 0
    assert g.num_prefix * g.stack == g.dim_slot == g.head_dim * g.shards
    assert g.num_heads == g.stack * g.shards and g.num_prefix <= g.head_dim
    assert g.slots >= g.stack and g.dim_sim == g.slots * g.dim_slot
    assert g.shards == stack if layout == "lean" else g.num_heads <= max(stack, min(stack**2, heads.num_heads))


@pytest.mark.parametrize(("name", "layout"), covering([*MODELS, *ODD], LAYOUTS))
def test_weights_go_into_the_prefix_and_back_bit_by_bit(name: str, layout: Any) -> None:
    model = make_odd(name) if name in ODD else make_model(name)
    auxiliary = tint.load(model)
    g = derive(auxiliary, layout=layout, stack=4)
    num_held = 0
    for wired in wire(auxiliary, g.dim_aux):
        tokens = prefix.write(wired, g, torch.float64)
        for weight, value in ({} if tokens is None else prefix.read(wired, tokens, g)).items():
            offset = float(getattr(wired.op, "unit_offset", False))
            assert torch.equal(value, weight.read() + offset), weight.name
            num_held += value.numel()
    embedding, head = auxiliary.embedding, auxiliary.head
    outside = {w.name: w.source for w in (embedding.tokens, embedding.positions, head.weight, head.bias) if w}
    assert num_held == sum(p.numel() for p in model.parameters()) - sum(w.numel() for w in outside.values())


def test_heads_too_wide_for_the_papers_layout_are_refused() -> None:
    model = _llama(hidden_size=24, intermediate_size=8, num_attention_heads=8, num_key_value_heads=8, head_dim=16)
    rule = make_rule("default")
    with pytest.raises(tint.InputError, match=r"\(16 wide\) .* \(14 wide\): use a smaller stack, or layout='lean'"):
        tint.build(model, rule, layout="paper", stack=4)
    assert tint.build(model, rule, layout="paper", stack=1).geometry.head_dim == 25


# Regions.


@pytest.mark.parametrize(
    ("name", "rule"),
    covering([*FAMILIES, "bloom"], ["full", "paper", "default", "central-relative", "perturbed-relative"]),
)
def test_what_is_needed_at_the_same_time_has_slots_of_its_own(name: str, rule: str) -> None:
    """Given quantities never share a slot, nor do results; ports read where the module says the region stands."""
    simulator = tint.build(make_model(name), make_rule(rule), layout="paper", stack=2)
    shards = simulator.geometry.shards
    for modules in simulator.structure.values():
        for module in modules.by_phase().values():  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
            assert set(module.regions.given) | set(module.regions.written) <= set(module.regions.declared)
            for together in (module.regions.given, module.regions.written):
                slots = [slot for each in together for slot in range(each.slot, each.slot + each.num_slots)]
                assert len(set(slots)) == len(slots) and max(slots, default=0) < simulator.geometry.slots
            for port in (part for part in module.modules() if isinstance(part, Port) and part.first_head):
                assert port.first_head == port.reads[0].slot * shards


# The paper's figure of a linear layer: S = 2, S' = 3.


@pytest.mark.parametrize(("stack", "shards"), [(3, 3), (4, 2), (1, 1)])
def test_where_a_row_of_a_matrix_sits(stack: int, shards: int) -> None:
    """Row i = s K + j is slot s of prefix token j, coordinate by coordinate, and the bias is column D."""
    simulator = tint.build(make_model("gpt2"), make_rule("default"))
    wired: Any = simulator.wired["blocks.0.down"]
    weight, bias = wired.op.weight.read(), wired.op.bias.read()
    g = Geometry(layout="paper", dim_aux=12, stack=stack, shards=shards, slots=stack, max_tokens=8)
    written: Any = prefix.write(wired, g, torch.float64)
    tokens = prefix.tokens(written, g)
    assert tokens.shape == (4, 1, g.num_prefix, stack * g.dim_slot)
    for piece, row in itertools.product(range(4), range(12)):
        slot, token = divmod(row, g.num_prefix)
        held = tokens[piece, 0, token].view(stack, g.dim_slot)[slot]
        assert torch.equal(held[:12], weight[row, 12 * piece : 12 * piece + 12])
        assert held[12] == (bias[row] if piece == 0 else 0)
        assert bool((held[13:] == 0).all())
    assert int((tokens != 0).sum()) == weight.numel() + bias.numel()
