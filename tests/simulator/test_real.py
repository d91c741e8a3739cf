# pyright: basic
"""The simulator of a real pretrained model in float32: the fast engine's logits, and autograd's gradient."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import assert_same
from real_text import encode
from torch import Tensor

import tintformer as tint

pytestmark = pytest.mark.real

RATE = 6e-6
NUM_TOKENS = 128


@pytest.fixture(scope="module")
def model(stories15m: Path) -> tint.Auxiliary:
    return tint.load(stories15m)


@pytest.fixture(scope="module")
def text(stories15m: Path, stories_text: str) -> dict[str, Any]:
    ids = encode(stories15m, stories_text, NUM_TOKENS)
    return {"input_ids": ids, "train_mask": torch.arange(NUM_TOKENS)[None] < NUM_TOKENS // 2}


@pytest.fixture(scope="module")
def double(model: tint.Auxiliary) -> Any:
    return copy.deepcopy(model.model).double()


def updates(simulator: Any, text: dict[str, Any]) -> dict[str, Tensor]:
    return {name: update.double() for name, update in simulator(**text, logits="none").updates().items()}


def cosine(ours: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    """Over all parameters of the truth; what does not move counts as zero."""
    product = sum(float((ours[name] * truth[name]).sum()) for name in ours)
    lengths = [sum(float(update.square().sum()) for update in each.values()) ** 0.5 for each in (ours, truth)]
    return product / (lengths[0] * lengths[1])


@pytest.mark.parametrize("layout", ["lean", "paper"])
def test_logits_and_loss_are_those_of_the_fast_engine(layout: str, model: tint.Auxiliary, text: dict[str, Any]) -> None:
    rule = tint.LearningRule(learning_rate=RATE)
    fast: Any = tint.Tint(model, rule, engine="fast")(**text, before=True)
    ours: Any = tint.build(model, rule, layout=layout)(**text, before=True)
    assert float(fast.loss_before - fast.loss) > 1e-3, "nothing was learnt, so nothing was compared"
    torch.testing.assert_close(ours.logits_before, fast.logits_before, rtol=0, atol=2e-3)
    torch.testing.assert_close(ours.logits, fast.logits, rtol=0, atol=2e-3)
    assert abs(float(ours.loss - fast.loss)) < 1e-4


@pytest.mark.parametrize("layout", ["lean", "paper"])
def test_the_full_rule_follows_the_true_gradient(
    layout: str, model: tint.Auxiliary, double: Any, text: dict[str, Any]
) -> None:
    rule = tint.LearningRule.full(learning_rate=RATE)
    truth = updates(tint.Tint(double, rule, engine="oracle"), text)
    ours = updates(tint.build(model, rule, layout=layout), text)
    assert ours.keys() == truth.keys() and len(truth) == 6 * 9 + 1  # all block parameters and the final norm
    assert cosine(ours, truth) >= 0.9999


def test_so_does_every_parameter(model: tint.Auxiliary, double: Any, text: dict[str, Any]) -> None:
    """With a rate that float32 sees: 1e-7 more or less is nothing to a norm's scale of 8."""
    rule = tint.LearningRule.full(learning_rate=1e-3)
    truth = updates(tint.Tint(double, rule, engine="oracle"), text)
    ours = updates(tint.build(model, rule), text)
    for name in truth:
        assert cosine({name: ours[name]}, {name: truth[name]}) >= 0.999, name


def test_the_default_rule_is_the_oracles(model: tint.Auxiliary, double: Any, text: dict[str, Any]) -> None:
    """Value-only attention has a direction of its own, and the simulator follows it to float32's digits."""
    rule, full = tint.LearningRule(learning_rate=RATE), tint.LearningRule.full(learning_rate=RATE)
    ours = updates(tint.build(model, rule), text)
    assert cosine(ours, updates(tint.Tint(double, rule, engine="oracle"), text)) >= 0.99999
    assert 0.7 < cosine(ours, updates(tint.Tint(double, full, engine="oracle"), text)) < 0.95


def test_a_saved_simulator_comes_back(model: tint.Auxiliary, text: dict[str, Any], tmp_path: Path) -> None:
    simulator = tint.build(model, tint.LearningRule(learning_rate=RATE))
    simulator.save_pretrained(tmp_path)
    ours: Any = tint.Simulator.from_pretrained(tmp_path)(**text)
    expected: Any = simulator(**text)
    assert_same(ours.logits, expected.logits)
