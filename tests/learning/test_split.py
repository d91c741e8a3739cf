"""The one way in which a text is split."""

from __future__ import annotations

from typing import Any

import pytest

import tintformer as tint
from tintformer.learning.split import Split


def test_the_training_part() -> None:
    assert Split().of(11) in (5, 6)
    assert Split(train_fraction=0.75).of(8) == 6
    assert Split(train_tokens=7).of(8) == 7
    for split, num_tokens in ((Split(train_tokens=8), 8), (Split(train_fraction=0.01), 8)):
        with pytest.raises(tint.InputError, match="of 8 tokens"):
            split.of(num_tokens)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train_fraction": 1}, "train_fraction=1 must lie between 0 and 1"),
        ({"train_fraction": "half"}, "train_fraction='half' must be a number"),
        ({"train_tokens": 1}, "train_tokens=1 must be a whole number of at least 2"),
        ({"train_tokens": 2.5}, "train_tokens=2.5 must be a whole number"),
        ({"train_tokens": 5, "train_fraction": 0.5}, "give one of them"),
    ],
)
def test_what_is_no_split(given: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.InputError, match=message):
        Split(**given)
