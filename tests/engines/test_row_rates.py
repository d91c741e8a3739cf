# pyright: basic
"""A rate for each row: a batch with several equals its rows one by one, in every engine that takes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import alone, make_batch, make_model, make_rule

import tintformer as tint
from tintformer.execution.batch import Batch
from tintformer.learning.engine_registry import engines_that, make_engine
from tintformer.rule.learning_rule import LearningRule

RATES = (2e-3, 0.0, 5e-3)
AUTO = {name: make_rule(name, learning_rate="auto") for name in ("default", "full", "paper", "mean")}
AUTO["two steps"] = make_rule("default", learning_rate="auto", steps=2)


def run(auxiliary: Any, rule: LearningRule, batch: Batch, engine: str, **options: Any) -> Any:
    every = torch.ones_like(batch.attention_mask)
    return make_engine(engine, auxiliary, rule, **options).run(batch, logits_at=every, before=False)


@pytest.mark.parametrize("rule", AUTO)
@pytest.mark.parametrize("engine", engines_that("takes_rates"))
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_rows_have_the_rate_that_they_would_have_alone(family: str, engine: str, rule: str) -> None:
    auxiliary, given = tint.load(make_model(family)), make_batch()
    rates = torch.tensor(RATES, dtype=torch.float64)
    together = run(auxiliary, AUTO[rule], replace(Batch.of(auxiliary, **given), rates=rates), engine)
    start = 0
    for row, rate in enumerate(RATES):
        number = replace(AUTO[rule], learning_rate=rate)
        single = run(auxiliary, number, Batch.of(auxiliary, **alone(given, row)), engine)
        count = len(single.after.losses)
        torch.testing.assert_close(together.after.losses[start : start + count], single.after.losses)
        start += count
        for name, update in single.updates(0).items():
            torch.testing.assert_close(together.updates(row)[name], update)
    assert start == len(together.after.losses)


@pytest.mark.parametrize("dual", [True, False])
def test_either_form_of_an_update(dual: bool) -> None:
    auxiliary, given = tint.load(make_model("gpt2")), make_batch()
    batch = replace(Batch.of(auxiliary, **given), rates=torch.tensor(RATES, dtype=torch.float64))
    fast, reference = (run(auxiliary, AUTO["two steps"], batch, *each) for each in (("fast",), ("reference",)))
    again = run(auxiliary, AUTO["two steps"], batch, "fast", dual=dual)
    torch.testing.assert_close(fast.after.losses, reference.after.losses)
    torch.testing.assert_close(again.after.losses, reference.after.losses)


def test_rows_that_are_chosen_keep_their_rates() -> None:
    auxiliary = tint.load(make_model("gpt2"))
    batch = replace(Batch.of(auxiliary, **make_batch()), rates=torch.tensor(RATES, dtype=torch.float64))
    assert batch.select(torch.tensor([2, 0])).rates.tolist() == [RATES[2], RATES[0]]  # pyright: ignore
    assert batch.select(tokens=3).rates.tolist() == list(RATES)  # pyright: ignore


def test_divergence_names_the_largest_rate() -> None:
    auxiliary = tint.load(make_model("gpt2"))
    batch = Batch.of(auxiliary, **make_batch())
    for engine in engines_that("takes_rates"):
        rates = torch.tensor([0.0, 1e200, 0.0], dtype=torch.float64)
        with pytest.raises(tint.DivergenceError, match="learning_rate=1e\\+200 is too large"):
            run(auxiliary, AUTO["two steps"], replace(batch, rates=rates), engine)
