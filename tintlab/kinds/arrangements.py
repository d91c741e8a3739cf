"""Arrangements of demonstrations: in which order and with which labels they are shown, and how many fit.

By the hash of seed and text, as all choices of examples: the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

from tintlab.data.packing import multi
from tintlab.data.prompts import Encoder
from tintlab.data.tasks import Example
from tintlab.study.store import sha256

Labels = Literal["true", "shuffled"]
LEAST = 2
"""Demonstrations at least: a single one has no order, and no label that could be shuffled."""
ATTEMPTS = 1000


def arranged(
    demonstrations: Sequence[Example], seed: int, order: int, labels: Labels, num_labels: int
) -> tuple[Example, ...]:
    """Demonstrations in order number `order`, 0 being that in which they are drawn, with their labels or others'."""
    shown = shuffled(demonstrations, seed, num_labels) if labels == "shuffled" else tuple(demonstrations)
    if order == 0:
        return shown
    return tuple(sorted(shown, key=lambda example: sha256(f"order {order} {seed}\n{example.text}")))


def shuffled(demonstrations: Sequence[Example], seed: int, num_labels: int) -> tuple[Example, ...]:
    """The same texts with their labels dealt out anew: no more of them keep theirs than guessing would get right."""
    given = [example.label for example in demonstrations]
    most = -(-len(given) // num_labels)
    labels = given
    # Some permutations of few labels change nothing, which would be no control.
    for attempt in range(ATTEMPTS):
        places = sorted(range(len(given)), key=lambda at: sha256(f"labels {seed} {len(given)} {attempt} {at}"))
        labels = [given[at] for at in places]
        if sum(one == other for one, other in zip(labels, given, strict=True)) <= most:
            break
    return tuple(replace(example, label=label) for example, label in zip(demonstrations, labels, strict=True))


def fitting(
    encoder: Encoder, shots: int, text: str, arrangements: Callable[[int], Iterable[Sequence[Example]]]
) -> int | None:
    """How many demonstrations fit before a test input, however they are arranged; None if not even `LEAST` do."""
    count = shots
    while count >= LEAST:
        fit = min(multi(encoder, shown, text).num_demonstrations for shown in arrangements(count))
        if fit == count:
            return count
        count = fit
    return None
