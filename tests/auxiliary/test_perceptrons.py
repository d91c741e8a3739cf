# pyright: basic
"""What regression and mlp make, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tintformer as tint

UNTYPED: Any = tint
"""For what no type checker would let pass."""


def test_regression_begins_with_zeros_or_what_is_given() -> None:
    auxiliary = tint.regression(3, 2, bias=True)
    assert all(not parameter.any() for parameter in auxiliary.model.parameters())
    assert repr(auxiliary) == (
        "<Auxiliary regression 3 -> 2: 8 parameters in 1 layer, 3 inputs, 2 outputs, float32 on cpu>"
    )
    weight = [[1.0, 2.0, 3.0]]
    assert tint.regression(3, weight=weight).model[0].weight.tolist() == weight


def test_a_seed_draws_the_same_and_leaves_the_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, second, other = (tint.mlp([4, 8, 1], seed=seed).model for seed in (0, 0, 1))
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(first[0].weight, second[0].weight) and not torch.equal(first[0].weight, other[0].weight)


def test_modules_of_ones_own_are_shared() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 4, bias=False), nn.Linear(4, 2))
    auxiliary = tint.mlp(model)
    assert auxiliary.model is model and len(auxiliary.blocks) == 3
    x = torch.randn(1, 5, 3)
    examples = tint.Examples(x, torch.randn(1, 5, 2), [[1, 1, 1, 0, 0]])
    out = tint.Tint(auxiliary, tint.LearningRule(learning_rate=0.0))(examples)
    torch.testing.assert_close(out.logits, model(x))
    model.double()
    with pytest.raises(tint.TintError, match="has changed since it was loaded"):
        tint.Tint(auxiliary, tint.LearningRule(learning_rate=0.0))(examples)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tint.regression(0), "inputs=0"),
        (lambda: UNTYPED.regression(2, 1.5), "outputs=1.5"),
        (lambda: tint.regression(2, weight=[[1.0]]), "weight has shape (1, 1); it must be [outputs, inputs] = [1, 2]"),
        (lambda: tint.regression(2, dtype=torch.long), "dtype=torch.int64 is no floating-point type"),
        (lambda: tint.mlp([3]), "layers=[3] must be at least two widths"),
        (lambda: UNTYPED.mlp("3,4"), "layers='3,4' must be at least two widths"),
        (lambda: tint.mlp([3, -1]), "layers=-1"),
        (lambda: tint.mlp([3, 1], activation="softmax"), "choose one of relu, gelu, silu, tanh"),
        (lambda: tint.mlp(nn.Sequential()), "its first module is no torch.nn.Linear"),
        (lambda: tint.mlp(nn.Sequential(nn.Linear(2, 2), nn.Dropout())), "module 1 is a Dropout"),
        (lambda: tint.mlp(nn.Sequential(nn.Linear(2, 2), nn.GELU("tanh"))), "module 1 is a GELU"),
        (lambda: tint.mlp(nn.Sequential(nn.Linear(2, 3), nn.Linear(2, 2))), "takes 2 numbers a token and gets 3"),
        (lambda: tint.mlp(nn.Sequential(nn.Linear(2, 3).double(), nn.Linear(3, 2))), "several dtypes"),
    ],
)
def test_what_cannot_be_made_is_refused(make: Any, message: str) -> None:
    with pytest.raises(tint.TintError) as error:
        make()
    assert message in str(error.value)


def test_what_is_for_language_models_says_so(tmp_path: Any) -> None:
    auxiliary, rule = tint.regression(2), tint.LearningRule(learning_rate=0.1)
    examples = tint.Examples(torch.ones(1, 3, 2), torch.ones(1, 3, 1), [[1, 1, 0]])
    attempts = [
        lambda: tint.build(auxiliary, rule).save_pretrained(tmp_path / "simulator"),
        lambda: tint.compile(auxiliary, rule, max_tokens=3).save_pretrained(tmp_path / "network"),
        lambda: tint.Tint(auxiliary, rule).adapt(examples).to_peft(tmp_path / "peft"),
        lambda: tint.learn(auxiliary, "A text to learn from."),
        lambda: auxiliary.generate("Once"),
    ]
    for attempt in attempts:
        with pytest.raises(tint.InputError, match=r"regression 2 -> 1 learns from Examples; .* needs a language model"):
            attempt()
    assert not list(tmp_path.iterdir())
    with pytest.raises(tint.RuleError, match="give a number"):
        tint.Tint(auxiliary, tint.LearningRule(learning_rate="auto"))
