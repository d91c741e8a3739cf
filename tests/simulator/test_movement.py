# pyright: basic
"""Steps on different data, momentum, decay, rates and schedules inside the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import (
    DESCENTS,
    FIRST,
    assert_learns_as_torch,
    call,
    covering,
    make_batch,
    make_config,
    make_model,
    make_rule,
    some,
    with_steps,
)

import tintformer as tint
import tintlab as lab
from tintformer.storage.configs import meta_auxiliary
from tintlab.checks.accounting.simulator_size import SLOTS, count
from tintlab.checks.inspect.inspection import plan

STEPS = 3


@pytest.mark.parametrize("name", some(FIRST, 2))
def test_steps_on_different_data(name: str) -> None:
    for rule, padding in (("full", "left"), ("mean", "right")):
        batch = with_steps(make_batch(padding=padding), STEPS, idle=(1, 2))
        assert_learns_as_torch(name, make_rule(rule, steps=STEPS), batch, engine="simulator")


def test_what_a_step_trains_on_is_its_own() -> None:
    sim = tint.Tint(make_model("gpt2"), make_rule("default", steps=STEPS), engine="simulator")
    batch = make_batch()
    together, apart = call(sim, batch), call(sim, with_steps(batch, STEPS))
    assert float((together.logits - apart.logits).abs().max()) > 1e-3
    every = {**batch, "step_ids": torch.zeros_like(batch["input_ids"])}
    assert torch.equal(call(sim, every).logits, together.logits)


@pytest.mark.parametrize(("name", "descent"), covering(FIRST[:3], list(DESCENTS)))
@pytest.mark.parametrize("rule", some(["full", "default", "paper"]))
def test_every_descent(name: str, descent: str, rule: str) -> None:
    assert_learns_as_torch(name, make_rule(rule, steps=STEPS, **DESCENTS[descent]), make_batch(), engine="simulator")


@pytest.mark.sweep
@pytest.mark.parametrize("name", FIRST)
def test_every_family_with_everything(name: str) -> None:
    rule = make_rule("full", steps=STEPS, **DESCENTS["all"])
    assert_learns_as_torch(name, rule, with_steps(make_batch(), STEPS, idle=(0, 1)), engine="simulator")


@pytest.mark.parametrize(
    "knobs",
    [{}, {"layout": "paper", "stack": 3}, {"tie_blocks": False, "stack": 1}],
    ids=["tied", "paper", "untied"],
)
def test_every_construction_and_a_step_that_a_sequence_leaves_out(knobs: dict[str, Any]) -> None:
    rule = make_rule("full", steps=STEPS, layers=1, **DESCENTS["all"])
    assert_learns_as_torch(
        "llama-grouped", rule, with_steps(make_batch(), STEPS, idle=(1, 2)), engine="simulator", **knobs
    )


def test_without_a_target_nothing_moves_at_all() -> None:
    simulator = tint.build(make_model("gpt2"), make_rule("full", steps=2, **DESCENTS["all"]))
    batch = make_batch()
    mask = torch.ones_like(batch["train_mask"])
    mask[1] = False
    with pytest.warns(tint.TintWarning, match="no training target"):
        out = call(simulator, {**batch, "loss_mask": mask})
    assert not any(update.any() for update in out.updates(1).values())
    assert all(update.any() for update in out.updates(0).values() if update.numel() > 30)


@pytest.mark.parametrize("layout", ["lean", "paper"])
def test_velocity_and_base_are_slots_of_prefix_tokens(layout: Any) -> None:
    model = make_model("gpt2")
    plain = tint.build(model, make_rule("default"), layout=layout, stack=3)
    stored = sum(tokens.numel() for tokens in plain.prefix.values())
    for knobs, more in (({"momentum": 0.9}, 1), ({"decay": 0.1}, 1), ({"momentum": 0.9, "decay": 0.1}, 2)):
        rule = make_rule("default", **knobs)
        built = tint.build(model, rule, layout=layout, stack=3)
        assert built.geometry.slots == max(plain.geometry.slots, 3 * (1 + more))
        assert built.num_auxiliary == plain.num_auxiliary + more * stored
        counted = count(built)
        assert counted.structural == built.num_structural and counted.auxiliary == built.num_auxiliary
        shapes = meta_auxiliary(make_config("gpt2"), "gpt2")
        assert lab.count_parameters(shapes, rule=rule, layout=layout, stack=3).parts == counted.parts
        held = next(op.prefix for op in plan(built) if op.op == "blocks.0.value")
        assert held is not None and len(held.holds) == 3 * (1 + more)


def test_a_rate_of_its_own_is_one_number_and_not_another_module() -> None:
    model = make_model("gpt2")
    one, many = (
        tint.build(model, make_rule("default", steps=3, **knobs))
        for knobs in ({}, DESCENTS["rates"] | {"schedule": (1.0, 0.5)})
    )
    slots = sum(part.parameters for part in count(many).parts if part.part == SLOTS)
    assert many.structure.keys() == one.structure.keys() and many.num_structural == one.num_structural + slots
    assert 0 < slots < 100


def test_every_difference_from_the_formula_is_named() -> None:
    rule = make_rule("full", **DESCENTS["all"])
    shapes = meta_auxiliary(make_config("gpt2"), "gpt2")
    counted = lab.count_parameters(shapes, rule=rule, layout="paper", stack=3, tie_blocks=False)
    reasons = {each.reason: each.parameters for each in counted.differences}
    assert counted.formula is not None
    assert sum(reasons.values()) == counted.structural - counted.formula
    assert reasons["momentum, decay and rates within prefix tokens"] > 0


@pytest.mark.parametrize("full", [False, True])
def test_saved_and_loaded(full: bool, tmp_path: Path) -> None:
    simulator = tint.build(make_model("qwen3"), make_rule("full", steps=2, **DESCENTS["all"]))
    simulator.save_pretrained(tmp_path, full=full)
    again = tint.Simulator.from_pretrained(tmp_path)
    assert again.rule == simulator.rule and again.geometry == simulator.geometry
    stored = dict(again.named_parameters())
    assert all(torch.equal(stored[name], parameter) for name, parameter in simulator.named_parameters())
    batch = make_batch()
    torch.testing.assert_close(call(again, batch).logits, call(simulator, batch).logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize("optimizer", ["rms", "adam", "muon"])
def test_dense_optimisers_are_refused_by_name(optimizer: str) -> None:
    rule = make_rule("default", optimizer=optimizer)
    for engine in ("simulator", "network"):
        with pytest.raises(tint.RuleError, match=f"optimizer='{optimizer}' cannot be part of a {engine}"):
            tint.Tint(make_model("gpt2"), rule, engine=engine)
    with pytest.raises(tint.RuleError, match=f"optimizer='{optimizer}' cannot be part of a simulator"):
        tint.build(make_model("gpt2"), rule)
    with pytest.raises(tint.RuleError, match=f"optimizer='{optimizer}' cannot be part of a network"):
        tint.compile(make_model("gpt2"), rule, max_tokens=8)
