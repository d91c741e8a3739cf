# pyright: basic
"""What a call costs at its peak, in a process of its own: memory, processor time, and how it ended.

    outcomes = measure(load, [directory, ...])

Each argument is a fork of this process, which has imported what is slow to import. A fork can take no more than the
limits below, so that a file which asks for all memory ends the fork and not the machine.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES, MAX_SECONDS = 2 * 2**30, 20
"""What loading any file may take."""
_HARD_BYTES, _HARD_SECONDS = 24 * 2**30, 120
"""Where a fork is ended: address space, of which libraries map a lot that they never use, and processor time."""


@dataclass(frozen=True)
class Outcome:
    """How one call ended."""

    error: str
    """The class of what it raised, "signal 9" for a fork that was killed, or nothing."""
    message: str
    is_ours: bool
    """Whether it raised a TintError."""
    seconds: float
    """Of the processor, which a busy machine does not change."""
    peak: int
    """Bytes that were resident at most, on top of what was there before."""

    @property
    def is_cheap(self) -> bool:
        return self.peak < MAX_BYTES and self.seconds < MAX_SECONDS


def measure(function: Callable[[str], object], arguments: list[Path]) -> list[Outcome]:
    """Call a function with each of the arguments."""
    import transformers.models.auto.modeling_auto
    import transformers.models.auto.tokenization_auto  # noqa: F401

    return [_measure(function, str(argument)) for argument in arguments]


def _measure(function: Callable[[str], object], argument: str) -> Outcome:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        gc.freeze()  # a collection would touch, and so copy, every page with an object
        os.close(reading)
        _call(function, argument, writing)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    _, status, used = os.wait4(child, 0)
    killed = {"error": f"signal {os.WTERMSIG(status)}", "message": "", "is_ours": False, "before": 0}
    ended = json.loads(said) if said else killed
    peak = 1024 * (used.ru_maxrss - ended.pop("before"))
    return Outcome(**ended, seconds=used.ru_utime + used.ru_stime, peak=peak)


def _call(function: Callable[[str], object], argument: str, writing: int) -> None:
    """Never returns."""
    from tintformer.errors import TintError

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of the process that was forked
    resource.setrlimit(resource.RLIMIT_AS, (_HARD_BYTES, _HARD_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_HARD_SECONDS, _HARD_SECONDS))
    warnings.simplefilter("ignore")
    ended = {"error": "", "message": "", "is_ours": False}
    try:
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), 0)
        function(argument)
    except BaseException as error:
        ended = {"error": type(error).__name__, "message": str(error)[:4000], "is_ours": isinstance(error, TintError)}
        if not isinstance(error, TintError):
            traceback.print_exc()
    os.write(writing, json.dumps(ended | {"before": before}).encode())
    os._exit(0)
