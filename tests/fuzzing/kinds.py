# pyright: basic
"""What a case of the attack is: a kind and a seed, which together decide everything about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any


class Finding(AssertionError):
    """Something that must not happen; the message says what, in a few lines."""


@dataclass(frozen=True)
class Kind:
    """One kind of case: what it does with a seed, in a directory of its own."""

    name: str
    run: Callable[[int, Path], str]
    """Raises `Finding`; returns a word for the outcome ("same", "refused", ...), which is counted."""
    arrange: Callable[[int, Path], None] = lambda seed, place: None
    """What is put into the directory before anything is watched or measured."""
    group: int = 1
    """Cases that run in one process, one after the other: those that share a model, which is dear to make."""
    prepare: Callable[[], Any] = lambda: None
    """What is done once, before processes are forked off: imports, and files that will be damaged."""
    guarded: bool = False
    """Whether the files of a case are hostile, so that its process must not write, connect or run anything."""


def draw(kind: str, seed: int) -> Random:
    """The random numbers of a case."""
    return Random(f"{kind} {seed}")


def require(condition: bool, message: str) -> None:
    """An assertion that is a finding where it fails."""
    if not condition:
        raise Finding(message)
