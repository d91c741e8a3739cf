# pyright: basic
"""The learning rate `auto`: trials inside the training part and the model's prior, and which of them decides."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TEXT, make_model, make_tokenizer

import tintformer as tint
from tintformer.learning import rate_prior, rate_selection
from tintformer.learning.rate_prior import LengthTable, PriorCurve, RatePrior, identity, weights_of, write_prior
from tintformer.learning.rate_selection import RateChoice, RatePoint, choose_rate, estimate

RULE = tint.LearningRule(learning_rate=0.0)


@pytest.fixture(scope="module")
def auxiliary() -> Any:
    return tint.load(make_model(len(make_tokenizer())))


@pytest.fixture(scope="module")
def input_ids() -> torch.Tensor:
    return torch.tensor([make_tokenizer()(TEXT)["input_ids"]])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINTFORMER_CACHE", str(tmp_path))
    return tmp_path


def first(input_ids: torch.Tensor, count: int) -> torch.Tensor:
    return (torch.arange(input_ids.shape[1]) < count).expand_as(input_ids)


@pytest.fixture
def choice(auxiliary: Any, input_ids: torch.Tensor) -> RateChoice:
    return choose_rate(auxiliary, RULE, input_ids, first(input_ids, 60))


def keep_prior(auxiliary: Any, rule: tint.LearningRule, *, gain: float, spread: float) -> RatePrior:
    """A prior with one good step, 0.1, for the model and the rule."""
    steps = (0.01, 0.03, 0.1, 0.3, 1.0)
    shape = (0.2, 0.5, 1.0, -1.0, -5.0)
    table = LengthTable(
        tokens=32,
        pieces=9,
        loss=5.0,
        losses=(4.0, 6.0),
        gain=tuple(gain * each for each in shape),
        slope=(0.0,) * 5,
        spread=(spread,) * 5,
        trial_gain=tuple(0.5 * gain * each for each in shape),
        trial_slope=(0.0,) * 5,
    )
    prior = RatePrior(
        model="tiny", weights=(weights_of(auxiliary),), rule=identity(rule), steps=steps, lengths=(table,)
    )
    write_prior(prior, rate_prior.prior_file(prior.weights[0], prior.rule))
    return prior


def test_a_text_that_tells_decides_alone(choice: RateChoice) -> None:
    losses = {point.rate: point.loss for point in choice.curve}
    assert list(losses) == sorted(losses) and choice.curve[0].rate == 0
    assert choice.helps and choice.source == "text" and losses[choice.rate] < losses[0] - 0.1
    assert 0 < choice.interval[0] < choice.gain < choice.interval[1]
    assert (choice.train_tokens, choice.evaluation_tokens) == (60, 45)  # every quarter but the first
    assert choice.reason.startswith("a gain of ")


def test_a_prior_that_knows_better_outweighs_the_text(
    auxiliary: Any, input_ids: torch.Tensor, choice: RateChoice
) -> None:
    keep_prior(auxiliary, RULE, gain=0.5, spread=0.001)
    found = choose_rate(auxiliary, RULE, input_ids, first(input_ids, 60))
    assert found.helps and found.rate == pytest.approx(0.1 / 59, rel=1e-2) != choice.rate
    assert found.interval[1] - found.interval[0] < 0.01


def test_a_prior_that_knows_nothing_leaves_it_to_the_text(auxiliary: Any, input_ids: torch.Tensor) -> None:
    alone = choose_rate(auxiliary, RULE, input_ids, first(input_ids, 60), grid=[0.01])
    keep_prior(auxiliary, RULE, gain=0.0, spread=100.0)
    found = choose_rate(auxiliary, RULE, input_ids, first(input_ids, 60), grid=[0.01])
    assert alone.helps and found.helps and found.gain == pytest.approx(alone.gain, rel=1e-2)


def test_too_little_text_takes_the_rate_of_the_prior(auxiliary: Any, input_ids: torch.Tensor) -> None:
    short = first(input_ids, 12)
    nothing = choose_rate(auxiliary, RULE, input_ids, short)
    assert (nothing.rate, nothing.helps, nothing.source, nothing.curve) == (0.0, False, "nothing", ())
    assert nothing.reason.startswith("not enough text to tell: 12 tokens; no rates are known of this model and rule")
    keep_prior(auxiliary, RULE, gain=0.5, spread=0.1)
    found = choose_rate(auxiliary, RULE, input_ids, short)
    assert (found.helps, found.source) == (False, "prior") and found.rate == pytest.approx(0.1 / 31, rel=1e-2)
    assert found.reason.startswith("not enough text to tell: 12 tokens; ")
    mean = choose_rate(auxiliary, replace(RULE, reduction="mean"), input_ids, short)
    assert mean.rate == pytest.approx(11 * found.rate, rel=1e-2)  # of 11 targets: the same update
    other = choose_rate(auxiliary, replace(RULE, steps=2), input_ids, short)
    assert other.source == "nothing"  # the prior is that of another rule


def test_below_the_shortest_measured_length_the_rate_does_not_rise(auxiliary: Any, input_ids: torch.Tensor) -> None:
    """A piece of 32 tokens has 31 targets; a text of one target must not move the weights as far as they do."""
    keep_prior(auxiliary, RULE, gain=0.5, spread=0.001)
    rates = {count: choose_rate(auxiliary, RULE, input_ids, first(input_ids, count)).rate for count in (2, 12, 24, 32)}
    assert rates == dict.fromkeys(rates, pytest.approx(0.1 / 31, rel=1e-2))
    assert choose_rate(auxiliary, RULE, input_ids, first(input_ids, 60)).rate == pytest.approx(0.1 / 59, rel=1e-2)


def test_a_prior_without_a_gain_is_no_reason_to_learn(auxiliary: Any, input_ids: torch.Tensor) -> None:
    keep_prior(auxiliary, RULE, gain=0.01, spread=1.0)
    found = choose_rate(auxiliary, RULE, input_ids, first(input_ids, 12))
    assert (found.rate, found.source) == (0.0, "nothing") and "so nothing is learnt" in found.reason


def test_without_a_prior_a_text_that_no_rate_helps_is_not_learnt_from(auxiliary: Any, input_ids: torch.Tensor) -> None:
    found = choose_rate(auxiliary, RULE, input_ids, first(input_ids, 60), grid=[1e4, 1e3, 1e5])
    assert (found.rate, found.helps, len(found.curve)) == (0.0, False, 2)


def test_with_a_prior_few_rates_are_tried_and_the_best_of_all_is_found(auxiliary: Any, input_ids: torch.Tensor) -> None:
    prior = keep_prior(auxiliary, RULE, gain=0.1, spread=1.0)
    train, heard = first(input_ids, 60), list[RatePoint]()
    climbed = choose_rate(auxiliary, RULE, input_ids, train, on_point=heard.append)
    everything = choose_rate(
        auxiliary, RULE, input_ids, train, grid=[rate_prior.rate_of(step, 59, RULE) for step in prior.steps]
    )
    assert climbed.rate == everything.rate > 0 and climbed.gain == pytest.approx(everything.gain, rel=1e-6)
    assert [point.rate * 59 for point in heard[:4]] == pytest.approx([0, 0.03, 0.1, 0.3], rel=1e-2), "by the prior's"
    assert sorted(heard, key=lambda point: point.rate) == list(climbed.curve)


def test_estimates_lie_between_trials_and_prior() -> None:
    gains = torch.tensor([[0.1, 0.3, 0.1, 0.3], [1.0, -1.0, 1.0, -1.0]], dtype=torch.float64)
    known = PriorCurve(
        steps=torch.tensor([0.1, 0.2], dtype=torch.float64),
        gain=torch.tensor([0.1, 0.1], dtype=torch.float64),
        spread=torch.tensor([0.1, 0.1], dtype=torch.float64),
        trial_gain=torch.tensor([0.05, 0.05], dtype=torch.float64),
    )
    gain, deviation = estimate(gains, known)
    assert 0.1 < gain[0] < 0.4 and 0 < deviation[0] < 0.1  # what the trials show, doubled, is 0.4
    assert gain[1] == pytest.approx(0.1, abs=0.01) and deviation[1] == pytest.approx(0.1, abs=0.01)
    alone, error = estimate(gains, None)
    assert alone.tolist() == pytest.approx([0.2, 0.0])
    assert float(error[0]) == pytest.approx(rate_selection.INFLATION * float(gains[0].std()) / 2)


@pytest.mark.parametrize("together", [False, True])
def test_tokens_outside_of_the_training_part_do_not_matter(
    auxiliary: Any, input_ids: torch.Tensor, together: bool
) -> None:
    rows, train = input_ids.repeat(2, 1), first(input_ids, 60).repeat(2, 1)
    train[1, 40:] = False
    other = torch.where(train, rows, torch.full_like(rows, 5))
    seen = [choose_rate(auxiliary, RULE, each, train, grid=[1e-3, 1e-2], together=together) for each in (rows, other)]
    assert seen[0] == seen[1]


def test_packed_segments_and_labels(auxiliary: Any, input_ids: torch.Tensor) -> None:
    ids = input_ids[:, :80]
    heard: list[RatePoint] = []
    choice = choose_rate(
        auxiliary,
        RULE,
        ids,
        torch.ones_like(ids),
        grid=[1e-3, 1e-2],
        loss_mask=torch.arange(80)[None] % 4 == 3,
        segment_ids=torch.arange(80)[None] // 20,
        position_ids=torch.arange(80)[None] % 20,
        on_point=heard.append,
    )
    assert choice.evaluation_tokens == 15 and tuple(heard) == choice.curve
    assert [point.rate for point in choice.curve] == [0, 1e-3, 1e-2]


def test_labels_that_leave_a_fold_empty_are_no_evidence(auxiliary: Any, input_ids: torch.Tensor) -> None:
    late = torch.arange(input_ids.shape[1])[None] > 30
    choice = choose_rate(auxiliary, RULE, input_ids, first(input_ids, 60), loss_mask=late)
    assert (choice.rate, choice.curve) == (0.0, ())


def test_divergence_is_an_infinite_loss(auxiliary: Any, input_ids: torch.Tensor) -> None:
    rule = replace(RULE, steps=3)
    choice = choose_rate(auxiliary, rule, input_ids, first(input_ids, 60), grid=[1e-4, 1e30])
    assert [point.loss == math.inf for point in choice.curve] == [False, False, True]
    assert choice.rate in (0.0, 1e-4)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"grid": []}, "must hold finite rates above 0"),
        ({"grid": [math.nan]}, "must be a finite number above 0"),
        ({"engine": "steam"}, "engine='steam' is unknown"),
    ],
)
def test_bad_input(auxiliary: Any, input_ids: torch.Tensor, knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.TintError, match=message):
        choose_rate(auxiliary, RULE, input_ids, first(input_ids, 20), **knobs)


@pytest.mark.filterwarnings("ignore::tintformer.TintWarning")
def test_a_row_without_a_target_is_not_learnt_from(auxiliary: Any, input_ids: torch.Tensor) -> None:
    assert choose_rate(auxiliary, RULE, input_ids, first(input_ids, 1)).rate == 0
