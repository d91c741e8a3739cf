"""How long a GGUF model takes to load, against the same model that transformers has saved as safetensors.

Ways take turns in one process, in which both libraries have been imported and have loaded a model before; files are in
the system's cache. `python -m tintbench.loading_time [NAME] [ROUNDS]` prints a table, of smollm2-135m unless NAME is
given.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from tintbench.results import markdown_table
from tintformer.learning.text import find_tokenizer
from tintformer.storage.loading import load

BASE = "transformers, safetensors"


def seconds_of(work: Callable[[], Any]) -> tuple[float, float]:
    """Of the clock and of the processor, which others on the machine lengthen less."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - processor


def measure(name: str, rounds: int, folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Seconds of every load, by who loads what."""
    load(name).model.save_pretrained(folder)
    ways: dict[str, Callable[[], Any]] = {
        BASE: lambda: transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        "tintformer.load, safetensors": lambda: load(folder),
        f"tintformer.load({name!r})": lambda: load(name),
        f"its tokenizer ({name})": lambda: find_tokenizer(name),
    }
    for way in ways.values():
        way()
    turns = [{key: seconds_of(way) for key, way in ways.items()} for _ in range(rounds)]
    return {key: [turn[key] for turn in turns] for key in ways}


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    name, rounds = (*sys.argv[1:], *("smollm2-135m", "7")[len(sys.argv) - 1 :])[:2]
    with tempfile.TemporaryDirectory() as folder:
        found = measure(name, int(rounds), Path(folder))
    medians = {key: [median(each) for each in zip(*times, strict=True)] for key, times in found.items()}
    rows = [
        {
            "load": key,
            "clock, s": f"{clock:.3f}",
            "/ transformers": f"{clock / medians[BASE][0]:.1f}",
            "processor, s": f"{processor:.3f}",
            "/ transformers ": f"{processor / medians[BASE][1]:.1f}",
        }
        for key, (clock, processor) in medians.items()
    ]
    print(markdown_table(rows))
