# pyright: basic
"""What a network computes, however it is compiled: unrolled or looped, dense or structured, for any length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import assert_same, call, covering, make_batch, make_config, make_model, make_rule

import tintformer as tint
from tintformer.network.network_engine import NetworkEngine

FAMILIES = ["gpt2", "llama-grouped", "bloom", "qwen3", "gptj"]
FORMS: dict[str, dict[str, Any]] = {
    "dense": {"dense": True},
    "dense-loop": {"dense": True, "loop": True},
    "loop": {"loop": True},
    "longer": {"max_tokens": 15},
    "stack-1": {"stack": 1},
    "stack-3-loop-longer": {"stack": 3, "loop": True, "max_tokens": 13},
}


@pytest.mark.parametrize(("name", "form"), covering(FAMILIES, list(FORMS)))
@pytest.mark.parametrize("rule", ["default", "full"])
def test_every_form_is_the_same_network(name: str, form: str, rule: str) -> None:
    model, learn, batch = make_model(name), make_rule(rule, steps=2), make_batch(padding="left")
    expected = call(tint.Tint(model, learn, engine="network"), batch)
    found = call(tint.Tint(model, learn, engine="network", **FORMS[form]), batch)
    seen = batch["attention_mask"].bool()
    torch.testing.assert_close(found.logits[seen], expected.logits[seen], rtol=0, atol=1e-10)
    assert float(found.loss - expected.loss) == pytest.approx(0, abs=1e-10)
    for row in range(3):
        for parameter, update in expected.updates(row).items():
            torch.testing.assert_close(found.updates(row)[parameter], update, rtol=0, atol=1e-10)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_loop_has_the_depth_of_the_unrolled_network(steps: int) -> None:
    model, rule = make_model("gpt2"), make_rule("default", steps=steps)
    unrolled, looped = (tint.compile(model, rule, max_tokens=8, loop=loop) for loop in (False, True))
    kinds = [[type(layer) for layer in network.layers if layer.op != "clear"] for network in (unrolled, looped)]
    assert kinds[0] == kinds[1]
    one = len(tint.compile(model, replace(rule, steps=1), max_tokens=8).layers)
    assert len(set(looped.layers)) <= one + 2 and len(set(unrolled.layers)) == len(unrolled.layers)


def test_what_was_predicted_before_costs_a_slot() -> None:
    model, rule, batch = make_model("llama"), make_rule("default", steps=2), make_batch()
    plain, keeping = (tint.compile(model, rule, max_tokens=11, before=before) for before in (False, True))
    assert plain.frame.num_slots <= keeping.frame.num_slots <= plain.frame.num_slots + 1
    truth = call(tint.Tint(model, rule, engine="oracle"), batch, before=True)
    found = call(tint.Tint(model, rule, engine="network"), batch, before=True)
    seen = batch["attention_mask"].bool()
    assert_same(found.logits_before[seen], truth.logits_before[seen])
    assert_same(found.loss_before, truth.loss_before)


def test_networks_are_compiled_once_a_length() -> None:
    sim = tint.Tint(make_model("gpt2"), make_rule("default"), engine="network")
    assert isinstance(sim.engine, NetworkEngine)
    for length in (6, 9, 6):
        ids = torch.randint(3, 29, (1, length))
        sim(ids, train_mask=torch.ones_like(ids, dtype=torch.bool).tril(2))
    assert sorted(sim.engine.networks) == [(6, False), (9, False)]


def test_float32_stays_near() -> None:
    batch = make_batch()
    outputs = [
        call(tint.Tint(make_model("llama", dtype), make_rule("default"), engine="network"), batch)
        for dtype in (torch.float32, torch.float64)
    ]
    assert outputs[0].logits.dtype == torch.float32
    assert abs(float(outputs[0].loss) - float(outputs[1].loss)) < 1e-3


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"max_tokens": 5}, "a sequence has 11 tokens but the network holds 5"),
        ({"max_tokens": 1}, "max_tokens=1 must be a whole number of at least 2"),
        ({"max_tokens": "8"}, "must be a whole number"),
        ({"max_tokens": 65}, "max_tokens=65 but"),
        ({"layout": "paper"}, "layout: knobs of the simulator"),
        ({"attention": "softmax"}, "attention: knobs of the simulator"),
        ({"stack": 0}, "stack=0 must be a whole number"),
        ({"loop": "no"}, "loop='no' must be true or false"),
        ({"depth": 3}, "unknown knobs of a network"),
    ],
)
def test_what_cannot_be_compiled_is_refused(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.TintError, match=message):
        call(tint.Tint(make_model("gpt2"), make_rule("default"), engine="network", **knobs), make_batch())


def test_a_loop_cannot_keep_what_was_before() -> None:
    with pytest.raises(tint.InputError, match="loop=True"):
        tint.compile(make_model("gpt2"), make_rule("default", steps=2), max_tokens=8, loop=True, before=True)


def test_squares_of_segments_must_be_exact() -> None:
    with pytest.raises(tint.InputError, match="too long for float32"):
        tint.compile(make_model("llama", torch.float32), make_rule("default"), max_tokens=3000)


def test_a_norm_without_epsilon_is_refused() -> None:
    import transformers

    config = make_config("gpt2")
    config.layer_norm_epsilon = 0.0
    with pytest.raises(tint.TintError, match="epsilon"):
        tint.compile(transformers.GPT2LMHeadModel(config).double(), make_rule("default"), max_tokens=8)
