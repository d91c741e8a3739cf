# pyright: basic
"""The pass of the transformers model is that of `Tint`; what is passed in is shared, and never changed."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
import torch
from cases import FIRST, MODELS, alone, assert_same, call, every, make_batch, make_model, make_rule
from torch.nn import functional
from transformers import AutoModelForCausalLM, DynamicCache

import tintformer as tint

RULE = make_rule("default")


def make(name: str = "gpt2", rule: tint.LearningRule = RULE, dtype: torch.dtype = torch.float64, **knobs: Any) -> Any:
    return tint.TintForCausalLM.from_auxiliary(make_model(name, dtype), rule, **knobs)


@pytest.mark.parametrize(("name", "engine"), every(5, product(MODELS, ["fast", "simulator"])))
def test_the_logits_are_those_of_tint(name: str, engine: str) -> None:
    model, sim = make(name, engine=engine), tint.Tint(make_model(name), RULE, engine=engine)
    for padding in ("left", "right"):
        batch = make_batch(padding=padding)
        assert torch.equal(model(**batch).logits, call(sim, batch).logits)


@pytest.mark.parametrize("fraction", [1.0, 0.6, 0.01])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_the_leading_share_of_every_sequence_trains(padding: str, fraction: float) -> None:
    batch = make_batch(lengths=(10, 5, 7), padding=padding)
    del batch["train_mask"]
    model = make(train_fraction=fraction)
    too_little = pytest.warns(tint.TintWarning, match="no training target")
    with too_little if fraction == 0.01 else nullcontext():
        out = model(**batch)
    counts = {1.0: [10, 5, 7], 0.6: [6, 3, 4], 0.01: [1, 1, 1]}[fraction]
    assert out.train_mask.sum(1).tolist() == counts
    for row, count in enumerate(counts):
        assert alone(batch | {"train": out.train_mask}, row)["train"][0, :count].all()


def test_labels_give_the_mean_loss_of_the_updated_model() -> None:
    batch, model = make_batch(padding="left"), make()
    labels = batch["input_ids"].masked_fill(batch["train_mask"] | (batch["attention_mask"] == 0), -100)
    out = model(**batch, labels=labels)
    expected = call(tint.Tint(make_model("gpt2"), RULE), batch)
    torch.testing.assert_close(out.loss, expected.loss)
    by_hand = functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(out.loss, by_hand)


def test_a_loss_mask_restricts_the_targets() -> None:
    batch, model = make_batch(), make()
    mask = torch.zeros_like(batch["train_mask"])
    mask[:, 4] = True
    expected = call(tint.Tint(make_model("gpt2"), RULE), batch, loss_mask=mask).logits
    assert torch.equal(model(**batch, loss_mask=mask).logits, expected)


def test_a_tuple_and_the_last_logits() -> None:
    batch, model = make_batch(padding="left"), make()
    whole = model(**batch).logits
    assert torch.equal(model(**batch, return_dict=False)[0], whole)
    torch.testing.assert_close(model(**batch, logits_to_keep=2).logits, whole[:, -2:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", FIRST)
def test_the_base_is_shared_and_never_changed(name: str) -> None:
    base = make_model(name, torch.float64)
    before = copy.deepcopy(base.state_dict())
    training = base.training
    model: Any = make(name)
    pairs = zip(model.auxiliary.parameters(), base.parameters(), strict=True)
    assert all(own.data_ptr() == other.data_ptr() and own is not other for own, other in pairs)
    model.generate(make_batch()["input_ids"][:1, :5], max_new_tokens=2)
    model.to(torch.float32)
    assert base.dtype == torch.float64 and base.training == training
    assert all(torch.equal(before[key], value) for key, value in base.state_dict().items())
    assert not hasattr(base, "_built")


@pytest.mark.parametrize("engine", ["fast", "simulator"])
def test_conversions_and_changes_are_noticed(engine: str) -> None:
    batch = make_batch()
    model: Any = make("llama", engine=engine)
    first = model(**batch).logits
    half = copy.deepcopy(model).to(torch.float32)(**batch).logits
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.double(), first, rtol=0, atol=1e-3)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in changed.auxiliary.parameters():
            parameter.copy_(parameter * 1.5)
    assert not torch.equal(changed(**batch).logits, first)
    model.config.learning_rule = make_rule("default", learning_rate=0.0)
    frozen = call(tint.Tint(make_model("llama"), make_rule("default", learning_rate=0.0), engine=engine), batch)
    assert torch.equal(model(**batch).logits, frozen.logits)
    assert not [name for name, _ in model.named_modules() if "prefix" in name or "structure" in name]


def test_a_configuration_alone_gives_a_random_model() -> None:
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(make("llama").config)
    assert type(model) is tint.TintForCausalLM
    assert model(**make_batch()).logits.shape == (3, 11, 29)
    embeddings = model.get_input_embeddings()
    assert embeddings is model.auxiliary.get_input_embeddings()
    assert model.get_output_embeddings() is model.auxiliary.get_output_embeddings()


def test_a_bundled_base() -> None:
    model: Any = tint.TintForCausalLM.from_auxiliary("nano-gpt2", tint.LearningRule(learning_rate=1e-4))
    assert model.config.base_model == "nano-gpt2" and model.dtype == torch.float32
    ids = torch.arange(20, 40)[None]
    expected: Any = tint.Tint("nano-gpt2", model.config.rule)(ids, train_mask=torch.ones_like(ids)).logits
    assert_same(model(ids).logits, expected)  # the file is opened twice


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "embeddings": ({"input_ids": None, "inputs_embeds": torch.zeros(1, 2, 12)}, "inputs_embeds: not an input"),
    "nothing": ({"input_ids": None}, "no input_ids"),
    "attentions": ({"output_attentions": True}, "output_attentions: not an input"),
    "a mask of another shape": ({"attention_mask": torch.ones(1, 3)}, r"attention_mask has shape \(1, 3\)"),
    "a mask of four dimensions": ({"attention_mask": torch.ones(1, 1, 5, 5)}, "attention_mask has shape"),
    "labels of another shape": ({"labels": torch.ones(1, 3, dtype=torch.long)}, r"labels has shape \(1, 3\)"),
    "another cache": ({"past_key_values": DynamicCache()}, "past_key_values is a DynamicCache"),
    "ids beyond the vocabulary": ({"input_ids": torch.full((1, 5), 999)}, "outside of the vocabulary"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_learnt_from(case: str) -> None:
    knobs, message = WRONG[case]
    with pytest.raises(tint.InputError, match=message):
        make()(**{"input_ids": torch.arange(3, 8)[None], **knobs})


def test_a_cache_learns_once() -> None:
    model, cache, ids = make(), tint.TintCache(), torch.arange(3, 9)[None]
    model(ids, past_key_values=cache)
    assert cache.get_seq_length() == 6
    with pytest.raises(tint.InputError, match="learnt from one already"):
        model(ids, past_key_values=cache, train_mask=torch.ones_like(ids))
    with pytest.raises(tint.InputError, match="serves the model that made it"):
        cache.update(ids, ids, 0)
    cache.reset()
    with pytest.raises(tint.InputError, match="cache is empty"):
        cache.crop(1)


def test_embeddings_are_resized_in_the_base() -> None:
    with pytest.raises(tint.TintError, match="resize the embeddings of the base"):
        make().resize_token_embeddings(40)
