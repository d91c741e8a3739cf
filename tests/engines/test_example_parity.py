# pyright: basic
"""Regression and perceptrons: every engine agrees with autograd, and one step with its closed form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import covering

import tintformer as tint

MODELS: dict[str, Any] = {
    "regression": lambda: tint.regression(5, 2, dtype=torch.float64),
    "one number": lambda: tint.regression(1, bias=True, dtype=torch.float64),
    "two layers": lambda: tint.mlp([3, 7, 2], activation="tanh", dtype=torch.float64),
    "four layers": lambda: tint.mlp([6, 20, 4, 9, 3], activation="gelu", dtype=torch.float64),
    "without biases": lambda: tint.mlp([4, 4, 4], activation="silu", bias=False, seed=1, dtype=torch.float64),
}
RULES: dict[str, Any] = {
    "one step": lambda: tint.LearningRule(learning_rate=0.02),
    "momentum": lambda: tint.LearningRule(learning_rate=0.02, steps=3, momentum=0.5, decay=0.1, reduction="mean"),
    "first order": lambda: tint.LearningRule.paper(learning_rate=0.02, steps=2, layers=1),
    "central": lambda: tint.LearningRule(learning_rate=0.02, steps=2, activation_gradient="central"),
}
ENGINES: list[dict[str, Any]] = [
    {"engine": "reference"},
    {"engine": "fast", "dual": True},
    {"engine": "fast", "dual": False},
    {"engine": "simulator"},
    {"engine": "simulator", "layout": "paper", "stack": 2, "tie_blocks": False},
    {"engine": "network"},
    {"engine": "network", "max_tokens": 11, "dense": True},
]


def draw(model: tint.Auxiliary, *, rows: int = 2, number: int = 9) -> tint.Examples:
    """Examples, of which each row learns from others, not all of them first."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(rows, number, model.stream_width, dtype=torch.float64, generator=generator)
    y = torch.randn(rows, number, model.vocabulary_size, dtype=torch.float64, generator=generator)
    mask = torch.arange(number)[None] < 6 - 2 * torch.arange(rows)[:, None]
    mask[-1] = mask[-1].roll(2)
    return tint.Examples(x, y, mask)


@pytest.mark.parametrize(("model", "rule"), covering(list(MODELS), list(RULES)))
def test_every_engine_agrees_with_autograd(model: str, rule: str) -> None:
    auxiliary, knobs = MODELS[model](), RULES[rule]()
    examples = draw(auxiliary)
    truth = tint.Tint(auxiliary, knobs, engine="oracle")(examples, before=True)
    assert sum(float(update.abs().sum()) for update in truth.updates(0).values()) > 1e-3
    assert truth.logits is not None and truth.logits_before is not None
    for engine in ENGINES:
        ours = tint.Tint(auxiliary, knobs, **engine)(examples, before=True)
        assert ours.logits is not None and ours.logits_before is not None
        torch.testing.assert_close(ours.logits_before, truth.logits_before, rtol=0, atol=1e-12)
        # A difference of activations loses digits to its step, in every engine its own.
        tolerance = {"rtol": 0, "atol": 1e-8 if rule in ("first order", "central") else 1e-12}
        torch.testing.assert_close(ours.logits, truth.logits, **tolerance)
        torch.testing.assert_close(ours.token_loss, truth.token_loss, **tolerance)
        assert torch.equal(ours.evaluation_mask, ~torch.as_tensor(examples.train_mask))
        for row in range(2):
            assert ours.updates(row).keys() == truth.updates(row).keys()
            for name, update in ours.updates(row).items():
                torch.testing.assert_close(update, truth.updates(row)[name], **tolerance)


