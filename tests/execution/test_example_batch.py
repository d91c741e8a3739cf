# pyright: basic
"""Examples: what is taken, in which forms, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tintformer as tint
from tintformer.execution.examples import learning_batch

MODEL = tint.regression(2, 1)
X, Y, MASK = torch.ones(1, 4, 2), torch.ones(1, 4, 1), [[1, 1, 0, 0]]


def test_arrays_and_lists_are_taken() -> None:
    call = tint.Tint(MODEL, tint.LearningRule(learning_rate=0.1))
    expected = call(tint.Examples(X, Y, MASK)).token_loss
    for form in (np.asarray, lambda value: torch.as_tensor(value).tolist(), torch.Tensor.double):
        found = call(tint.Examples(form(X), form(Y), np.asarray(MASK))).token_loss
        assert torch.equal(found, expected)


def test_each_target_stands_at_its_own_position() -> None:
    batch = learning_batch(MODEL, tint.Examples(X, Y, MASK), None)
    assert batch.train_positions.tolist() == [[True, True, False, False]]
    assert torch.equal(batch.evaluation_mask, ~batch.train_positions) and torch.equal(batch.targets, Y)
    longer = batch.padded(6)
    assert longer.inputs.shape == (1, 6, 2) and longer.train_positions.sum() == 2


def test_examples_do_not_see_each_other() -> None:
    """One more training example changes the update, the order of them does not."""
    call = tint.Tint(tint.mlp([2, 3, 1]), tint.LearningRule(learning_rate=0.1))
    x, y = torch.randn(1, 4, 2), torch.randn(1, 4, 1)
    turned = [1, 0, 3, 2]
    first = call(tint.Examples(x, y, MASK)).token_loss
    second = call(tint.Examples(x[:, turned], y[:, turned], MASK)).token_loss
    torch.testing.assert_close(first[:, turned], second)


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (tint.Examples(X[0], Y, MASK), "x has shape (4, 2); it must be [batch, examples, inputs] with 2 inputs"),
        (tint.Examples(X, Y[..., [0, 0]], MASK), "y has shape (1, 4, 2); it must be [batch, examples, outputs] with 1"),
        (tint.Examples(X[:, :3], Y, MASK), "they are x (1, 3, 2), y (1, 4, 1), mask (1, 4)"),
        (tint.Examples(X, Y, [[1, 1]]), "they are x (1, 4, 2), y (1, 4, 1), mask (1, 2)"),
        (tint.Examples(X, Y, [[2, 1, 0, 0]]), "train_mask holds values other than 0 and 1"),
        (tint.Examples(X, Y, [[0, 0, 0, 0]]), "row 0 has an empty training part"),
        (tint.Examples(X * float("nan"), Y, MASK), "x contains NaN or infinity"),
        (tint.Examples(X, Y.to(torch.complex64), MASK), "y has dtype torch.complex64"),
        (tint.Examples("x", Y, MASK), "x='x' is a text"),
        (X, "regression 2 -> 1 takes no tokens; give tintformer.Examples"),
    ],
)
def test_what_does_not_fit_is_refused(examples: Any, message: str) -> None:
    with pytest.raises(tint.InputError) as error:
        tint.Tint(MODEL, tint.LearningRule(learning_rate=0.1))(
            examples, train_mask=None if isinstance(examples, tint.Examples) else MASK
        )
    assert message in str(error.value)


def test_masks_and_models_that_do_not_go_with_examples() -> None:
    call = tint.Tint(MODEL, tint.LearningRule(learning_rate=0.1))
    with pytest.raises(tint.InputError, match="train_mask: Examples hold their own"):
        call(tint.Examples(X, Y, MASK), train_mask=MASK)
    with pytest.raises(tint.InputError, match="takes token ids; Examples are for"):
        tint.Tint("nano-gpt2", tint.LearningRule(learning_rate=0.1))(tint.Examples(X, Y, MASK))
    with pytest.raises(tint.InputError, match="train_mask is missing"):
        tint.Tint("nano-gpt2", tint.LearningRule(learning_rate=0.1))([[1, 2, 3]])
