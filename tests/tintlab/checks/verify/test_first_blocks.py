# pyright: basic
"""The first blocks of a model are a model of their own, for the description and for the oracle alike."""

from __future__ import annotations

import pytest
import torch
from cases import MODELS, call, make_batch, make_model, make_rule

import tintformer as tint
from tintlab.checks.verify import first_blocks
from tintlab.checks.verify.first_blocks import in_float64, keep_first_blocks, num_blocks_to_keep

ONE_OF_EACH_KIND = ["gpt2", "opt-350m-kind", "llama", "qwen2-sliding", "bloom", "gptj", "gpt_neox", "gpt_neo", "phi"]


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_engines_and_oracle_agree_on_a_cut_model(name: str) -> None:
    assert name in MODELS
    model = make_model(name)
    whole = tint.load(model)
    cut = keep_first_blocks(whole, 1)
    batch, rule = make_batch(), make_rule("default")
    seen = batch["attention_mask"].bool()
    truth = call(tint.Tint(cut, rule, engine="oracle"), batch, before=True)
    ours = call(tint.Tint(cut, rule), batch, before=True)
    torch.testing.assert_close(ours.logits[seen], truth.logits[seen], rtol=0, atol=1e-10)
    assert not torch.allclose(
        truth.logits_before[seen], call(tint.Tint(whole, rule), batch, before=True).logits_before[seen]
    )
    assert (len(cut.blocks), len(whole.blocks)) == (1, 2)
    assert cut.model.config.num_hidden_layers == 1 and model.config.num_hidden_layers == 2
    assert cut.embedding.tokens.source.data_ptr() == whole.embedding.tokens.source.data_ptr()


def test_how_many_blocks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    auxiliary = tint.load(make_model("gpt2"))
    assert num_blocks_to_keep(auxiliary, None) == 2
    assert num_blocks_to_keep(auxiliary, 1) == 1
    assert keep_first_blocks(auxiliary, 2) is auxiliary
    for asked in (0, 3):
        with pytest.raises(tint.InputError, match=f"layers={asked} but GPT2LMHeadModel has 2 blocks"):
            num_blocks_to_keep(auxiliary, asked)
    size = sum(parameter.numel() for parameter in auxiliary.model.transformer.h.parameters())
    for limit, kept in ((size, 2), (size - 1, 1), (1, 1)):
        monkeypatch.setattr(first_blocks, "LARGE", limit)
        assert num_blocks_to_keep(auxiliary, None) == kept


def test_the_model_in_float64_is_a_copy() -> None:
    model = make_model("llama", torch.float32)
    auxiliary = tint.load(model)
    precise = in_float64(auxiliary)
    assert precise.dtype == torch.float64 and auxiliary.dtype == torch.float32 == model.lm_head.weight.dtype
    for ours, theirs in zip(precise.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs.double())
    assert in_float64(precise) is precise
