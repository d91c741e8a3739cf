# pyright: basic
"""Values that somebody else chose are short in messages, and never built in full."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest

from tintformer.errors import LISTED, LONGEST, LONGEST_CAUSE, brief, cause, listed


def tower(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value] * 10
    return value


def loop() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


VALUES: dict[str, Any] = {
    "ten to the thirty lists": tower(30),
    "mappings": {str(number): {number: tower(9)} for number in range(10_000)},
    "a long text": "x" * 10_000_000,
    "a text of lines": "a\nb\x1b[31m" * 100,
    "halves of characters": "\ud800" * 50,
    "bytes": b"\xff" * 10_000_000,
    "many digits": 10**100_000,
    "digits in lists": [[10**100_000]],
    "a list in itself": loop(),
    "a set": set(range(100_000)),
    "a date": datetime.date(2024, 1, 1),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_are_short_and_printable(case: str) -> None:
    started = time.process_time()
    shown = brief(VALUES[case])
    assert len(shown) <= LONGEST and shown.isprintable()
    assert time.process_time() - started < 5


def test_short_values_are_shown_as_they_are() -> None:
    for value in ("a", 5, -1.5, None, True, [1, 2], {"a": "b"}, "é", b"x"):
        assert brief(value) == repr(value)


def test_lists_of_names_and_what_libraries_say() -> None:
    assert listed(["a", "b"]) == "a, b" and listed([]) == ""
    assert listed(map(str, range(10**9))).endswith(f"{LISTED - 1}, ...")
    assert len(listed(["x" * 10**6] * 100)) < 20 * LONGEST
    assert len(cause(ValueError("x" * 10**6))) == LONGEST_CAUSE
