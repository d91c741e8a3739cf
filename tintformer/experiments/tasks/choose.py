"""Choosing examples: by the hash of seed and text, so that the choice is the same on every machine.

Nothing depends on the order of a file. The first n of a longer choice are the choice of n, so that an experiment grows
without a change of what it has done. Texts that occur twice count once, and a text of the test set is never trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import count

from tintformer.errors import InputError
from tintformer.experiments.tasks.task import Example, Task


def demonstrations(task: Task, k: int, seed: int, balanced: bool = True) -> tuple[Example, ...]:
    """The k training examples of a seed, in the order in which they are shown; `balanced` takes labels in turn.

    Few demonstrations make the result depend on the seed; many do not fit into the context of "multi".
    """
    return _take(task, _trainable(task), k, f"demonstrations {seed}", balanced, "k")


def test_examples(task: Task, n: int | None = None, balanced: bool = True) -> tuple[Example, ...]:
    """The first n test examples, the same for every seed; None takes all, or as many as can be balanced.

    With n = 200 one standard error of an accuracy is about 3 points; fewer say little.
    """
    examples = _distinct(task.test)
    if n is None:
        smallest = min(sum(example.label == label for example in examples) for label in range(len(task.labels)))
        n = smallest * len(task.labels) if balanced else len(examples)
    return _take(task, examples, n, "test", balanced, "n")


def tuning_examples(
    task: Task, n: int, seed: int, without: Sequence[Example] = (), balanced: bool = True
) -> tuple[Example, ...]:
    """Examples of the train pool to choose a learning rate on; `without` are the demonstrations of this seed.

    They are neither trained on nor tested. With few of them the choice of the rate is a guess.
    """
    used = {example.text for example in without}
    examples = [example for example in _trainable(task) if example.text not in used]
    return _take(task, examples, n, f"tuning {seed}", balanced, "n")


test_examples.__test__ = False  # pyright: ignore[reportFunctionMemberAccess] (pytest would take it for a test)


def _trainable(task: Task) -> list[Example]:
    tested = {example.text for example in task.test}
    return [example for example in _distinct(task.train) if example.text not in tested]


def _distinct(examples: Iterable[Example]) -> list[Example]:
    """One example a text: the one whose label is lowest, so that the order of the file does not matter."""
    found: dict[str, Example] = {}
    for example in examples:
        if example.text not in found or example.label < found[example.text].label:
            found[example.text] = example
    return list(found.values())


def _take(
    task: Task, examples: Sequence[Example], n: int, purpose: str, balanced: bool, name: str
) -> tuple[Example, ...]:
    """The first n by hash; balanced, one of each label in turn, the labels of every round in an order of its own."""
    if n < 0:
        raise InputError(f"{name}={n}; it cannot be less than 0")
    ordered = sorted(examples, key=lambda example: _place(purpose, example.text))
    if not balanced:
        if n > len(ordered):
            raise InputError(f"{name}={n}, but {task.name} has {len(ordered)} examples for this; take fewer")
        return tuple(ordered[:n])
    labels = range(len(task.labels))
    queues = {label: [example for example in ordered if example.label == label] for label in labels}
    chosen: list[Example] = []
    for turn in count():
        for label in sorted(labels, key=lambda label: _place(purpose, f"{turn} {label}")):
            if len(chosen) == n:
                return tuple(chosen)
            if turn == len(queues[label]):
                raise InputError(
                    f"{name}={n} over {len(labels)} labels, but {task.name} has {turn} examples of "
                    f"{task.labels[label]!r} for this; take at most {turn * len(labels)}, or do not balance"
                )
            chosen.append(queues[label][turn])
    raise AssertionError("the rounds never end by themselves")


def _place(purpose: str, text: str) -> str:
    return hashlib.sha256(f"{purpose}\n{text}".encode()).hexdigest()
