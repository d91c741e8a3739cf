"""How time and memory are measured.

Time as ratios: all methods take turns in one process, so that drift of the machine hits all alike. Peak memory above
the weights, each method in a fresh process, so that peaks do not mix: the child loads the model, runs the method once
on a tiny case (libraries allocate what they keep), and then watches the high-water mark of its resident memory while it
prepares and runs the method on the real case. Linux only: the mark can be reset there.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from tintbench.setup import TimedMethod

PROC = Path("/proc/self")


class Seconds(NamedTuple):
    """The time of one run."""

    clock: float
    processor: float
    """Of all threads together, which others on the machine lengthen less."""


def take_turns(
    methods: Mapping[str, TimedMethod], repetitions: int, on_turn: Callable[[str], None]
) -> dict[str, list[Seconds]]:
    """Seconds of `repetitions` rounds in which each runs once, scaled to the whole case."""
    seconds: dict[str, list[Seconds]] = {name: [] for name in methods}
    for turn in range(repetitions):
        for name, method in methods.items():
            on_turn(f"{name}: {turn + 1} of {repetitions}")
            gc.collect()  # nobody pays for the garbage of the one before
            processor = time.process_time()
            clock = seconds_of(method.run)
            processor = time.process_time() - processor
            seconds[name].append(Seconds(clock * method.scale, processor * method.scale))
    return seconds


def median_seconds(function: Callable[[], object], repetitions: int) -> float:
    """The median time of a call, after one to warm up."""
    function()
    return median(seconds_of(function) for _ in range(repetitions))


def multiply_add_peak(dtype: torch.dtype, device: str = "cpu", *, size: int = 2048, tries: int = 5) -> float:
    """Multiply-adds a second of the best of several square products, with the threads of this process."""
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    result = left @ right
    return size**3 / min(seconds_of(lambda: torch.mm(left, right, out=result)) for _ in range(tries))


@contextmanager
def threads(number: int) -> Generator[None]:
    """Torch with so many threads, and as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds_of(function: Callable[[], object]) -> float:
    """The time of one call, until its last result is there."""
    start = time.perf_counter()
    function()
    if torch.accelerator.is_available():  # what runs there is only begun by a call
        torch.accelerator.synchronize()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Peak:
    """Bytes above the loaded model, or None and why."""

    size: int | None = None
    why_not: str = ""


def in_a_fresh_process(*arguments: str) -> Peak:
    """Run Python with these arguments; it prints what it measured last."""
    # Freed memory must go back to the system here, or old garbage hides new peaks.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    if not (PROC / "clear_refs").exists():
        return Peak(why_not="peak memory needs Linux")
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Peak(why_not=f"no peak memory: {reason}")
    return Peak(int(done.stdout.split()[-1]))


def peak_of(work: Callable[[], object]) -> int:
    """By how many bytes the resident memory of this process rises, at most, while it works."""
    _give_back()
    before = _status("VmRSS")
    (PROC / "clear_refs").write_text("5")
    work()
    return max(_status("VmHWM") - before, 0)


def _give_back() -> None:
    """Return freed memory to the system, where the C library can be asked to."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status(key: str) -> int:
    """Bytes from a line such as `VmHWM:   1736 kB`."""
    lines = (PROC / "status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
