# pyright: basic
"""What a network computes, however it is compiled: unrolled or looped, dense or structured, for any length."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from cases import assert_same, call, covering, make_batch, make_config, make_model, make_rule, some
from safetensors.torch import load_file, save_file

import tintformer as tint
from tintbench.measuring import peak_of
from tintformer.bundled import read_text
from tintformer.execution.batch import Batch
from tintformer.network.network_engine import NetworkEngine
from tintformer.simulator import checkpoint

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
@pytest.mark.parametrize("rule", some(["full", "default"]))
def test_every_form_is_the_same_network(name: str, form: str, rule: str) -> None:
    layers = 1 if "dense" in form else None  # a dense form takes a hundred times as long
    learn = make_rule(rule, steps=2, layers=layers)
    model, batch = make_model(name), make_batch(lengths=(7, 4, 5), padding="left")
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
    # Beside those that clear slots, a loop has one that brings up the next step's loss weights.
    beside = ("clear", "step")
    kinds = [[type(layer) for layer in network.layers if layer.op not in beside] for network in (unrolled, looped)]
    assert kinds[0] == kinds[1]
    assert sum(layer.op == "step" for layer in looped.layers) == (steps if steps > 1 else 0)
    one = len(tint.compile(model, replace(rule, steps=1), max_tokens=8).layers)
    assert len(set(looped.layers)) <= one + 3 and len(set(unrolled.layers)) == len(unrolled.layers)


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


@pytest.mark.parametrize("name", ["nano-llama", "nano-gpt2"])
def test_the_bundled_models_learn_as_the_fast_engine_does(name: str) -> None:
    model, rule = tint.load(name), tint.LearningRule(learning_rate=1e-3)
    ids = model.tokenizer(read_text("visit"), return_tensors="pt").input_ids[:, :64]
    train = torch.arange(64)[None] < 32
    fast, network = (tint.Tint(model, rule, engine=engine)(ids, train_mask=train) for engine in ("fast", "network"))
    torch.testing.assert_close(network.logits, fast.logits, rtol=0, atol=1e-3)
    torch.testing.assert_close(network.loss, fast.loss, rtol=0, atol=1e-4)


def learn_with_a_bundled_model() -> None:
    ids = torch.arange(64)[None] + 100
    tint.Tint("nano-llama", tint.LearningRule(learning_rate=1e-3), engine="network")(ids, train_mask=ids < 132)


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc: run it on Linux")
def test_a_bundled_model_fits_in_memory() -> None:
    peak = forked.result_of(peak_of, learn_with_a_bundled_model)
    assert 1e7 < peak < 8e9


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"max_tokens": 5}, "a sequence has 11 tokens but the network holds 5"),
        ({"max_tokens": 1}, "max_tokens=1 must be a whole number of at least 2"),
        ({"max_tokens": "8"}, "must be a whole number"),
        ({"max_tokens": 65}, "max_tokens=65 but"),
        ({"layout": "paper"}, "layout: knobs of the simulator"),
        ({"attention": "softmax"}, "needs dense=True"),
        ({"stack": 0}, "stack=0 must be a whole number"),
        ({"loop": "no"}, "loop='no' must be true or false"),
        ({"depth": 3}, "unknown knobs of a network"),
    ],
)
def test_what_cannot_be_compiled_is_refused(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.TintError, match=message):
        call(tint.Tint(make_model("gpt2"), make_rule("default"), engine="network", **knobs), make_batch())


def test_a_dense_network_that_fits_no_memory_is_refused_before_it_is_written_out() -> None:
    with pytest.raises(
        tint.InputError, match=r"dense=True would write out \d+ maps of 24,696 x 24,696, .* tiny models"
    ):
        tint.compile("nano-llama", tint.LearningRule(learning_rate=1e-3), max_tokens=64, dense=True)


@pytest.mark.parametrize(
    ("num_tokens", "remedy"), [(11, "shorten the text"), (6, "make them longer by `Batch.padded`")]
)
def test_a_compiled_network_refuses_sequences_of_another_length(num_tokens: int, remedy: str) -> None:
    network = tint.compile(make_model("gpt2"), make_rule("default"), max_tokens=8)
    batch = Batch.of(network.auxiliary, **make_batch(lengths=(num_tokens,)))
    message = f"sequences of {num_tokens} tokens, but the network has 8; compile it with max_tokens={num_tokens}, or "
    with pytest.raises(tint.InputError, match=message + remedy):
        network.flags(batch)


@pytest.mark.parametrize("dense", some([False, True]))
def test_updates_of_a_row_that_is_not_there_are_refused(dense: bool) -> None:
    network = tint.compile(make_model("gpt2"), make_rule("default"), max_tokens=11, dense=dense)
    batch = Batch.of(network.auxiliary, **make_batch())
    e = network.run(batch.input_ids, network.flags(batch))
    for row in (3, -1):
        with pytest.raises(tint.InputError, match=f"row={row} of 3 sequences"):
            network.updates(e, row)


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


def load_and_save(directory: Path, parameters: Path) -> None:
    """What another process does with a saved network: it writes the parameters that it has."""
    network = tint.Network.from_pretrained(directory)
    save_file({f"{i}": p.detach().clone().contiguous() for i, p in enumerate(network.parameters())}, parameters)


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("qwen3", {"stack": 2, "loop": True}),
        pytest.param("gpt2", {}, marks=pytest.mark.sweep),
        pytest.param("opt-bare", {"dense": True}, marks=pytest.mark.sweep),
    ],
)
def test_saved_and_loaded_in_another_process(name: str, knobs: dict[str, Any], tmp_path: Path) -> None:
    batch, network = make_batch(), tint.compile(make_model(name), make_rule("full"), max_tokens=11, **knobs)
    network.save_pretrained(tmp_path / "network")
    forked.result_of(load_and_save, tmp_path / "network", tmp_path / "parameters")
    stored = load_file(tmp_path / "parameters")
    assert len(stored) == len(list(network.parameters()))
    assert all(torch.equal(stored[f"{i}"], parameter) for i, parameter in enumerate(network.parameters()))
    again = tint.Network.from_pretrained(tmp_path / "network")
    assert (again.settings, again.rule, again.frame) == (network.settings, network.rule, network.frame)
    checked = Batch.of(network.auxiliary, **batch)
    with torch.no_grad():
        expected, found = (each(checked.input_ids, each.flags(checked)) for each in (network, again))
    assert_same(found, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config["network"].update(depth=3), "other settings of a network"),
        (lambda config: config["network"].update(max_tokens=0), "cannot be compiled: max_tokens=0"),
        (lambda config: config.update(network=7), "other settings of a network"),
        (lambda config: config.pop("network"), "lacks network"),
    ],
)
def test_odd_settings_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    network = tint.compile(make_model("gpt2"), make_rule("default"), max_tokens=8)
    network.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    change(config)
    checkpoint.write(tmp_path, network.auxiliary, network.rule, {k: config[k] for k in ("network",) if k in config}, {})
    with pytest.raises(tint.LoadError, match=message):
        tint.Network.from_pretrained(tmp_path)


def test_a_network_and_a_simulator_are_not_mistaken_for_each_other(tmp_path: Path) -> None:
    tint.compile(make_model("gpt2"), make_rule("default"), max_tokens=8).save_pretrained(tmp_path / "network")
    tint.build(make_model("gpt2"), make_rule("default")).save_pretrained(tmp_path / "simulator")
    with pytest.raises(tint.LoadError, match="holds a compiled network"):
        tint.Simulator.from_pretrained(tmp_path / "network")
    with pytest.raises(tint.LoadError, match="lacks network"):
        tint.Network.from_pretrained(tmp_path / "simulator")


def test_changed_weights_are_noticed() -> None:
    model = copy.deepcopy(make_model("gpt2"))
    sim = tint.Tint(model, make_rule("default"), engine="network")
    call(sim, make_batch())
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight.mul_(2)
    with pytest.raises(tint.TintError, match="compile it again"):
        call(sim, make_batch())
