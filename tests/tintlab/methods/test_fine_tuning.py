# pyright: basic
"""Explicit fine-tuning of one text: plain SGD, at a rate of its own, on a model that is put back."""

from __future__ import annotations

import math

import pytest
import torch
from fake_devices import FIRST, SECOND, fake_devices, put
from tiny import TEXT, make_model, make_tokenizer

import tintformer as tint
from tintformer.learning.text import encode
from tintlab.methods.fine_tuning import fine_tune

TRAIN = 60


@pytest.mark.parametrize("steps", [1, 2])
def test_it_is_what_autograd_gives_for_every_weight_of_the_blocks(steps: int) -> None:
    tokenizer = make_tokenizer()
    auxiliary = tint.load(make_model(len(tokenizer)))
    ids = torch.tensor([encode(tokenizer, TEXT).input_ids])
    train = torch.arange(ids.shape[1])[None] < TRAIN
    weights = {name: value.clone() for name, value in auxiliary.model.state_dict().items()}
    found = fine_tune(auxiliary, ids, TRAIN, steps=steps)
    full = tint.LearningRule.full(learning_rate=found.choice.rate, steps=steps)
    assert found.choice == tint.choose_rate(auxiliary, full, ids, train) and found.steps == steps
    exact = tint.Tint(auxiliary, full, engine="oracle")(ids, train_mask=train)
    assert exact.loss is not None
    torch.testing.assert_close(torch.tensor(found.losses), exact.token_loss[0, TRAIN:], rtol=1e-3, atol=1e-3)
    assert found.loss == pytest.approx(float(exact.loss), rel=1e-3)
    assert all(torch.equal(value, weights[name]) for name, value in auxiliary.model.state_dict().items())
    assert not auxiliary.has_changed() and all(each.grad is None for each in auxiliary.model.parameters())


def test_what_diverges_is_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    auxiliary, ids = tint.load(make_model(64)), torch.arange(24)[None]
    choice = tint.choose_rate(auxiliary, tint.LearningRule.full(learning_rate=0.0), ids, torch.arange(24)[None] < 12)
    endless = type(choice)(**{**vars(choice), "rate": 1e30})
    monkeypatch.setattr("tintlab.methods.fine_tuning.choose_rate", lambda *_: endless)
    found = fine_tune(auxiliary, ids, 12)
    assert math.isinf(found.loss) and len(found.losses) == 12


def test_a_model_that_is_spread_over_devices_is_refused() -> None:
    with fake_devices():
        model = make_model(64)
        put(model, {"": FIRST, "transformer.h.1": SECOND})
        with pytest.raises(tint.TintError, match=r"which explicit fine-tuning cannot follow; .* without device_map"):
            fine_tune(tint.load(model), torch.arange(24)[None], 12)
