# pyright: basic
"""Hard attention, value-only gradients, and linear attention as softmax attention."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from cases import MODELS, make_batch, make_model
from torch import Tensor

import tintformer as tint
from tintformer.auxiliary.ops import Attend
from tintformer.execution.batch import Batch
from tintformer.rule import attention
from tintformer.rule.attention import AttentionContext, AttentionHeads
from tintlab.checks.theorems.attention_gradient import hard_attention
from tintlab.checks.theorems.linear_softmax import (
    FORMS,
    best,
    linear_as_softmax,
    pair_form,
    printed_form,
)
from tintlab.checks.theorems.on_model import check_linear_as_softmax, check_theorems, paper_step
from tintlab.checks.verify.recorder import record, seen_attentions, seen_ops


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def causal(tokens: int) -> AttentionContext:
    hidden = torch.ones(tokens, tokens).triu(1).bool()
    mask = torch.zeros(tokens, tokens, dtype=torch.float64).masked_fill(hidden, torch.finfo(torch.float64).min)
    return AttentionContext(mask=mask[None, None, None], positions=torch.arange(tokens)[None])


def random_layer(seed: int, sharpness: float) -> tuple[AttentionHeads, Tensor, Attend, AttentionContext]:
    """Grouped heads whose scores are the larger the sharper: from soft to hard attention."""
    generator = torch.Generator().manual_seed(seed)
    tokens, op = 12, Attend(name="attention", num_heads=4, num_key_value_heads=2, head_dim=5, scale=0.4)
    heads = AttentionHeads(
        sharpness * normal(generator, 2, 2, 2, tokens, 5),
        normal(generator, 2, 2, tokens, 5),
        normal(generator, 2, 2, tokens, 5),
    )
    return heads, normal(generator, 2, tokens, 20), op, causal(tokens)


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 10.0, 100.0, 1e4])
def test_hard_attention_bounds_hold(sharpness: float) -> None:
    for seed in range(20):
        queries, keys = hard_attention(*random_layer(seed, sharpness))
        assert queries.holds and keys.holds, (queries, keys)
        assert queries.printed_holds
    assert "eps = " in queries.note and "T/2" in keys.note


def test_gradients_vanish_as_attention_hardens() -> None:
    for which in (0, 1):
        soft, hard = (hard_attention(*random_layer(3, sharpness))[which].measured for sharpness in (3.0, 1e5))
        assert soft > 0.1 and hard < 1e-9


def sink(tokens: int, share: float) -> tuple[AttentionHeads, Tensor, Attend, AttentionContext]:
    """All queries attend to token 0 but for a `share` that goes to token 1, whose value is the opposite."""
    op = Attend(name="attention", num_heads=1, num_key_value_heads=1, head_dim=3, scale=1.0)
    key = torch.zeros(tokens, 3, dtype=torch.float64)
    key[:, 0] = -100.0
    key[0, 0], key[1, 0] = 0.0, torch.tensor(share / (1 - share)).log()
    query = torch.zeros(tokens, 3, dtype=torch.float64)
    query[:, 0] = 1.0
    value = torch.zeros(tokens, 3, dtype=torch.float64)
    value[0, 1], value[1, 1] = 1.0, -1.0
    dy = torch.zeros(1, tokens, 3, dtype=torch.float64)
    dy[..., 1] = 1.0
    return AttentionHeads(query[None, None, None], key[None, None], value[None, None]), dy, op, causal(tokens)


def test_the_printed_bound_on_keys_fails_at_a_token_that_many_attend_to() -> None:
    few, many = (hard_attention(*sink(tokens, 0.01))[1] for tokens in (3, 100))
    assert few.printed_holds and few.holds
    assert not many.printed_holds and many.holds
    assert "fails at 2 tokens" in many.note
    # T - 1 queries, each with 2 eps: all of the factor of T is there.
    assert many.measured == pytest.approx(2 * 0.01 * 0.99 * 99, rel=1e-6)
    assert many.ratio > 0.9
    heads, dy, op, where = sink(100, 0.01)
    found = attention.head_gradients(heads, dy, op, where, scheme="exact", step=0.0, mode="fixed")
    assert found.key is not None and many.printed is not None
    assert float(found.key.norm(dim=-1).mean()) < many.printed, "in the mean over the tokens it holds"


@pytest.mark.parametrize("name", ["gpt2", "llama-yarn", "qwen3", "bloom", "gemma-grouped", "phi-grouped", "gpt2-odd"])
def test_every_theorem_holds_on_a_model(name: str) -> None:
    assert name in MODELS
    auxiliary, batch = on_batch(name)
    for step in (paper_step(), 1e-4):
        checks = check_theorems(record(auxiliary, batch), step=step)
        assert all(check.holds for check in checks), [check for check in checks if not check.holds]
    names = {check.name for check in checks}
    assert {"hard attention, queries", "hard attention, keys", "value-only gradient"} < names
    assert any(name.startswith("first-order") for name in names)
    normed = name in ("qwen3", "phi-grouped", "llama-yarn")
    assert all((check.printed is None) == normed for check in checks if check.name == "value-only gradient")


def on_batch(name: str) -> tuple[Any, Batch]:
    auxiliary, batch = tint.load(make_model(name)), make_batch()
    return auxiliary, Batch.of(
        auxiliary, batch["input_ids"], train_mask=batch["train_mask"], attention_mask=batch["attention_mask"]
    )


@pytest.mark.parametrize("name", ["llama-grouped", "qwen3"])
def test_what_value_only_leaves_out_is_the_rest_of_the_gradient(name: str) -> None:
    """The recorded parts of dx, through values, queries and keys, add up to what arrives at the norm below."""
    auxiliary, batch = on_batch(name)
    recorder = record(auxiliary, batch)
    for layer, seen in enumerate(seen_attentions(recorder)):
        values = recorder.gradients[f"blocks.{layer}.value"] @ seen.projections.value
        arriving = recorder.gradients[f"blocks.{layer}.attention_norm"]
        torch.testing.assert_close(values + seen.projections.left_out, arriving)


def test_recorded_gradients_are_autograds() -> None:
    auxiliary, batch = on_batch("gpt2")
    recorder = record(auxiliary, batch)
    assert all(delta.abs().max() == 0 for delta in recorder.updates.values())
    model, seen = make_model("gpt2"), {}
    module = model.transformer.h[0].mlp.c_proj
    handle = module.register_forward_hook(lambda module, args, output: seen.update(x=args[0], y=output))
    row = batch.attention_mask[0]
    logits = model(batch.input_ids[:1]).logits
    handle.remove()
    loss = torch.nn.functional.cross_entropy(
        logits[batch.train_positions[:1]], batch.targets[:1][batch.train_positions[:1]], reduction="sum"
    )
    (expected,) = torch.autograd.grad(loss, seen["y"])
    (found,) = [each for each in seen_ops(recorder) if each.op.name == "blocks.0.down"]
    torch.testing.assert_close(found.x[0][row], seen["x"][0][row].detach())
    torch.testing.assert_close(found.dy[0][row], expected[0][row])


def linear_head(seed: int, *, keys: int = 13, size: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return size * normal(generator, 7, keys), normal(generator, keys, 5)


def test_both_forms_stay_within_their_bounds() -> None:
    for seed, keys, size in itertools.product(range(4), (1, 13, 200), (0.01, 1.0, 20.0)):
        errors = linear_as_softmax(*linear_head(seed, keys=keys, size=size))
        assert all(error.holds for error in errors), [error for error in errors if not error.holds]
    assert {(error.form, error.dtype) for error in errors} == set(itertools.product(FORMS, ("float32", "float64")))


def test_bounds_are_within_a_small_factor_where_rounding_is_not_felt() -> None:
    for error in linear_as_softmax(*linear_head(1), epsilons=(1e-3,), dtypes=(torch.float64,)):
        assert 0.05 < error.measured / error.bound <= 1


@pytest.mark.parametrize(("form", "order"), [(printed_form, 2), (pair_form, 4)])
def test_order_of_the_error(form: Any, order: int) -> None:
    scores, values = linear_head(2)
    errors = [(form(scores, values, epsilon) - scores @ values).norm() for epsilon in (1e-3, 5e-4)]
    assert float(errors[0] / errors[1]) == pytest.approx(order, rel=0.01)


def test_the_pair_is_the_better_form_in_every_number_format() -> None:
    found = {(error.form, error.dtype): error for error in best(linear_as_softmax(*linear_head(3)))}
    assert found["printed", "float32"].relative > 5 * found["pair", "float32"].relative
    assert found["printed", "float64"].relative > 100 * found["pair", "float64"].relative
    assert found["pair", "float32"].relative < 1e-3 and found["pair", "float64"].relative < 1e-7


def test_a_model_is_checked_forward_and_in_descent() -> None:
    errors = check_linear_as_softmax(record(*on_batch("opt")))
    assert all(error.holds for error in errors)
    places = {f"blocks.{layer}.value, {phase}" for layer in (0, 1) for phase in ("forward", "descent")}
    assert {error.where for error in errors} == places
