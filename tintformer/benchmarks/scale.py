# pyright: basic
"""What a run costs for models of 125M to 70B parameters: memory, GPUs, arithmetic, time, and the simulator's size.

`python -m tintformer.benchmarks.scale` prints the tables of docs/scale.md from the cost models alone
(`tintformer.plan`, `tint params`); with `--check` it times a model that fits here and compares the foreseen ratio with
the measured one.
"""

from __future__ import annotations

import math
import sys

import torch

from tintformer import Tint, count_parameters, load, plan
from tintformer.benchmarks.cases import random_tokens
from tintformer.benchmarks.shapes import make_model
from tintformer.benchmarks.timing import median_seconds
from tintformer.rule.learning_rule import LearningRule

MODELS = {"125M": "facebook/opt-125m", "1.3B": "facebook/opt-1.3b", "7B": "llama-2-7b-hf", "70B": "llama-2-70b-hf"}
CARDS = {"24 GB": 24e9, "80 GB": 80e9}
USABLE = 0.9
"""Of a card's memory: contexts of the driver and fragments take the rest."""
PEAK, UTILISATION = 312e12, 0.4
"""Floating-point operations a second of an A100 in bfloat16, and the part of them that is reached."""


def cards(size: int, card: float) -> int:
    return math.ceil(size / (USABLE * card))


def costs(batch: int, tokens: int) -> None:
    heads = ("model", "weights", "on top", *(f"GPUs of {name}" for name in CARDS), "TFLOPs", "passes", "seconds")
    print(f"\n{batch} x {tokens} tokens, half of each trained on, bfloat16\n\n| {' | '.join(heads)} |")
    print(f"|{'---|' * len(heads)}")
    for title, name in MODELS.items():
        found = plan(name, batch=batch, tokens=tokens, dtype=torch.bfloat16)
        cells = (
            title,
            f"{found.parts['weights'] / 1e9:.1f} GB",
            f"{found.work / 1e9:.1f} GB",
            *(str(cards(found.peak, card)) for card in CARDS.values()),
            f"{found.flops / 1e12:.3g}",
            f"{found.passes:.2f}",
            f"{found.flops / (PEAK * UTILISATION):.2g}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


def simulators() -> None:
    print("\n| model | holding the model | constructed, lean | constructed, paper's layout |\n|---|---|---|---|")
    for title, name in MODELS.items():
        lean, paper = (
            count_parameters(name, layout=layout, tie_blocks=layout == "lean") for layout in ("lean", "paper")
        )
        cells = (
            title,
            f"{lean.auxiliary / 1e9:.2f}B",
            f"{lean.structural / 1e6:.1f}M",
            f"{paper.structural / 1e9:.2f}B",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


def check(name: str, batch: int, tokens: int) -> None:
    """Foreseen and measured time of a pass, in plain forward passes of the Hugging Face model, here."""
    torch.set_num_threads(1)
    model = make_model(name, torch.float32)
    ids = random_tokens((batch, tokens), model.config.vocab_size, seed=0)
    train = (torch.arange(tokens) < tokens // 2).expand(batch, -1)
    tint = Tint(load(model), LearningRule(learning_rate=1e-6))
    with torch.inference_mode():
        forward = median_seconds(lambda: model(ids, use_cache=False), 5)
    learnt = median_seconds(lambda: tint(ids, train_mask=train, logits="none"), 5)
    foreseen = plan(model.config, batch=batch, tokens=tokens)
    rate = foreseen.flops / learnt / (foreseen.forward_flops / forward)
    print(
        f"| {name} | {batch} x {tokens} | {foreseen.passes:.2f} | {learnt / forward:.2f} "
        f"| {foreseen.forward_flops / forward / 1e9:.0f} | {rate:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        print("| shape | tokens | passes foreseen | passes measured | GFLOP/s of the forward pass | of it reached |")
        print("|---|---|---|---|---|---|")
        for name, batch, tokens in (("gpt2", 4, 128), ("gpt2", 1, 512), ("smollm2-135m", 4, 128)):
            check(name, batch, tokens)
    else:
        costs(8, 256)
        costs(1, 2048)
        simulators()
