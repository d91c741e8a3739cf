# pyright: basic
"""Trials of rates: folds of the training part, learnt from as a call would, and no view of anything behind it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from cases import make_batch, make_model, make_rule

import tintformer as tint
from tintformer.execution.batch import Batch
from tintformer.learning.rate_trials import Span, Trials, fold

HALVES = Span(Fraction(1, 2), Fraction(1))
THREE = tuple(Span(Fraction(part, 4), Fraction(part + 1, 4)) for part in (1, 2, 3))


@pytest.fixture(scope="module")
def auxiliary() -> Any:
    return tint.load(make_model("gpt2"))


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(3, 29, (2, 24), generator=torch.Generator().manual_seed(0))


def batch_of(auxiliary: Any, ids: torch.Tensor, count: int = 20, **masks: Any) -> Batch:
    train = (torch.arange(ids.shape[1]) < count).expand(ids.shape)
    return Batch.of(auxiliary, ids, train_mask=train, **masks)


def trials(auxiliary: Any, rule: tint.LearningRule, batch: Batch, *spans: Span, **knobs: Any) -> Trials:
    targets = batch.train_positions.sum(1).double()
    return Trials(auxiliary, rule, [fold(batch, span) for span in spans], targets, **knobs)


@pytest.mark.parametrize("name", ["default", "two steps", "mean"])
def test_a_fold_learns_as_a_call_on_its_tokens_does(auxiliary: Any, ids: torch.Tensor, name: str) -> None:
    knobs = {"default": {}, "two steps": {"steps": 2}, "mean": {"reduction": "mean"}}[name]
    rule = tint.LearningRule(learning_rate=0.0, **knobs)
    found = trials(auxiliary, rule, batch_of(auxiliary, ids), HALVES).losses(0.02)
    # 9 of 19 targets train: with a summed loss the step is made as long as that of all 19.
    stretch = 1 if name == "mean" else 19 / 9
    call = tint.Tint(auxiliary, replace(rule, learning_rate=0.02 * stretch), engine="reference")
    out = call(ids[:, :20], train_mask=(torch.arange(20) < 10).expand(2, 20))
    assert found is not None
    torch.testing.assert_close(found, out.token_loss[out.evaluation_mask])


@pytest.mark.parametrize("engine", ["reference", "oracle", "simulator"])
def test_engines_agree(auxiliary: Any, ids: torch.Tensor, engine: str) -> None:
    rule, batch = tint.LearningRule(learning_rate=0.0), batch_of(auxiliary, ids)
    fast, other = (trials(auxiliary, rule, batch, *THREE, engine=each).losses(0.02) for each in ("fast", engine))
    torch.testing.assert_close(fast, other)


def test_folds_in_one_pass_are_those_one_by_one(auxiliary: Any, ids: torch.Tensor) -> None:
    rule, batch = tint.LearningRule(learning_rate=0.0), batch_of(auxiliary, ids)
    together = trials(auxiliary, rule, batch, *THREE)
    apart = [trials(auxiliary, rule, batch, span) for span in THREE]
    for rate in (0.0, 0.01, 0.03):
        losses = [each.losses(rate) for each in apart]
        found = together.losses(rate)
        assert found is not None and len(found) == 30  # each quarter but the first, of two rows, once
        torch.testing.assert_close(found, torch.cat([each for each in losses if each is not None]))


def test_one_update_of_all_rows(auxiliary: Any, ids: torch.Tensor) -> None:
    """Four equal rows sum to four times the gradient of one."""
    rows = ids[:1].repeat(4, 1)
    for steps in (1, 2):
        rule = tint.LearningRule(learning_rate=0.0, steps=steps)
        alone = trials(auxiliary, rule, batch_of(auxiliary, rows[:1]), *THREE).losses(0.04)
        pooled = trials(auxiliary, rule, batch_of(auxiliary, rows), *THREE, together=True).losses(0.01)
        assert alone is not None and pooled is not None
        torch.testing.assert_close(pooled.view(3, 4, 5), alone.view(3, 1, 5).expand(3, 4, 5))


def test_tokens_outside_of_the_training_part_are_hidden() -> None:
    model, given = tint.load(make_model("llama")), make_batch(lengths=(24, 17), padding="left")
    other = {**given, "input_ids": given["input_ids"].clone()}
    other["input_ids"][~given["train_mask"]] = 5
    found = [
        trials(model, make_rule("default"), Batch.of(model, **each), HALVES).losses(0.01) for each in (given, other)
    ]
    assert found[0] is not None and found[1] is not None and torch.equal(found[0], found[1])


def test_only_labels_are_scored_and_segments_stay_apart(auxiliary: Any, ids: torch.Tensor) -> None:
    labels = (torch.arange(24) % 4 == 3).expand(ids.shape)
    segments = (torch.arange(24) // 8).expand(ids.shape)
    batch = batch_of(auxiliary, ids, 24, loss_mask=labels, segment_ids=segments)
    found = trials(auxiliary, tint.LearningRule(learning_rate=0.0), batch, HALVES).losses(0.0)
    assert found is not None and len(found) == 2 * 3  # tokens 15, 19 and 23


def test_divergence_is_no_number(auxiliary: Any, ids: torch.Tensor) -> None:
    rule = tint.LearningRule(learning_rate=0.0, steps=3)
    assert trials(auxiliary, rule, batch_of(auxiliary, ids), HALVES).losses(1e200) is None
