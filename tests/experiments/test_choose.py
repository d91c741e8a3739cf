# pyright: basic
"""The choice of examples: the same everywhere, growing without change, and never what is tested on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tintformer.errors import InputError
from tintformer.experiments.tasks import Example, Prompt, Task, demonstrations, test_examples, tuning_examples

LABELS = ("bad", "middling", "good")


def make_task(num_train: int = 90, num_test: int = 60) -> Task:
    return Task(
        name="mine",
        title="Mine",
        labels=LABELS,
        prompt=Prompt(template="{text} is", words=LABELS),
        train=tuple(Example(f"train {number}", number % 3) for number in range(num_train)),
        test=tuple(Example(f"test {number}", number % 3) for number in range(num_test)),
    )


TASK = make_task()


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 5), st.booleans())
def test_three_disjoint_choices_that_grow(k: int, n: int, seed: int, balanced: bool) -> None:
    shown = demonstrations(TASK, k, seed, balanced)
    tested = test_examples(TASK, n, balanced)
    tuned = tuning_examples(TASK, n, seed, shown, balanced)
    assert (len(shown), len(tested), len(tuned)) == (k, n, n)
    assert len({example.text for example in (*shown, *tested, *tuned)}) == k + 2 * n
    assert set(shown) | set(tuned) <= set(TASK.train) and set(tested) <= set(TASK.test)
    assert demonstrations(TASK, k + 1, seed, balanced)[:k] == shown
    assert test_examples(TASK, n + 1, balanced)[:n] == tested
    assert tuning_examples(TASK, n + 1, seed, shown, balanced)[:n] == tuned
    if balanced:
        for choice in (shown, tested, tuned):
            counts = Counter(example.label for example in choice)
            assert max(counts.values(), default=0) - min((counts[label] for label in range(3)), default=0) <= 1


def test_the_choice_is_written_down() -> None:
    """These very examples on every machine and in every version: a change makes all records another experiment's."""
    assert [example.text for example in demonstrations(TASK, 5, seed=0)] == DEMONSTRATIONS
    assert [example.text for example in test_examples(TASK, 4)] == TESTED
    assert [example.text for example in tuning_examples(TASK, 4, seed=0)] == TUNED


DEMONSTRATIONS = ["train 6", "train 65", "train 52", "train 17", "train 61"]
TESTED = ["test 38", "test 13", "test 48", "test 17"]
TUNED = ["train 48", "train 56", "train 7", "train 12"]


def test_seeds_differ_and_the_order_of_the_file_does_not_matter() -> None:
    assert set(demonstrations(TASK, 12, 0)) != set(demonstrations(TASK, 12, 1))
    turned = replace(TASK, train=TASK.train[::-1], test=TASK.test[::-1])
    assert demonstrations(turned, 12, 0) == demonstrations(TASK, 12, 0)
    assert test_examples(turned, 12) == test_examples(TASK, 12)
    labels = [example.label for example in demonstrations(TASK, 30, 0)]
    rounds = {tuple(labels[start : start + 3]) for start in range(0, 30, 3)}
    assert all(sorted(turn) == [0, 1, 2] for turn in rounds) and len(rounds) > 2  # labels come in no fixed order


def test_texts_that_occur_twice_count_once_and_those_of_the_test_set_are_not_trained_on() -> None:
    doubled = replace(TASK, train=(*TASK.train, *TASK.train, Example("test 0", 0), Example("train 0", 2)))
    assert len(demonstrations(doubled, 90, 0, balanced=False)) == 90
    assert demonstrations(doubled, 90, 0) == demonstrations(TASK, 90, 0)
    with pytest.raises(InputError, match="k=91, but mine has 90 examples for this; take fewer"):
        demonstrations(doubled, 91, 0, balanced=False)


def test_all_and_too_many() -> None:
    uneven = replace(TASK, test=TASK.test[:10])
    assert len(test_examples(uneven)) == 9 and len(test_examples(uneven, balanced=False)) == 10
    with pytest.raises(InputError) as error:
        test_examples(uneven, 12)
    assert str(error.value) == (
        "n=12 over 3 labels, but mine has 3 examples of 'middling' for this; take at most 9, or do not balance"
    ) or "has 3 examples of 'good'" in str(error.value)
    with pytest.raises(InputError, match="k=-1; it cannot be less than 0"):
        demonstrations(TASK, -1, 0)
