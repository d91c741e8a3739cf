# pyright: basic
"""What users rely on: nothing of the model changes, order does not matter, a masked loss moves nothing."""

from __future__ import annotations

import copy
import hashlib

import pytest
import torch
from cases import call, make_batch, make_model, make_rule

import tintformer as tint
from tintformer.engines.oracle import OracleEngine

ENGINES = ["reference", "fast", "oracle"]


def fingerprint(model: torch.nn.Module) -> str:
    digest = hashlib.sha256(str(model.config).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tensor.requires_grad} {tensor.grad}".encode())
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    for name, module in model.named_modules():
        hooks = len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
        digest.update(f"{name} {module.training} {hooks} {type(module.forward)}".encode())
    return digest.hexdigest()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gptj", "bloom"])
def test_the_model_is_never_modified(engine: str, name: str) -> None:
    model = copy.deepcopy(make_model(name)).train()
    # A hook of the forward pass would be refused, because it may change what a module computes.
    model.register_full_backward_hook(lambda *args: pytest.fail("the user's own hook ran"))
    before = fingerprint(model)
    call(tint.Tint(model, make_rule("paper", steps=2), engine=engine), make_batch(), before=True)
    assert fingerprint(model) == before


@pytest.mark.parametrize("engine", ENGINES)
def test_the_order_of_a_batch_does_not_matter(engine: str) -> None:
    sim = tint.Tint(make_model("llama-grouped"), make_rule("default"), engine=engine)
    batch = make_batch()
    order = torch.tensor([2, 0, 1])
    straight, turned = call(sim, batch), call(sim, {key: value[order] for key, value in batch.items()})
    torch.testing.assert_close(turned.logits, straight.logits[order], rtol=0, atol=1e-12)
    for name, update in turned.updates(0).items():
        torch.testing.assert_close(update, straight.updates(2)[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", ["default", "paper", "central-relative", "perturbed-relative"])
def test_a_loss_masked_out_entirely_moves_nothing_at_all(engine: str, rule: str) -> None:
    batch = make_batch(lengths=(9,))
    batch["loss_mask"] = torch.zeros_like(batch["train_mask"])
    with pytest.warns(tint.TintWarning, match="no training target"):
        out = call(tint.Tint(make_model("gpt2"), make_rule(rule), engine=engine), batch, before=True)
    assert all(bool((update == 0).all()) for update in out.updates().values())
    torch.testing.assert_close(out.logits, out.logits_before, rtol=0, atol=1e-12)


def test_frozen_rows_of_fused_projections_are_exactly_zero() -> None:
    out = call(tint.Tint(make_model("gpt2"), make_rule("exact-attention")), make_batch(lengths=(9,)))
    fused = out.updates()["transformer.h.0.attn.c_attn.weight"]
    assert bool((fused[:, :24] == 0).all())
    assert float(fused[:, 24:].abs().min()) > 0


def test_the_bias_of_the_second_feed_forward_layer_moves_once() -> None:
    """The authors' code moves it once a shard."""
    rule = make_rule("default")
    out = call(tint.Tint(make_model("gpt2"), rule, engine="reference"), make_batch(lengths=(9,)))
    truth = call(tint.Tint(make_model("gpt2"), rule, engine="oracle"), make_batch(lengths=(9,)))
    name = "transformer.h.1.mlp.c_proj.bias"
    torch.testing.assert_close(out.updates()[name], truth.updates()[name], rtol=1e-10, atol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_logits_are_returned_as_asked(engine: str) -> None:
    sim = tint.Tint(make_model("gpt2"), make_rule("default"), engine=engine)
    batch = make_batch(padding="left")
    everything = call(sim, batch, before=True)
    evaluated = call(sim, batch, logits="evaluation", before=True)
    nothing = call(sim, batch, logits="none")
    assert everything.logits.shape == (3, 11, 29)
    predicting = everything.evaluation_mask.roll(-1, dims=1)
    torch.testing.assert_close(evaluated.logits, everything.logits[predicting], rtol=0, atol=1e-12)
    torch.testing.assert_close(evaluated.logits_before, everything.logits_before[predicting], rtol=0, atol=1e-12)
    assert nothing.logits is None and nothing.logits_before is None and nothing.loss_before is None
    torch.testing.assert_close(nothing.token_loss, everything.token_loss, rtol=0, atol=1e-12)


def test_losses_are_those_of_the_evaluation_tokens() -> None:
    batch = make_batch(padding="left")
    out = call(tint.Tint(make_model("gpt2"), make_rule("default")), batch, before=True)
    ids, mask = batch["input_ids"], out.evaluation_mask
    expected_mask = batch["attention_mask"].bool() & ~batch["train_mask"]
    assert torch.equal(mask, expected_mask)
    log_probabilities = out.logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(out.token_loss[:, 1:], torch.where(mask[:, 1:], -log_probabilities, 0.0))
    torch.testing.assert_close(out.loss, out.token_loss[mask].mean())
    torch.testing.assert_close(out.loss_before, out.token_loss_before[mask].mean())
    assert float(out.loss) != float(out.loss_before)


def test_no_evaluation_part_gives_no_loss() -> None:
    batch = make_batch(lengths=(7,))
    batch["train_mask"][:] = True
    out = call(tint.Tint(make_model("gpt2"), make_rule("default")), batch)
    assert out.loss is None
    assert float(out.token_loss.abs().sum()) == 0


def test_each_row_has_its_own_update() -> None:
    out = call(tint.Tint(make_model("gpt2"), make_rule("default")), make_batch())
    with pytest.raises(tint.InputError, match="3 sequences, each with its own update"):
        out.updates()
    with pytest.raises(tint.InputError, match="row=3"):
        out.updates(3)
    name = "transformer.ln_f.bias"
    assert not torch.equal(out.updates(0)[name], out.updates(1)[name])


def test_the_reference_computes_half_precision_in_float32() -> None:
    model = copy.deepcopy(make_model("llama", torch.float32)).to(torch.bfloat16)
    batch = make_batch()
    ours = call(tint.Tint(model, make_rule("default"), engine="reference"), batch)
    truth = call(tint.Tint(model, make_rule("default"), engine="oracle"), batch)
    seen = batch["attention_mask"].bool()
    assert ours.logits.dtype == torch.float32
    torch.testing.assert_close(ours.logits[seen], truth.logits[seen], rtol=0, atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_runs_are_bit_identical(engine: str) -> None:
    sim = tint.Tint(make_model("llama", torch.float32), make_rule("full"), engine=engine)
    first, second = call(sim, make_batch()), call(sim, make_batch())
    assert torch.equal(first.logits, second.logits)


def test_the_oracle_uses_the_models_own_tensors() -> None:
    model = make_model("llama")
    engine = OracleEngine(tint.load(model), make_rule("default"))
    assert engine._original()["lm_head.weight"].data_ptr() == model.lm_head.weight.data_ptr()


@pytest.mark.parametrize("rule", ["paper", "central-relative", "perturbed-fixed"])
def test_the_oracle_says_what_it_cannot_judge(rule: str) -> None:
    batch = make_batch(lengths=(8,))
    batch["segment_ids"] = torch.tensor([[-1, 0, 0, 0, 1, 1, 1, 1]])
    with pytest.raises(tint.InputError, match="the oracle runs segments apart"):
        call(tint.Tint(make_model("gpt2"), make_rule(rule), engine="oracle"), batch)
