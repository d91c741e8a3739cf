# pyright: basic
"""IA3 at test time: against peft itself, and rows of a batch against one sequence at a time."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from adapted import close, in_double, learn, learn_each, token_losses, trained_loss
from cases import FIRST, MODELS, alone, every, make_batch, make_model, some
from peft import IA3Config, get_peft_model
from transformers.pytorch_utils import Conv1D

import tintformer as tint
from tintformer.auxiliary.families import families
from tintlab.methods import adapters
from tintlab.methods.ia3 import Ia3
from tintlab.methods.methods import METHODS

IA3: Any = Ia3(learning_rate=3e-2, steps=2)
FUSED = ("gpt2", "bloom", "gpt_neox")
"""Families whose queries, keys and values are one module."""
INSIDE = ["mlp.c_proj", "fc2", "down_proj", "dense_4h_to_h", "fc_out"]
KEYS_AND_VALUES = ["c_attn", "query_key_value", "k_proj", "v_proj"]


def by_peft(model: Any, method: Ia3, sequences: list[dict[str, torch.Tensor]]) -> Any:
    """The shortest way to the same factors: peft's own matching of names, and a plain loop."""
    conv = any(isinstance(each, Conv1D) for each in model.modules())
    there = [path for path, _ in model.named_modules()]
    names = {
        kind: [each for each in kinds if any(path == each or path.endswith(f".{each}") for path in there)]
        for kind, kinds in (("all", [*KEYS_AND_VALUES, *INSIDE]), ("inside", INSIDE))
    }
    config = IA3Config(target_modules=names["all"], feedforward_modules=names["inside"], fan_in_fan_out=conv)
    with torch.random.fork_rng():
        result = get_peft_model(copy.deepcopy(model), config).eval()
    adam = torch.optim.Adam([each for each in result.parameters() if each.requires_grad], lr=method.learning_rate)
    for _ in range(method.steps):
        adam.zero_grad()
        for sequence in sequences:
            losses = token_losses(result, sequence["input_ids"], position_ids=sequence.get("position_ids"))
            (losses * sequence["train_mask"][0, 1:]).sum().backward()
        adam.step()
    return result


@pytest.mark.parametrize("name", FIRST)
def test_peft_learns_and_predicts_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "TOKENS", 1)  # no padding: ALiBi in double precision is for single sequences only
    batch, fresh = make_batch(), make_batch(lengths=(12,), seed=5)["input_ids"]
    with in_double(name) as auxiliary:
        tuned = learn(auxiliary, IA3, **batch)
        expected = by_peft(auxiliary.model, IA3, [alone(batch, row) for row in range(3)])
        with torch.no_grad():
            losses = token_losses(expected, fresh)
            merged = dict(expected.merge_and_unload().named_parameters())
    torch.testing.assert_close(tuned.score(fresh).token_loss[0, 1:], losses, rtol=0, atol=1e-9)
    base = dict(make_model(name).named_parameters())
    moved = {each for each in merged if not torch.equal(merged[each], base[each])}
    updates = tuned.updates()
    close(updates, {each: (merged[each] - base[each]).detach() for each in updates})
    assert moved and moved == {each for each, update in updates.items() if update.any()}


@pytest.mark.parametrize("name", some(sorted(set(MODELS) - set(FIRST))))
def test_variants_of_the_families(name: str) -> None:
    """What it has learnt, put into the Hugging Face model, predicts as the engine does."""
    batch, fresh = make_batch(), make_batch(seed=5)["input_ids"]
    auxiliary = tint.load(make_model(name))
    tuned = learn(auxiliary, IA3, **batch)
    frozen = tint.LearningRule(learning_rate=0.0)
    expected = tint.Tint(tuned.to_hf(), frozen, engine="oracle")(fresh, train_mask=torch.ones_like(fresh)).logits
    torch.testing.assert_close(tuned.score(fresh, logits="all").logits, expected, rtol=0, atol=1e-9)
    assert trained_loss(tuned, batch) < trained_loss(tint.Tuned.untrained(auxiliary), batch)


@pytest.mark.parametrize("name", every(3, FIRST))
def test_each_row_learns_on_its_own(name: str) -> None:
    auxiliary, batch = tint.load(make_model(name)), make_batch()
    out = learn_each(auxiliary, IA3, **batch)
    for row in range(3):
        one = alone(batch, row)
        tuned = learn(auxiliary, IA3, **one)
        kept = batch["attention_mask"][row].bool()
        expected = tuned.score(one["input_ids"], score_mask=~one["train_mask"])
        torch.testing.assert_close(out.token_loss[row, kept], expected.token_loss[0], rtol=0, atol=1e-9)
        close(out.updates(row), tuned.updates())


@pytest.mark.parametrize("name", every(3, FIRST, 1))
def test_only_keys_values_and_the_inside_of_the_top_blocks_move(name: str) -> None:
    auxiliary = tint.load(make_model(name))
    top = f"{families()[auxiliary.family].paths.blocks}.1."
    tuned = learn(auxiliary, replace(IA3, layers=1), **make_batch())
    moved = {each for each, update in tuned.updates().items() if update.any()}
    assert moved and all(each.startswith(top) for each in moved)
    inside = {each for each in moved if any(f".{kind}.weight" in each for kind in INSIDE)}
    outside = {each for each in moved if any(f".{kind}." in each for kind in KEYS_AND_VALUES)}
    assert len(inside) == 1 and inside | outside == moved
    assert len({each for each in outside if each.endswith("weight")}) == (1 if name in FUSED else 2)


def test_some_of_the_linears() -> None:
    auxiliary, batch = tint.load(make_model("llama")), make_batch()
    moved: dict[str, set[str]] = {}
    for scaled in ("value", "down"):
        updates = learn(auxiliary, replace(IA3, scaled=(scaled,)), **batch).updates()
        moved[scaled] = {each.split(".")[-2] for each, update in updates.items() if update.any()}
    assert moved == {"value": {"v_proj"}, "down": {"down_proj"}}
    with pytest.raises(tint.RuleError, match=r"scaled=\('query',\) must be some of key, value, down"):
        replace(IA3, scaled=("query",))


def test_half_precision() -> None:
    batch = make_batch()
    half, wide = (
        learn_each(tint.load(make_model("llama", dtype)), IA3, **batch) for dtype in (torch.bfloat16, torch.float32)
    )
    torch.testing.assert_close(half.token_loss.float(), wide.token_loss, rtol=0.05, atol=0.3)


def test_a_rate_of_zero_is_the_model_as_it_is() -> None:
    auxiliary, batch = tint.load(make_model("gpt2")), make_batch()
    still = METHODS["ia3"].rule(0.0, layers=None, steps=1)
    assert isinstance(still, Ia3)
    assert not any(update.any() for update in learn(auxiliary, still, **batch).updates().values())
