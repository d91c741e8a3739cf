# pyright: basic
"""Steps on different data, momentum, decay, rates and schedules inside the compiled network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import (
    DESCENTS,
    FIRST,
    assert_learns_as_torch,
    assert_same,
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
from tintformer.execution.batch import Batch
from tintformer.network.stepwise import StepwiseExecutor
from tintformer.storage.configs import meta_auxiliary
from tintlab.checks.accounting.network_size import count_network
from tintlab.checks.verify.lockstep import compare

STEPS = 3
FORMS: dict[str, dict[str, Any]] = {"unrolled": {}, "loop": {"loop": True}, "dense-loop": {"dense": True, "loop": True}}


@pytest.mark.parametrize("name", some(FIRST, 2))
@pytest.mark.parametrize("form", some(list(FORMS), 2))
@pytest.mark.parametrize("rule", some(["mean", "full"]))
def test_steps_on_different_data(name: str, form: str, rule: str) -> None:
    batch = with_steps(make_batch(padding="left"), STEPS, idle=(1, 2))
    assert_learns_as_torch(name, make_rule(rule, steps=STEPS), batch, engine="network", **FORMS[form])


@pytest.mark.sweep
@pytest.mark.parametrize("name", FIRST[3:])
def test_every_family(name: str) -> None:
    rule = make_rule("full", steps=STEPS, **DESCENTS["all"])
    assert_learns_as_torch(name, rule, with_steps(make_batch(), STEPS), engine="network")


@pytest.mark.parametrize("loop", [False, True], ids=["unrolled", "loop"])
def test_more_steps_than_a_slot_has_room_for(loop: bool) -> None:
    """Flags of 11 coordinates and 7 more loss weights, in slots of 16 coordinates."""
    batch = with_steps(make_batch(lengths=(15, 14)), 8)
    rule = make_rule("mean", steps=8)
    assert_learns_as_torch("opt-bare", rule, batch, engine="network", loop=loop)


@pytest.mark.parametrize(("name", "descent"), covering(FIRST[:3], list(DESCENTS)))
def test_every_descent(name: str, descent: str) -> None:
    rule = make_rule("full", steps=STEPS, **DESCENTS[descent])
    assert_learns_as_torch(name, rule, with_steps(make_batch(), STEPS), engine="network")


@pytest.mark.parametrize("form", some(["loop", "dense-loop"]))
def test_momentum_and_decay_loop(form: str) -> None:
    rule = make_rule("default", steps=STEPS, **{**DESCENTS["all"], "schedule": (0.5,)})
    assert_learns_as_torch("gpt2", rule, with_steps(make_batch(), STEPS), engine="network", **FORMS[form])


def test_op_by_op() -> None:
    auxiliary, rule = tint.load(make_model("qwen3")), make_rule("default", steps=2, **DESCENTS["all"])
    batch = Batch.of(auxiliary, **make_batch())
    errors = compare(auxiliary, rule, batch, StepwiseExecutor(tint.build(auxiliary, rule), batch))
    assert {"descent", "updated"} <= {each.phase for each in errors}
    assert max(each.relative for each in errors) < 1e-9


@pytest.mark.sweep
def test_softmax_heads_stay_near() -> None:
    rule, batch = make_rule("default", steps=2, **DESCENTS["all"]), make_batch(lengths=(6, 5))
    exact = call(tint.Tint(make_model("gpt2"), rule, engine="network"), batch)
    near = call(tint.Tint(make_model("gpt2"), rule, engine="network", dense=True, attention="softmax", stack=1), batch)
    assert float((near.logits - exact.logits).abs().max()) < 1e-4


def test_without_a_target_nothing_moves_at_all() -> None:
    network = tint.compile(make_model("gpt2"), make_rule("full", steps=2, **DESCENTS["all"]), max_tokens=11)
    data = make_batch()
    mask = torch.ones_like(data["train_mask"])
    mask[1] = False
    with pytest.warns(tint.TintWarning, match="no training target"):
        batch = Batch.of(network.auxiliary, **data, loss_mask=mask)
    with torch.no_grad():
        e = network.run(batch.input_ids, network.flags(batch))
    assert not any(update.any() for update in network.updates(e, 1).values())
    assert all(update.any() for update in network.updates(e, 0).values() if update.numel() > 30)


def test_velocity_and_base_are_slots_of_prefix_tokens() -> None:
    auxiliary = meta_auxiliary(make_config("gpt2"), "gpt2")
    plain = count_network(auxiliary, rule=make_rule("default"), max_tokens=8)
    for knobs, more in (({"momentum": 0.9}, 1), ({"decay": 0.1}, 1), ({"momentum": 0.9, "decay": 0.1}, 2)):
        size = count_network(auxiliary, rule=make_rule("default", **knobs), max_tokens=8)
        assert size.weight_slots == (1 + more) * plain.weight_slots and size.slots == plain.slots
        assert size.width - plain.width == more * plain.weight_slots * plain.slot_width
        stored = plain.prefix_tokens * plain.weight_slots * plain.slot_width
        assert size.auxiliary == plain.auxiliary + more * stored
        assert size.layers == plain.layers + 1 and size.layers_a_step == plain.layers_a_step + 1


def test_saved_and_loaded(tmp_path: Path) -> None:
    rule = make_rule("full", steps=2, **DESCENTS["all"])
    network = tint.compile(make_model("gpt2"), rule, max_tokens=11)
    network.save_pretrained(tmp_path)
    again = tint.Network.from_pretrained(tmp_path)
    assert (again.rule, again.frame) == (network.rule, network.frame)
    batch = Batch.of(network.auxiliary, **with_steps(make_batch(), 2))
    with torch.no_grad():
        expected, found = (each(batch.input_ids, each.flags(batch)) for each in (network, again))
    assert_same(found, expected)


def test_what_a_network_cannot_hold_is_refused() -> None:
    model, batch = make_model("gpt2"), with_steps(make_batch(), 2, idle=(1, 2))
    with pytest.raises(tint.InputError, match=r"row 1 has no training target in step 2.*engine='simulator'"):
        call(tint.Tint(model, make_rule("default", steps=2, momentum=0.9), engine="network"), batch)
    with pytest.raises(tint.InputError, match=r"this schedule changes the rate.*use loop=False"):
        tint.compile(model, make_rule("default", steps=2, schedule=(1.0, 0.5)), max_tokens=8, loop=True)
