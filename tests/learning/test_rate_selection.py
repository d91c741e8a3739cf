# pyright: basic
"""The learning rate `auto`: chosen inside the training part, never too large, always with its curve."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import make_batch, make_rule
from cases import make_model as make_case
from tiny import TEXT, make_model, make_tokenizer

import tintformer as tint
from tintformer.learning import rate_selection
from tintformer.learning.rate_selection import RateChoice, RatePoint, choose_rate, default_grid

RULE = tint.LearningRule(learning_rate=0.0)


@pytest.fixture(scope="module")
def auxiliary() -> Any:
    return tint.load(make_model(len(make_tokenizer())))


@pytest.fixture(scope="module")
def input_ids() -> torch.Tensor:
    return torch.tensor([make_tokenizer()(TEXT)["input_ids"]])


def first(input_ids: torch.Tensor, count: int) -> torch.Tensor:
    return (torch.arange(input_ids.shape[1]) < count).expand_as(input_ids)


@pytest.fixture(scope="module")
def choice(auxiliary: Any, input_ids: torch.Tensor) -> RateChoice:
    return choose_rate(auxiliary, RULE, input_ids, first(input_ids, 60))


def test_the_choice_is_just_below_the_best_point_of_its_curve(choice: RateChoice) -> None:
    losses = {point.rate: point.loss for point in choice.curve}
    assert list(losses) == sorted(losses) and choice.curve[0].rate == 0
    best = min(choice.curve, key=lambda point: point.loss)
    assert choice.rate == pytest.approx(best.rate / 10**0.25, rel=1e-2)
    assert choice.helps and best.loss <= losses[choice.rate] < losses[0] - 0.1
    assert (choice.train_tokens, choice.evaluation_tokens) == (48, 12)
    grid = set(default_grid(RULE.reduction, 47))
    around = sorted(set(losses) - grid - {0})
    coarse = min((point for point in choice.curve if point.rate in grid), key=lambda point: point.loss)
    assert [rate / coarse.rate for rate in around] == pytest.approx([10**-0.25, 10**0.25], rel=1e-2)


def test_going_up_stops_where_the_loss_is_clearly_worse(choice: RateChoice) -> None:
    untrained, *points = choice.curve
    worse = [point for point in points if point.loss > untrained.loss + rate_selection.CLEARLY_WORSE]
    assert len(worse) <= 2 and worse[-1] == points[-1]  # the last of the climb, and perhaps a refinement below it


def test_the_curve_is_what_a_pass_over_the_training_part_gives(
    auxiliary: Any, input_ids: torch.Tensor, choice: RateChoice
) -> None:
    part = input_ids[:, :60]
    for point in choice.curve[:4]:
        # 47 of 59 targets train: with a summed loss the step is made as long as that of all 59.
        rule = replace(RULE, learning_rate=point.rate * 59 / 47)
        out = tint.Tint(auxiliary, rule, engine="reference")(part, train_mask=first(part, 48))
        assert out.loss is not None
        assert point.loss == pytest.approx(float(out.loss), abs=1e-5)


def test_a_mean_loss_takes_larger_rates_and_the_same_steps(
    auxiliary: Any, input_ids: torch.Tensor, choice: RateChoice
) -> None:
    mean = choose_rate(auxiliary, replace(RULE, reduction="mean"), input_ids, first(input_ids, 60))
    losses = [{point.rate: point.loss for point in each.curve}[each.rate] for each in (mean, choice)]
    assert mean.rate == pytest.approx(47 * choice.rate, rel=0.8)
    assert losses[0] == pytest.approx(losses[1], abs=0.1)


@pytest.mark.parametrize("together", [False, True])
def test_tokens_outside_of_the_training_part_do_not_matter(together: bool) -> None:
    model, batch = make_case("llama"), make_batch(lengths=(24, 17), padding="left")
    other = {**batch, "input_ids": batch["input_ids"].clone()}
    other["input_ids"][~batch["train_mask"]] = 5
    seen = [
        choose_rate(model, make_rule("default"), each["input_ids"], each["train_mask"], together=together, **masks)
        for each in (batch, other)
        for masks in [{"attention_mask": each["attention_mask"]}]
    ]
    assert seen[0] == seen[1]


def test_rows_that_learn_together_want_a_smaller_rate(auxiliary: Any, input_ids: torch.Tensor) -> None:
    rows = input_ids[:, :60].repeat(4, 1)
    grid = [3e-4, 1e-3, 3e-3, 1e-2]
    alone, together = (
        choose_rate(auxiliary, RULE, rows, torch.ones_like(rows), grid=each, together=which)
        for which, each in ((False, [4 * rate for rate in grid]), (True, grid))
    )
    # Four equal rows sum to four times the gradient of one.
    assert [point.loss for point in together.curve] == pytest.approx([point.loss for point in alone.curve], abs=1e-3)


def test_packed_segments_and_labels(auxiliary: Any, input_ids: torch.Tensor) -> None:
    ids = input_ids[:, :60]
    labels = torch.arange(60)[None] % 4 == 3
    heard: list[RatePoint] = []
    choice = choose_rate(
        auxiliary,
        RULE,
        ids,
        torch.ones_like(ids),
        grid=[1e-3, 1e-2],
        loss_mask=labels,
        segment_ids=torch.arange(60)[None] // 12,
        position_ids=torch.arange(60)[None] % 12,
        on_point=heard.append,
    )
    assert choice.evaluation_tokens == 3 and tuple(heard) == choice.curve
    assert [point.rate for point in choice.curve] == [0, 1e-3, 1e-2]


def test_where_no_rate_helps_the_smallest_is_chosen_and_said_so(auxiliary: Any, input_ids: torch.Tensor) -> None:
    choice = choose_rate(auxiliary, RULE, input_ids, first(input_ids, 60), grid=[1e4, 1e3, 1e5])
    assert (choice.rate, choice.helps) == (1e3, False)
    assert len(choice.curve) == 2


def test_divergence_is_an_infinite_loss(
    auxiliary: Any, input_ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(self: tint.Tint, *_: Any, **__: Any) -> tint.TintOutput:
        if self.rule.learning_rate > 1e-3:
            raise tint.DivergenceError("block 0: not finite")
        return call(self, *_, **__)

    call = tint.Tint.__call__
    monkeypatch.setattr(tint.Tint, "__call__", diverge)
    choice = choose_rate(auxiliary, RULE, input_ids, first(input_ids, 60), grid=[1e-4, 1e-2, 1e-1])
    assert [point.loss == math.inf for point in choice.curve] == [False, False, True]
    assert choice.rate == 1e-4


def test_rates_below_the_start_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With losses without a softmax the usual start is already too high."""
    model, batch = make_case("gpt2"), make_batch(lengths=(40,))
    monkeypatch.setattr(rate_selection, "default_grid", lambda *_: tuple(10.0**exponent for exponent in range(-24, 1)))
    monkeypatch.setattr(rate_selection, "START", 24)
    choice = choose_rate(model, make_rule("quad"), batch["input_ids"], batch["train_mask"])
    assert choice.rate < 1e-2


