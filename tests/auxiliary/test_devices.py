# pyright: basic
"""Models that are spread over devices or offloaded: the same numbers to the bit, and nothing mixed on the way."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import FIRST as FAMILIES
from cases import assert_same, covering, make_model
from fake_devices import CPU, FIRST, SECOND, bare, fake_devices, put

import tintformer as tint
from tintformer.auxiliary.describe import _Reader
from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.families import families
from tintformer.auxiliary.ops import Move
from tintformer.execution.batch import Batch

IDS = torch.randint(29, (3, 10), generator=torch.Generator().manual_seed(0))
TRAIN = (torch.arange(10) < 6).expand(3, -1)
ATTENDED = torch.ones_like(IDS, dtype=torch.bool).index_fill(1, torch.tensor([0]), False)
RULE = tint.LearningRule.full(learning_rate=1e-3, steps=2)


def spread(model: Any) -> Any:
    """A copy with its second block and final norm on a device of their own; the head is at home, as a tied one is."""
    paths = families()[model.config.model_type].paths
    copy = deepcopy(model)
    put(copy, {"": FIRST, f"{paths.blocks}.1": SECOND, str(paths.final_norm): SECOND})
    return copy


def run(model: Any, engine: str = "fast", **options: Any) -> Any:
    return tint.Tint(model, RULE, engine=engine)(IDS, train_mask=TRAIN, attention_mask=ATTENDED, before=True, **options)


@pytest.mark.parametrize(("name", "engine"), covering(FAMILIES, ["fast", "reference"]))
def test_two_devices_give_the_numbers_of_one(name: str, engine: str) -> None:
    model = make_model(name)
    expected = run(model, engine)
    with fake_devices():
        auxiliary = tint.load(spread(model))
        out = run(auxiliary, engine)
        updates = out.updates(1)
    assert auxiliary.dispatched and out.logits is not None and out.logits.device == auxiliary.device == FIRST
    assert_same(bare(out.logits), expected.logits)
    assert_same(bare(out.token_loss), expected.token_loss)
    assert_same(bare(out.logits_before), expected.logits_before)
    for parameter, change in expected.updates(1).items():
        assert_same(bare(updates[parameter]), change)
        assert updates[parameter].device == auxiliary.model.get_parameter(parameter).device


def test_a_forgotten_move_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Reader, "_go_to", lambda self, parameter: setattr(self, "home", self._home(parameter)))
    with fake_devices(), pytest.raises(RuntimeError, match=r"mixes .*lazy:0.*lazy:1"):
        run(tint.load(spread(make_model("llama"))))


@pytest.mark.parametrize("forgotten", ["forward", "backward"])
def test_a_stream_or_gradient_that_stays_behind_is_an_error(monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    from tintformer.engines.fast.fast_executor import FastExecutor

    target = SECOND if forgotten == "forward" else FIRST
    monkeypatch.setattr(FastExecutor, "move", lambda self, x, device: x if device == target else x.to(device))
    with fake_devices(), pytest.raises(RuntimeError, match="mixes"):
        run(tint.load(spread(make_model("gpt2"))))


def offloaded(auxiliary_of: Any) -> Auxiliary:
    """All weights kept on the CPU, computed with elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Reader, "_home", lambda self, parameter: FIRST)
        return tint.load(auxiliary_of)


@pytest.mark.parametrize(
    ("name", "engine"), covering(["gpt2", "bloom", "opt-350m-kind", "llama-grouped"], ["fast", "reference"])
)
def test_weights_that_are_kept_elsewhere_come_in_when_they_are_read(name: str, engine: str) -> None:
    model = make_model(name)
    expected = run(model, engine)
    with fake_devices():
        auxiliary = offloaded(deepcopy(model))
        out = run(auxiliary, engine)
    assert auxiliary.dispatched and auxiliary.device == FIRST
    assert all(parameter.device == CPU for parameter in auxiliary.model.parameters())
    assert_same(bare(out.logits), expected.logits)


