"""How long a GGUF model takes to load, against the same model that transformers has saved as safetensors.

Ways take turns in one process, in which both libraries have been imported and have loaded a model before; files are in
the system's cache. `python -m tintbench.loading_time [NAME] [ROUNDS]` prints a table, of smollm2-135m unless NAME is
given.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from tintbench.measuring import seconds_of
from tintbench.results import markdown_table
from tintformer.learning.text import find_tokenizer
from tintformer.storage.loading import load


def measure(name: str, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of every load, by who loads what."""
    first = seconds_of(lambda: load(name))
    load(name).model.save_pretrained(folder)
    ways: dict[str, Callable[[], Any]] = {
        "transformers, safetensors": lambda: transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ),
        "tintformer.load, safetensors": lambda: load(folder),
        f"tintformer.load({name!r})": lambda: load(name),
        f"its tokenizer ({name})": lambda: find_tokenizer(name),
    }
    for way in ways.values():
        way()
    turns = [{key: seconds_of(way) for key, way in ways.items()} for _ in range(rounds)]
    return {"first load of this process": [first]} | {key: [turn[key] for turn in turns] for key in ways}


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        name, rounds = (*sys.argv[1:], *("smollm2-135m", "7")[len(sys.argv) - 1 :])[:2]
        found = measure(name, int(rounds), Path(folder))
    base = median(found["transformers, safetensors"])
    rows = [
        {"load": key, "median, s": f"{median(each):.2f}", "/ transformers": f"{median(each) / base:.2f}"}
        for key, each in found.items()
    ]
    print(markdown_table(rows))
