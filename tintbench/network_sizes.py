"""Depth and width of the compiled networks of well-known models, on shapes alone: nothing is loaded or fetched."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import tintformer as tint
import tintlab as lab
from tintbench.results import markdown_table, run_as_script, save_json, versions

MODELS = ("nano-gpt2", "nano-llama", "gpt2", "opt-125m", "SmolLM2-135M", "pythia-410m", "opt-1.3b", "Llama-3.2-1B")
STEPS = (1, 2, 3)


def row(model: str, tokens: int) -> dict[str, Any]:
    """The sizes of one model's network: layers by the number of steps, and with one step everything else."""
    rules = [tint.LearningRule(learning_rate=1e-4, steps=steps) for steps in STEPS]
    sizes = [lab.count_network(model, rule=rule, max_tokens=tokens) for rule in rules]
    one, widths = sizes[0], sizes[0].capacity.widths
    depths = {f"layers, {steps} steps": size.layers for steps, size in zip(STEPS[1:], sizes[1:], strict=True)}
    return {
        "model": model,
        "layers": one.layers,
        **depths,
        "text slots": one.slots,
        "width of a slot": one.slot_width,
        "width": one.width,
        "prefix tokens": one.prefix_tokens,
        "dense": one.total("dense"),
        "non-zero": one.total("non_zero"),
        "stored": one.total("structured"),
        "all values / D_sim": widths["forward_values"],
        "text slots / D_sim": widths["text_slots"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--output", "-o", type=Path, default=Path("docs/results"))
    chosen = parser.parse_args()
    records = [row(model, chosen.tokens) for model in chosen.models]
    save_json({"tokens": chosen.tokens, **versions(), "records": records}, chosen.output / "network-sizes.json")
    print(markdown_table([{name: str(value) for name, value in each.items()} for each in records]))


if __name__ == "__main__":
    run_as_script("network_sizes", main)
