# pyright: basic
"""Real pretrained models in float32: Hugging Face's logits, and the oracle's loss after one step."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from real_text import encode

import tintformer as tint

pytestmark = pytest.mark.real


def check(model: tint.Auxiliary, ids: torch.Tensor, rate: float) -> None:
    """Float32 engines against the oracle in float32 and in float64.

    The truth of the logits is the oracle in float64: in float32 it rounds a small change into a large weight, and is
    off by up to 1e-3 itself, more than the fast engine, which keeps the change apart.
    """
    train = torch.zeros_like(ids, dtype=torch.bool)
    train[:, : ids.shape[1] // 2] = True
    rule = tint.LearningRule(learning_rate=rate)
    oracle: Any = tint.Tint(model, rule, engine="oracle")(ids, train_mask=train, before=True)
    assert abs(float(oracle.loss) - float(oracle.loss_before)) > 1e-3, "nothing was learnt, so nothing was compared"
    with torch.no_grad():
        expected = model.model(input_ids=ids).logits
    engines = {name: tint.Tint(model, rule, engine=name) for name in ("reference", "fast")}
    results: dict[str, Any] = {name: sim(ids, train_mask=train, before=True) for name, sim in engines.items()}
    for result in results.values():
        torch.testing.assert_close(result.logits_before, expected, rtol=0, atol=2e-3)
        assert abs(float(result.loss) - float(oracle.loss)) < 1e-4
    double = copy.deepcopy(model.model).double()
    truth: Any = tint.Tint(double, rule, engine="oracle")(ids, train_mask=train)
    errors = (results["fast"].logits - truth.logits).abs().amax(-1)
    assert float(errors[~train].max()) < 1e-4
    assert float(errors.max()) < 2e-4


def test_stories15m(stories15m: Path, stories_text: str) -> None:
    model = tint.load(stories15m)
    check(model, encode(stories15m, stories_text, 192), rate=6e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.sweep
def test_smollm2_135m(smollm2: Path, wikitext: str) -> None:
    model = tint.load(smollm2)
    check(model, encode(smollm2, wikitext, 192), rate=1.2e-4)