@pytest.mark.parametrize("engine", ["simulator", "network", "fast", "reference", "oracle"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_one_step_is_the_closed_form(engine: str, reduction: Any) -> None:
    """W' = W - rate * sum (W x - y) x^T, and the prediction of a query is W' x."""
    begin = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    auxiliary = tint.regression(6, 3, weight=begin, dtype=torch.float64)
    examples, rate = draw(auxiliary), 0.05
    rule = tint.LearningRule(learning_rate=rate, reduction=reduction)
    out = tint.Tint(auxiliary, rule, engine=engine)(examples, logits="evaluation")
    predicted: list[torch.Tensor] = []
    for row, mask in enumerate(torch.as_tensor(examples.train_mask)):
        x, y = examples.x[row], examples.y[row]
        gradient = torch.einsum("nk,nd->kd", x[mask] @ begin.mT - y[mask], x[mask])
        step = -rate * gradient / (mask.sum() if reduction == "mean" else 1)
        torch.testing.assert_close(out.updates(row)["0.weight"], step, rtol=0, atol=1e-10)
        predicted.append(x[~mask] @ (begin + step).mT)
        error = (predicted[-1] - y[~mask]).square().sum(-1)
        torch.testing.assert_close(out.token_loss[row][~mask], error, rtol=0, atol=1e-10)
    torch.testing.assert_close(out.logits, torch.cat(predicted), rtol=0, atol=1e-10)


def test_the_rules_loss_is_for_language_models() -> None:
    auxiliary = tint.mlp([3, 5, 2], dtype=torch.float64)
    outputs = [
        tint.Tint(auxiliary, tint.LearningRule(learning_rate=0.1, loss=loss), engine="simulator")(draw(auxiliary)).loss
        for loss in ("cross_entropy", "mse", "quad")
    ]
    assert outputs[0] == outputs[1] == outputs[2]


def test_an_update_serves_many_examples_and_goes_on(tmp_path: Any) -> None:
    auxiliary = tint.mlp([3, 5, 2], dtype=torch.float64)
    examples = draw(auxiliary, rows=1)
    rule = tint.LearningRule(learning_rate=0.02)
    tuned = tint.Tint(auxiliary, rule).adapt(examples)
    at_once = tint.Tint(auxiliary, rule)(examples)
    torch.testing.assert_close(tuned.score(examples).token_loss, at_once.token_loss)
    twice = tint.Tint(auxiliary, tint.LearningRule(learning_rate=0.02, steps=2))(examples)
    torch.testing.assert_close(tuned.adapt(examples).score(examples).token_loss, twice.token_loss)
    changed = tuned.to_hf()
    torch.testing.assert_close(changed(examples.x), tuned.score(examples, logits="all").logits)
    tuned.save(tmp_path / "update.safetensors")
    again = tint.Tuned.load(tmp_path / "update.safetensors", auxiliary)
    torch.testing.assert_close(again.score(examples).token_loss, at_once.token_loss)


def test_softmax_attention_does_it_nearly() -> None:
    auxiliary = tint.mlp([3, 5, 2], dtype=torch.float64)
    rule = tint.LearningRule(learning_rate=0.02)
    truth = tint.Tint(auxiliary, rule, engine="oracle")(draw(auxiliary))
    ours = tint.Tint(auxiliary, rule, engine="simulator", attention="softmax")(draw(auxiliary))
    torch.testing.assert_close(ours.logits, truth.logits, rtol=0, atol=1e-5)


def test_hooks_see_and_replace() -> None:
    auxiliary = tint.mlp([3, 5, 2], dtype=torch.float64)
    model = tint.Tint(auxiliary, tint.LearningRule(learning_rate=0.02), engine="simulator")
    with model.watch("blocks.1.linear.output", when="after") as seen:
        out = model(draw(auxiliary))
    torch.testing.assert_close(seen["after", "blocks.1.linear.output"], out.logits)
    with model.hook("blocks.*.linear.gradient", lambda value, _: torch.zeros_like(value)):
        still = model(draw(auxiliary), before=True)
    torch.testing.assert_close(still.logits, still.logits_before)
