"""Whether a stream slows down or grows: time and memory of late chunks, over those of the first that is like them.

One document is read in chunks. From where its window is full and what has been learnt is held as matrices, every chunk
does the same work on the same memory. `python -m tintbench.stream_growth [MODEL] [CHUNKS] [CHUNK]` prints a table, of
the smollm2-135m shape, 100 chunks of 128 tokens unless others are given. Times are medians of five neighbouring
chunks, by the clock and by the processor, which others on the machine lengthen less; memory is what the process holds.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from tintbench.cases import make_model, random_tokens
from tintbench.results import markdown_table
from tintformer.engines.fast.updates import MatrixUpdate
from tintformer.errors import TintWarning
from tintformer.learning.streams import StreamState
from tintformer.learning.tint import Tint
from tintformer.rule.learning_rule import LearningRule
from tintformer.storage.loading import load

AROUND = 5
"""Neighbouring chunks whose median time is taken."""


@dataclass(frozen=True)
class ChunkRead:
    """What one chunk took."""

    clock: float
    processor: float
    state: int
    """Bytes of all that is carried on."""
    resident: int
    """Bytes of the whole process; 0 where the system does not tell."""


def read_chunks(tint: Tint, num_chunks: int, chunk: int, window: int, *, seed: int = 0) -> list[ChunkRead]:
    """Read one document of random tokens."""
    ids = random_tokens((1, num_chunks * chunk), tint.auxiliary.vocabulary_size, seed=seed)
    found: list[ChunkRead] = []
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", TintWarning
        )  # of positions beyond the model's own: time does not depend on them
        pieces = tint.stream(ids, chunk=chunk, window=window)
    while True:
        clock, processor = time.perf_counter(), time.process_time()
        piece = next(pieces, None)
        if piece is None:
            return found
        seconds = time.perf_counter() - clock, time.process_time() - processor
        found.append(ChunkRead(*seconds, state_bytes(piece.state), resident_bytes()))


def state_bytes(state: StreamState) -> int:
    """All tensors that a stream carries from chunk to chunk."""
    memory = state.memory
    tensors = [*memory.updates.vectors.values(), memory.seen, memory.positions]
    moments = [*memory.updates.moments.values()]
    for update in memory.updates.matrices.values():
        tensors += _held(update)
        moments += [] if update.moments is None else [update.moments]
    tensors += [getattr(each, name) for each in moments for name in ("velocity", "square", "count")]
    if memory.cache is not None:
        tensors += [tensor for pair in memory.cache.entries.values() for tensor in pair]
    # By storage: what is a view keeps the whole of it in memory.
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors if tensor is not None
    }
    return sum(storage.nbytes() for storage in storages.values())


def _held(update: MatrixUpdate) -> list[torch.Tensor | None]:
    return [update.dense, update.formed, *(tensor for part in update.factors for tensor in (part.x, part.g))]


def resident_bytes() -> int:
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


def table(found: list[ChunkRead], first: int) -> list[dict[str, str]]:
    """Rows for the first chunk like all later ones, for one in the middle and for the last."""
    rows: list[dict[str, str]] = []
    base: tuple[float, ...] = ()
    for number in (first, (first + len(found)) // 2, len(found) - AROUND):
        here = found[number : number + AROUND]
        values = (
            median(each.clock for each in here),
            median(each.processor for each in here),
            float(here[0].state),
            float(here[0].resident),
        )
        base = base or values
        named = zip(("clock, s", "processor, s", "state, MB", "process, MB"), values, base, strict=True)
        row = {"chunk": f"{number + 1} to {number + AROUND}"}
        for name, value, of_first in named:
            shown = f"{value:.3f}" if name.endswith("s") else f"{value / 1e6:.1f}"
            row[name] = f"{shown} ({value / of_first:.3f})" if of_first else ""
        rows.append(row)
    return rows


if __name__ == "__main__":
    model, count, size = (*sys.argv[1:], *("smollm2-135m", "100", "128")[len(sys.argv) - 1 :])[:3]
    window = 1024
    sim = Tint(load(make_model(model, torch.float32)), LearningRule(learning_rate=1e-5))
    # The first chunk has one token less to carry on, so the window is full one chunk later than a division says.
    reads = read_chunks(sim, int(count), int(size), window)
    print(
        f"{model}, window {window}, chunks of {size}, {torch.get_num_threads()} threads; in brackets over the first row"
    )
    print(markdown_table(table(reads, window // int(size) + 1)))
