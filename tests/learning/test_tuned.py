# pyright: basic
"""Adapt once, use many times: scores, Hugging Face models, generation, files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import FIRST, alone, assert_same, call, covering, every, make_batch, make_model, make_rule
from safetensors.torch import load_file, save_file

import tintformer as tint
from tintformer.storage import whole_files

RULE = make_rule("full", steps=2)


def adapt(name: str, rule: tint.LearningRule = RULE, dtype: torch.dtype = torch.float64) -> tint.Tuned:
    batch = make_batch()
    return tint.Tint(make_model(name, dtype), rule).adapt(batch["input_ids"], attention_mask=batch["attention_mask"])


def true_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Hugging Face's logits with its casts to float32 undone."""
    frozen = make_rule("default", learning_rate=0.0)
    logits = tint.Tint(model, frozen, engine="oracle")(ids, train_mask=torch.ones_like(ids)).logits
    assert logits is not None
    return logits


@pytest.mark.parametrize("name", FIRST)
def test_to_hf_gives_the_same_logits_as_score(name: str) -> None:
    tuned, ids = adapt(name), make_batch(seed=5)["input_ids"]
    score: Any = tuned.score(ids, logits="all").logits
    torch.testing.assert_close(score, true_logits(tuned.to_hf(), ids), rtol=0, atol=1e-9)
    torch.testing.assert_close(score, true_logits(tuned.to_hf(share=True), ids), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", every(3, FIRST))
def test_to_hf_in_float32(name: str) -> None:
    tuned, ids = adapt(name, dtype=torch.float32), make_batch(seed=5)["input_ids"]
    with torch.no_grad():
        expected = tuned.to_hf()(input_ids=ids).logits
    torch.testing.assert_close(tuned.score(ids, logits="all").logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", every(3, FIRST, 1))
def test_one_sequence_learns_what_a_pass_learns(name: str) -> None:
    sim, batch = tint.Tint(make_model(name), RULE), make_batch(lengths=(11,))
    out, tuned = call(sim, batch), sim.adapt(batch["input_ids"], train_mask=batch["train_mask"])
    for parameter, update in out.updates().items():
        torch.testing.assert_close(tuned.updates()[parameter], update, rtol=0, atol=1e-10)
    torch.testing.assert_close(tuned.score(batch["input_ids"], logits="all").logits, out.logits, rtol=0, atol=1e-9)


def test_several_sequences_sum_their_losses() -> None:
    rule = make_rule("default")
    sim, batch = tint.Tint(make_model("llama"), rule), make_batch(padding="left")
    together = sim.adapt(batch["input_ids"], attention_mask=batch["attention_mask"]).updates()
    singles = [sim.adapt(alone(batch, row)["input_ids"]).updates() for row in range(3)]
    for name, update in together.items():
        torch.testing.assert_close(update, sum(single[name] for single in singles), rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", [False, True])
def test_the_base_is_not_touched(share: bool) -> None:
    model = make_model("gpt2")
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    result = adapt("gpt2").to_hf(share=share)
    moved = result.transformer.h[0].mlp.c_fc.weight
    assert not torch.equal(moved, model.transformer.h[0].mlp.c_fc.weight)
    with torch.no_grad():
        moved.zero_()
        if not share:
            for parameter in result.parameters():
                parameter.zero_()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name


def test_score_restricted_to_a_label() -> None:
    tuned, ids = adapt("gpt2"), make_batch(lengths=(8,))["input_ids"]
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, 6:] = True
    out = tuned.score(ids, score_mask=mask, logits="evaluation")
    everything: Any = tuned.score(ids, logits="all")
    expected = everything.logits.log_softmax(-1)[0, [5, 6], ids[0, 6:]].sum()
    torch.testing.assert_close(out.log_probability[0], expected)
    assert torch.equal(out.evaluation_mask, mask)
    assert out.logits is not None and out.logits.shape == (2, 29)


def test_generate_is_greedy_scoring_step_by_step() -> None:
    tuned, ids = adapt("llama"), make_batch(lengths=(6,))["input_ids"]
    generated = tuned.generate(ids, max_new_tokens=5, do_sample=False)
    for _ in range(5):
        logits: Any = tuned.score(ids, logits="all").logits
        ids = torch.cat((ids, logits[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(generated, ids)


@pytest.mark.parametrize(("name", "wide"), covering(FIRST, [False, True]))
def test_save_and_load_are_bit_exact(name: str, wide: bool, tmp_path: Path) -> None:
    """One trained token makes factors the smaller form, many tokens the full change."""
    sim, ids = tint.Tint(make_model(name), make_rule("default")), make_batch(lengths=(30 if wide else 3,))["input_ids"]
    tuned, path = sim.adapt(ids), tmp_path / "update.safetensors"
    assert {update.dual for update in tuned._updates.matrices.values()} == {not wide}
    tuned.save(path)
    back = tint.Tuned.load(path, make_model(name))
    assert back.rule == tuned.rule
    assert_same(back.score(ids, logits="all").logits, tuned.score(ids, logits="all").logits)  # type: ignore[arg-type]
    for parameter, update in tuned.updates().items():
        assert_same(back.updates()[parameter], update)
    assert list(tmp_path.iterdir()) == [path], "a temporary file was left behind"
    back.save(tmp_path / "again.safetensors")
    stored, again = load_file(path), load_file(tmp_path / "again.safetensors")
    assert stored.keys() == again.keys() and all(torch.equal(again[key], value) for key, value in stored.items())


def test_another_base_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "update.safetensors"
    adapt("gpt2").save(path)
    for other in (make_model("gpt2", seed=1), make_model("llama"), make_model("gpt2", torch.float32)):
        with pytest.raises(tint.LoadError, match="learnt on other weights"):
            tint.Tuned.load(path, other)


def test_files_that_are_no_updates(tmp_path: Path) -> None:
    path = tmp_path / "update.safetensors"
    with pytest.raises(tint.LoadError, match="cannot read the update"):
        tint.Tuned.load(path, make_model("gpt2"))
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(tint.LoadError, match="not an update of tintformer"):
        tint.Tuned.load(path, make_model("gpt2"))
    adapt("gpt2").save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(tint.LoadError, match="cannot read the update"):
        tint.Tuned.load(path, make_model("gpt2"))


def test_an_interrupted_save_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "update.safetensors"
    tuned = adapt("gpt2")
    tuned.save(path)
    old = path.read_bytes()

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(whole_files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        adapt("gpt2", make_rule("default")).save(path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.sweep
def test_a_save_killed_at_any_moment_leaves_the_old_file_whole(tmp_path: Path) -> None:
    """A process that saves over and over is killed hard; what is there must load."""
    model = make_model("gpt2")
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "update.safetensors"
    code = (
        "import sys, torch, tintformer as tint\n"
        "model = tint.load(sys.argv[1], dtype=torch.float64)\n"
        "tuned = tint.Tint(model, tint.LearningRule(learning_rate=0.001)).adapt(torch.arange(20)[None])\n"
        "print('ready', flush=True)\n"
        "while True:\n    tuned.save(sys.argv[2])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "model"), str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while not path.exists():
            assert process.poll() is None
        process.kill()
    tint.Tuned.load(path, tint.load(tmp_path / "model", dtype=torch.float64))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(tint.TintError, match="cannot write"):
        adapt("gpt2").save(tmp_path / "nowhere" / "update.safetensors")
    with pytest.raises(tint.TintError, match="no regular file"):
        adapt("gpt2").save(tmp_path)


def test_what_is_printed_is_short_and_says_what_it_is() -> None:
    rule = tint.LearningRule(learning_rate=1e-3, layers=1)
    model = tint.load("nano-llama")
    sim, ids = tint.Tint(model, rule), torch.arange(12)[None]
    tuned, out = sim.adapt(ids), sim(ids, train_mask=torch.arange(12)[None] < 8, before=True)
    said = "LearningRule(learning_rate=0.001, layers=1)"
    assert repr(rule) == said and eval(said, {"LearningRule": tint.LearningRule}) == rule
    full = tint.LearningRule.full(learning_rate=1e-3)
    assert eval(repr(full), {"LearningRule": tint.LearningRule}) == full
    assert re.fullmatch(
        r"<Auxiliary nano-llama \(llama\): [\d,]+ parameters, 6 blocks of width \d+, vocabulary [\d,]+, context 512, "
        "float32 on cpu>",
        repr(model),
    )
    assert repr(sim) == f"<Tint nano-llama, engine fast, {said}>"
    simulator, network = tint.build(model, rule), tint.compile(model, rule, max_tokens=12)
    structural = f"{simulator.num_structural:,}"
    assert repr(simulator) == f"<Simulator nano-llama, layout lean, {structural} structural parameters, {said}>"
    assert repr(network) == f"<Network nano-llama, {len(network.layers):,} layers for up to 12 tokens, {said}>"
    assert re.fullmatch(rf"<Tuned nano-llama: updates of \d+ weights, by {re.escape(said)}>", repr(tuned))
    assert out.loss_before is not None and out.loss is not None
    losses = f"loss {float(out.loss_before):.4f} -> {float(out.loss):.4f} nats per token, perplexity "
    assert repr(out).startswith(f"<TintOutput of 1 x 12 tokens, 4 evaluated: {losses}")
    assert repr(out).endswith(f"; logits {list(out.logits.shape)}>")  # type: ignore[union-attr]
    assert "0 evaluated; no logits" in repr(sim(ids, train_mask=torch.ones_like(ids), logits="none"))


@pytest.mark.parametrize("method", [tint.Tint.__call__, tint.Tuned.score])
def test_the_values_of_logits_are_listed(method: Any) -> None:
    assert all(f'"{value}"' in (method.__doc__ or "") for value in ("all", "evaluation", "none"))
    with pytest.raises(tint.InputError, match="logits='some' is unknown; choose one of all, evaluation, none"):
        tint.Tuned.untrained(tint.load("nano-llama")).score(torch.arange(12)[None], logits="some")  # type: ignore[arg-type]
