# pyright: basic
"""The frozen numbers cover every family and rule, and a change of values or of their places is noticed."""

from __future__ import annotations

import json

import pytest
from cases import FIRST, MODELS, RULES, make_batch, make_model, make_rule
from compare_numbers import FROZEN, Largest, projections
from number_cases import PRESETS, of_a_pass
from torch import Tensor

CASE = "gpt2/default"


@pytest.fixture(scope="module")
def numbers() -> dict[str, Tensor]:
    return dict(of_a_pass(CASE, "fast", make_model("gpt2"), make_rule("default", steps=2), make_batch()))


def differing(numbers: dict[str, Tensor]) -> set[str]:
    """The quantities that are not those that are frozen."""
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))[CASE]
    found = {quantity: abs(value - frozen[quantity]) / length for _, _, quantity, value, length in projections(numbers)}
    assert found.keys() == frozen.keys()
    return {quantity for quantity, difference in found.items() if difference > 1e-9}


def test_every_family_by_every_rule_and_every_model_by_the_presets_is_frozen() -> None:
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    wanted = {f"{name}/{rule}" for name in MODELS for rule in RULES if name in FIRST or rule in PRESETS}
    assert wanted <= frozen.keys()


def test_numbers_are_those_that_are_frozen(numbers: dict[str, Tensor]) -> None:
    assert differing(numbers) == set()


def test_values_that_change_places_are_noticed(numbers: dict[str, Tensor]) -> None:
    key = f"{CASE}/fast/row 1/transformer.h.0.attn.c_attn.weight"
    matrix = numbers[key]
    turned = matrix.mT.reshape(matrix.shape)
    for changed in (turned, matrix.flip(0), -matrix, matrix * (1 + 1e-6)):
        assert differing(numbers | {key: changed}) == {"matrices"}
    logits = f"{CASE}/fast/logits"
    assert differing(numbers | {logits: numbers[logits].roll(1, -1)}) == {"logits"}


@pytest.mark.parametrize("difference", [2.0, float("inf"), float("nan")])
def test_what_is_above_the_allowed_or_no_number_fails(difference: float, capsys: pytest.CaptureFixture[str]) -> None:
    largest = Largest("with something:")
    assert not largest.report(), "nothing was compared"
    largest.add("gpt2/default/fast/logits", 0.5, 1.0)
    assert largest.report()
    largest.add("llama/default/fast/logits", difference, 1.0)
    assert not largest.report() and "llama/default/fast/logits" in capsys.readouterr().out
