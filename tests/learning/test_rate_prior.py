# pyright: basic
"""Priors: measured on texts, kept under weights and rule, found again, and refused when they are damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TEXT, make_model, make_tokenizer

import tintformer as tint
from tintformer.bundled import BUNDLED, rate_texts, rates_directory
from tintformer.learning import rate_prior
from tintformer.learning.rate_prior import (
    PriorCurve,
    RatePrior,
    find_prior,
    prior_file,
    read_prior,
    weights_of,
    write_prior,
)
from tintlab import rates as rate_measurement
from tintlab.rates import measure

RULE = tint.LearningRule(learning_rate=0.0)


@pytest.fixture(scope="module")
def auxiliary() -> Any:
    return tint.load(make_model(len(make_tokenizer())))


@pytest.fixture(scope="module")
def prior(auxiliary: Any) -> RatePrior:
    ids = make_tokenizer()(TEXT * 2)["input_ids"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rate_measurement, "EVALUATED", 32)
        return measure(auxiliary, RULE, [ids, ids[20:], ids[40:]])


@pytest.fixture(scope="module")
def fetched(smollm2: Path) -> Any:
    """From the cache of the session, where it is unpacked already: `cache` has every test begin with none."""
    return tint.load(smollm2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINTFORMER_CACHE", str(tmp_path))
    return tmp_path


def test_it_knows_which_steps_help_at_which_length(prior: RatePrior) -> None:
    assert [table.tokens for table in prior.lengths] == [32] and prior.lengths[0].pieces >= 6
    table = prior.lengths[0]
    assert max(table.gain) > 0.1 and table.gain[0] < max(table.gain) and table.gain[-1] == rate_prior.WORST
    assert all(len(getattr(table, name)) == len(prior.steps) for name in ("slope", "spread", "trial_gain"))


def test_what_was_measured_is_not_measured_again(
    auxiliary: Any, prior: RatePrior, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measurement that is ended after some pieces goes on with the others, and finds the same."""
    monkeypatch.setattr(rate_measurement, "EVALUATED", 32)
    ids = make_tokenizer()(TEXT * 2)["input_ids"]
    texts = [ids, ids[20:], ids[40:]]
    num_pieces = len({tuple(piece) for text in texts for piece in rate_measurement._pieces(text, 32)})
    gains, calls = rate_measurement._gains, list[int]()

    def ends_early(*given: Any) -> list[float]:
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return gains(*given)

    monkeypatch.setattr(rate_measurement, "_gains", ends_early)
    with pytest.raises(KeyboardInterrupt):
        measure(auxiliary, RULE, texts)
    assert measure(auxiliary, RULE, texts) == prior
    assert len(calls) == 2 + 2 * num_pieces, "two a piece, and those of the one that was not completed"
    monkeypatch.setattr(rate_measurement, "_gains", None)
    assert measure(auxiliary, RULE, texts, lengths=[32, 32]) == prior
    for file in (cache / "rates" / "pieces").iterdir():
        file.write_text(file.read_text().replace("trial_gains", "other"))
    with pytest.raises(tint.LoadError, match=r"cannot read what was measured in .*; remove that directory"):
        measure(auxiliary, RULE, texts)


def test_it_is_found_under_the_weights_and_the_rule(auxiliary: Any, prior: RatePrior) -> None:
    assert find_prior(auxiliary, RULE) is None
    write_prior(prior, prior_file(prior.weights[0], prior.rule))
    assert find_prior(auxiliary, replace(RULE, learning_rate=1.0, reduction="mean")) == prior
    assert find_prior(auxiliary, replace(RULE, layers=1)) is None
    other = tint.load(make_model(len(make_tokenizer())))
    assert find_prior(other, RULE) == prior
    with torch.no_grad():
        next(other.model.parameters()).add_(1.0)
    assert find_prior(other, RULE) is None and weights_of(other) != prior.weights[0]


def test_lengths_and_losses_between(prior: RatePrior) -> None:
    table = prior.lengths[0]
    longer = replace(table, tokens=128, gain=tuple(each + 1 for each in table.gain))
    both = replace(prior, lengths=(table, longer))
    for count, more in ((8, 0.0), (32, 0.0), (64, 0.5), (128, 1.0), (5000, 1.0)):
        known = both.at(count, table.loss)
        assert known.gain.tolist() == pytest.approx([each + more for each in table.gain])
    low, high = (both.at(32, loss).gain for loss in (-100.0, table.losses[0]))
    assert torch.equal(low, high)  # the line does not go on beyond the losses that were seen


def test_steps_between_and_outside() -> None:
    values = torch.tensor([0.2, 0.4], dtype=torch.float64)
    known = PriorCurve(
        steps=torch.tensor([0.01, 0.1], dtype=torch.float64), gain=values, spread=values, trial_gain=values
    )
    found = known.at(torch.tensor([0.001, 0.01, 10**-1.5, 0.1, 1.0], dtype=torch.float64))
    assert found.gain.tolist() == pytest.approx([0.02, 0.2, 0.3, 0.4, rate_prior.WORST])


def test_texts_that_are_too_short(auxiliary: Any) -> None:
    with pytest.raises(tint.InputError, match="the texts give 0 pieces of 160 tokens, at most 3 of one text; 6 are"):
        measure(auxiliary, RULE, [list(range(10))])


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found.update(format="tintformer-rates-9"),
        lambda found: found.pop("steps"),
        lambda found: found.update(steps=[1.0]),
        lambda found: found.update(steps=["a"] * len(found["steps"])),
        lambda found: found.update(lengths=[]),
        lambda found: found["lengths"][0].update(gain=[0.0]),
        lambda found: found["lengths"][0].update(gain=[None] * len(found["steps"])),
        lambda found: found["lengths"][0].pop("loss"),
        lambda found: found.update(more=1),
        lambda found: found.update(lengths={"a": 1}),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, prior: RatePrior, damage: Any) -> None:
    file = tmp_path / "prior.json"
    write_prior(prior, file)
    assert read_prior(file) == prior
    found = json.loads(file.read_text())
    damage(found)
    file.write_text(json.dumps(found))
    with pytest.raises(tint.LoadError, match=r"cannot read the rates in .*; remove it, or measure anew"):
        read_prior(file)


@pytest.mark.parametrize("name", BUNDLED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_bundled_models_have_one(name: str, dtype: torch.dtype) -> None:
    found = find_prior(tint.load(name, dtype=dtype), RULE)
    assert found is not None and len(found.lengths) >= 2


@pytest.mark.slow
@pytest.mark.real
def test_the_model_that_can_be_fetched_has_one(fetched: Any) -> None:
    found = find_prior(fetched, RULE)
    assert found is not None and found.model == "smollm2-135m"


def test_what_ships_can_be_read() -> None:
    assert all(read_prior(file).lengths for file in rates_directory().glob("*.json"))
    assert len(rate_texts()) >= 10 and all(len(text) > 1000 for text in rate_texts())
