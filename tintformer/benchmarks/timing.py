"""Time as ratios: all contestants take turns in one process, so that drift of the machine hits all alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from statistics import median

import torch

from tintformer.benchmarks.contestant import Contestant


def take_turns(
    contestants: Mapping[str, Contestant], repetitions: int, on_turn: Callable[[str], None]
) -> dict[str, list[float]]:
    """Seconds of `repetitions` rounds in which each runs once, scaled to the whole case."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repetitions):
        for name, contestant in contestants.items():
            on_turn(f"{name}: {turn + 1} of {repetitions}")
            gc.collect()  # nobody pays for the garbage of the one before
            seconds[name].append(_seconds(contestant.run) * contestant.scale)
    return seconds


def median_seconds(function: Callable[[], object], repetitions: int) -> float:
    """The median time of a call, after one to warm up."""
    function()
    return median(_seconds(function) for _ in range(repetitions))


def multiply_add_peak(dtype: torch.dtype, *, size: int = 2048, tries: int = 5) -> float:
    """Multiply-adds a second of the best of several square products, with the threads of this process."""
    left, right = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    result = left @ right
    return size**3 / min(_seconds(lambda: torch.mm(left, right, out=result)) for _ in range(tries))


@contextmanager
def threads(number: int) -> Generator[None]:
    """Torch with so many threads, and as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
