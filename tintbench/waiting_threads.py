"""How long a tiny call takes on a busy machine, by how torch's threads wait for each other.

As many processes as there are cores compute all the time. Beside them a tiny model learns from 32 tokens, in processes
that import torch before tintformer or after it: the last sets what the first can no longer read. Ways take turns.
`python -m tintbench.waiting_threads` prints a table; an argument is the number of calls.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from statistics import median

from tintbench.results import markdown_table

BUSY = "while True: pass"
WAYS = {
    "torch first": "import torch, tintformer",
    "torch first, one thread": "import torch, tintformer; torch.set_num_threads(1)",
    "tintformer first": "import tintformer, torch",
}
CALL = """
import json, sys, time
tint = tintformer.Tint("nano-gpt2", tintformer.LearningRule(learning_rate=1e-4))
ids = torch.arange(32)[None]
def call():
    start = time.perf_counter()
    tint(ids, train_mask=ids < 16, logits="none")
    return time.perf_counter() - start
call()
print(json.dumps([call() for _ in range(int(sys.argv[1]))]))
"""
ROUNDS = 2


@contextmanager
def busy(processes: int) -> Generator[None]:
    """So many processes that compute all the time."""
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def seconds_of_calls(way: str, calls: int) -> list[float]:
    """Of a process of its own, whose environment says nothing about threads."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, "-W", "ignore", "-c", WAYS[way] + CALL, str(calls)]
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    return json.loads(done.stdout)


def measure(calls: int) -> dict[str, list[float]]:
    """Seconds of every call, by the way of importing."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with busy(os.cpu_count() or 1):
        for _ in range(ROUNDS):
            for way, seconds in found.items():
                seconds += seconds_of_calls(way, calls)
    return found


if __name__ == "__main__":
    found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
    base = median(found["tintformer first"])
    rows = [
        {
            "imported": way,
            "median, ms": f"{1000 * median(seconds):.1f}",
            "worst, ms": f"{1000 * max(seconds):.1f}",
            "/ tintformer first": f"{median(seconds) / base:.1f}",
        }
        for way, seconds in found.items()
    ]
    print(markdown_table(rows))