@pytest.mark.parametrize(
    ("tokens", "knobs", "message"),
    [
        (3, {}, r"row 0 has 3 training tokens; choosing a learning rate needs at least 4"),
        (1, {}, r"row 0 has 1 training tokens"),
        (20, {"loss_mask": torch.arange(128)[None] == 1}, r"row 0 has 1 training targets .* 0 in the last fifth"),
        (20, {"grid": []}, "must hold finite rates above 0"),
        (20, {"grid": [0.0, 1.0]}, "must be a finite number above 0"),
        (20, {"grid": [math.nan]}, "must be a finite number above 0"),
        (20, {"engine": "steam"}, "engine='steam' is unknown"),
    ],
)
@pytest.mark.filterwarnings("ignore::tintformer.TintWarning")
def test_bad_input(auxiliary: Any, input_ids: torch.Tensor, tokens: int, knobs: dict[str, Any], message: str) -> None:
    if "loss_mask" in knobs:
        knobs = {"loss_mask": knobs["loss_mask"][:, : input_ids.shape[1]]}
    with pytest.raises(tint.TintError, match=message):
        choose_rate(auxiliary, RULE, input_ids, first(input_ids, tokens), **knobs)


def test_four_tokens_suffice(auxiliary: Any, input_ids: torch.Tensor) -> None:
    choice = choose_rate(auxiliary, RULE, input_ids, first(input_ids, 4), grid=[1e-4])
    assert (choice.train_tokens, choice.evaluation_tokens) == (3, 1)
