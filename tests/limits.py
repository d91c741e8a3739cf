# pyright: basic
"""What a call costs at its peak, in a process of its own: memory, processor time, and how it ended.

    outcomes = measure("tintformer:load", [directory, ...])

One process imports what is slow to import and forks for each argument; a fork can take no more than the limits below,
so that a file which asks for all memory ends the fork and not the machine.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from patience import PATIENCE

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
    """Bytes that were resident at most."""

    @property
    def is_cheap(self) -> bool:
        return self.peak < MAX_BYTES and self.seconds < MAX_SECONDS


def measure(function: str, arguments: list[Path] | list[str]) -> list[Outcome]:
    """Call `module:name` with each of the arguments."""
    command = [sys.executable, "-W", "ignore", __file__, function, *map(str, arguments)]
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, env=environment
    )
    assert done.returncode == 0, done.stderr
    return [Outcome(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]


def _main() -> None:
    module, name = sys.argv[1].split(":")
    import transformers.models.auto.modeling_auto
    import transformers.models.auto.tokenization_auto  # noqa: F401

    function = getattr(import_module(module), name)
    for argument in sys.argv[2:]:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _call(function, argument, writing)
        os.close(writing)
        with os.fdopen(reading) as stream:
            said = stream.read()
        _, status, used = os.wait4(child, 0)
        ended = (
            json.loads(said) if said else {"error": f"signal {os.WTERMSIG(status)}", "message": "", "is_ours": False}
        )
        seconds, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
        print(json.dumps(ended | {"seconds": seconds, "peak": peak}), flush=True)


def _call(function, argument: str, writing: int) -> None:
    from tintformer.errors import TintError

    resource.setrlimit(resource.RLIMIT_AS, (_HARD_BYTES, _HARD_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_HARD_SECONDS, _HARD_SECONDS))
    ended = {"error": "", "message": "", "is_ours": False}
    try:
        function(argument)
    except BaseException as error:
        ended = {"error": type(error).__name__, "message": str(error)[:4000], "is_ours": isinstance(error, TintError)}
        if not isinstance(error, TintError):
            traceback.print_exc()
    os.write(writing, json.dumps(ended).encode())
    os._exit(0)


if __name__ == "__main__":
    _main()