def test_adapting_saving_and_scoring_follow_the_weights(tmp_path: Path) -> None:
    model = make_model("llama-grouped")
    plain = tint.Tint(model, RULE).adapt(IDS)
    with fake_devices():
        auxiliary = tint.load(spread(model))
        tuned = tint.Tint(auxiliary, RULE).adapt(IDS)
        score = tuned.score(IDS).token_loss
        homes = {weight.home for weight in tuned._updates.matrices}
        for weight, update in tuned._updates.matrices.items():
            held = [update.dense, *(each for part in update.factors for each in (part.x, part.g))]
            assert {each.device for each in held if each is not None} == {weight.home}
    assert homes == {FIRST, SECOND}
    assert_same(bare(score), plain.score(IDS).token_loss)


def test_a_continuation_reads_on_over_devices() -> None:
    model = make_model("llama-grouped")

    def read(auxiliary: Any) -> torch.Tensor:
        engine: Any = tint.Tint(auxiliary, RULE).engine
        sequences = Batch.of(engine.auxiliary, IDS[:, :8], train_mask=TRAIN[:, :8])
        continuation = engine.begin(sequences, keep_cache=True)
        continuation.extend(IDS[:, 8:])
        continuation.reorder(torch.tensor([2, 0]))
        continuation.extend(IDS[:2, :1])
        return continuation.logits()

    with fake_devices():
        found = bare(read(spread(model)))
    assert_same(found, read(model))


@pytest.mark.parametrize("engine", ["simulator", "oracle"])
def test_engines_that_cannot_follow_say_so(engine: str) -> None:
    with fake_devices():
        auxiliary = tint.load(spread(make_model("gpt2")))
        with pytest.raises(tint.TintError, match=f"spread over devices or offloaded, which the {engine} cannot follow"):
            tint.Tint(auxiliary, RULE, engine=engine)


def test_what_accelerate_has_offloaded_is_read_from_its_hooks(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="offloading is accelerate's; pip install accelerate")
    model = make_model("bloom")
    expected, base = run(model), tint.Tint(model, RULE).adapt(IDS)
    base.save(tmp_path / "update.safetensors")
    away = accelerate.cpu_offload(deepcopy(model), execution_device=CPU)
    assert all(parameter.is_meta for parameter in away.parameters())
    auxiliary = tint.load(away)
    assert_same(run(auxiliary).logits, expected.logits)
    tuned = tint.Tuned.load(tmp_path / "update.safetensors", auxiliary)  # the base's hash is the same
    assert_same(tuned.score(IDS).token_loss, base.score(IDS).token_loss)
    with pytest.raises(tint.TintError, match="are offloaded, and a Hugging Face model needs its updated weights"):
        tuned.generate(IDS[:1, :4], max_new_tokens=2)


def test_a_device_map_loads_by_name(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="device_map is accelerate's; pip install accelerate")
    model = make_model("llama")
    model.save_pretrained(tmp_path)
    for device_map in ({"": "cpu"}, {"model": "cpu", "lm_head": "cpu"}, "auto"):
        auxiliary = tint.load(tmp_path, dtype=model.dtype, device_map=device_map)
        assert auxiliary.device == CPU
        for name, value in auxiliary.model.state_dict().items():
            assert torch.equal(value, model.state_dict()[name]), name
        assert_same(run(auxiliary).logits, run(model).logits)


def test_maps_that_cannot_be_are_one_line(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    with pytest.raises(tint.LoadError, match="device_map puts parts on disk"):
        tint.load(tmp_path, device_map={"model": "cpu", "lm_head": "disk"})
    with pytest.raises(tint.LoadError, match="device and device_map say the same thing"):
        tint.load(tmp_path, device="cpu", device_map="auto")
    with pytest.raises(tint.LoadError, match="a model object keeps its dtype and device"):
        tint.load(make_model("llama"), device_map="auto")


def test_one_device_needs_no_moves() -> None:
    auxiliary = tint.load(make_model("gpt2"))
    assert not auxiliary.dispatched and not any(isinstance(step, Move) for block in auxiliary.blocks for step in block)
