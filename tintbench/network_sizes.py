"""Depth and width of the compiled networks of well-known models, on shapes alone: nothing is loaded or fetched."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import tintformer as tint
import tintlab as lab
from tintbench.results import markdown_table, run_as_script, save_markdown

MODELS = ("nano-gpt2", "nano-llama", "gpt2", "opt-125m", "SmolLM2-135M", "pythia-410m", "opt-1.3b", "Llama-3.2-1B")
STEPS = (1, 2, 3)
NOTE = """<!-- Written by `python -m tintbench.network_sizes --tokens {tokens}`. -->

Compiled networks for {tokens} tokens, default rule, every layer trained, S = 4, one step unless the column says
otherwise. `tint params MODEL` prints the same for one model, with layers and parameters by kind and direction. *Dense*
are the entries of all maps over the whole stream, *non-zero* those that are not zero, *stored* the numbers that the
structured layers keep; the auxiliary's own weights, which stand in prefix tokens, tables and head, come on top. The
last two columns are what a step keeps for backward in multiples of the paper's width, D_sim = S D_aux: every value that
the blocks compute, and the text slots of the network, by liveness.

"""


def row(model: str, tokens: int) -> dict[str, Any]:
    """One line of the table."""
    rules = [tint.LearningRule(learning_rate=1e-4, steps=steps) for steps in STEPS]
    sizes = [lab.count_network(model, rule=rule, max_tokens=tokens) for rule in rules]
    one, widths = sizes[0], sizes[0].capacity.widths
    depths = {f"layers, {steps} steps": f"{size.layers:,}" for steps, size in zip(STEPS[1:], sizes[1:], strict=True)}
    return {
        "model": model,
        "layers": f"{one.layers:,}",
        **depths,
        "text slots": f"{one.slots:,}",
        "width of a slot": f"{one.slot_width:,}",
        "width": f"{one.width:,}",
        "prefix tokens": f"{one.prefix_tokens:,}",
        "dense": f"{one.total('dense'):.3g}",
        "non-zero": f"{one.total('non_zero'):,}",
        "stored": f"{one.total('structured'):,}",
        "all values / D_sim": f"{widths['forward_values']:.1f}",
        "text slots / D_sim": f"{widths['text_slots']:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--output", "-o", type=Path, default=Path("docs/results"))
    chosen = parser.parse_args()
    table = markdown_table([row(model, chosen.tokens) for model in chosen.models])
    save_markdown(NOTE.format(tokens=chosen.tokens) + table, chosen.output / "network-sizes.md")
    print(table)


if __name__ == "__main__":
    run_as_script("network_sizes", main)
