"""Peak memory above the weights, each contestant in a fresh process, so that peaks do not mix.

The child loads the model, runs the contestant once on a tiny case (libraries allocate what they keep), and then
watches the high-water mark of its resident memory while it prepares and runs the contestant on the real case. Linux
only: the mark can be reset there.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tintformer.benchmarks.cases import CASES, Case, FewShotCase, SequenceCase
from tintformer.benchmarks.contestants import prepare
from tintformer.benchmarks.settings import Settings
from tintformer.benchmarks.timing import threads

PROC = Path("/proc/self")


@dataclass(frozen=True)
class Peak:
    """Bytes above the loaded model, or None and why."""

    size: int | None = None
    why_not: str = ""


def measure_peak(settings: Settings, model: str, case: str, contestant: str) -> Peak:
    """Run one contestant once in a process of its own."""
    if not (PROC / "clear_refs").exists():
        return Peak(why_not="peak memory needs Linux")
    asked = replace(settings, models=(model,), cases=(case,), contestants=(contestant,))
    return in_a_fresh_process("-m", "tintformer.benchmarks.memory", json.dumps(asdict(asked)))


def in_a_fresh_process(*arguments: str) -> Peak:
    """Run Python with these arguments; it prints what it measured last."""
    # Freed memory must go back to the system here, or old garbage hides new peaks.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Peak(why_not=f"no peak memory: {reason}")
    return Peak(int(done.stdout.split()[-1]))


def peak_in_this_process(settings: Settings) -> int:
    """The child's part: one model, one case, one contestant."""
    from tintformer.benchmarks.run import lay_ground

    name, case = settings.contestants[0], CASES[settings.cases[0]]
    with threads(settings.threads):
        ground = lay_ground(settings, settings.models[0])
        prepare(name, ground, _small(case)).run()
        return peak_of(lambda: prepare(name, ground, case).run())


def peak_of(work: Callable[[], object]) -> int:
    """By how many bytes the resident memory of this process rises, at most, while it works."""
    _give_back()
    before = _status("VmRSS")
    (PROC / "clear_refs").write_text("5")
    work()
    return max(_status("VmHWM") - before, 0)


def _small(case: Case) -> Case:
    if isinstance(case, SequenceCase):
        return SequenceCase(batch=1, tokens=8, num_train=4)
    return FewShotCase(num_examples=1, num_inputs=1, tokens=8, score_batch=1)


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


def main(specification: str) -> None:
    knobs: dict[str, Any] = json.loads(specification)
    for name in ("models", "cases", "contestants"):
        knobs[name] = tuple(knobs[name])
    print(peak_in_this_process(Settings(**knobs)))


if __name__ == "__main__":
    main(sys.argv[1])
