"""What a run costs for models of 125M to 70B parameters: memory, GPUs, arithmetic, time, and the simulator's size.

`python -m tintbench.scale` prints the tables of docs/scale.md from the cost models alone
(`tintlab.plan`, `tint params`); with `--check` it times a model that fits here and compares the foreseen ratio with
the measured one.
"""

from __future__ import annotations

import math
import sys

import torch

from tintbench.cases import make_model, random_tokens
from tintbench.measuring import median_seconds
from tintbench.results import markdown_table
from tintformer import Tint, load
from tintformer.rule.learning_rule import LearningRule
from tintlab import count_parameters, plan

MODELS = {"125M": "facebook/opt-125m", "1.3B": "facebook/opt-1.3b", "7B": "llama-2-7b-hf", "70B": "llama-2-70b-hf"}
CARDS = {"24 GB": 24e9, "80 GB": 80e9}
USABLE = 0.9
"""Of a card's memory: contexts of the driver and fragments take the rest."""
PEAK, UTILISATION = 312e12, 0.4
"""Floating-point operations a second of an A100 in bfloat16, and the part of them that is reached."""


def costs(batch: int, tokens: int) -> list[dict[str, str]]:
    """One row a model: memory, GPUs, arithmetic and time of a run in bfloat16, half of each sequence trained on."""
    rows: list[dict[str, str]] = []
    for title, name in MODELS.items():
        found = plan(name, batch=batch, tokens=tokens, dtype=torch.bfloat16)
        rows.append(
            {
                "model": title,
                "weights": f"{found.parts['weights'] / 1e9:.1f} GB",
                "on top": f"{found.work / 1e9:.1f} GB",
                **{f"GPUs of {card}": str(math.ceil(found.peak / (USABLE * size))) for card, size in CARDS.items()},
                "TFLOPs": f"{found.flops / 1e12:.3g}",
                "passes": f"{found.passes:.2f}",
                "seconds": f"{found.flops / (PEAK * UTILISATION):.2g}",
            }
        )
    return rows


def simulators() -> list[dict[str, str]]:
    """One row a model: the sizes of its simulators."""
    rows: list[dict[str, str]] = []
    for title, name in MODELS.items():
        lean, paper = (
            count_parameters(name, layout=layout, tie_blocks=layout == "lean") for layout in ("lean", "paper")
        )
        rows.append(
            {
                "model": title,
                "holding the model": f"{lean.auxiliary / 1e9:.2f}B",
                "constructed, lean": f"{lean.structural / 1e6:.1f}M",
                "constructed, paper's layout": f"{paper.structural / 1e9:.2f}B",
            }
        )
    return rows


def check(name: str, batch: int, tokens: int) -> dict[str, str]:
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
    return {
        "shape": name,
        "tokens": f"{batch} x {tokens}",
        "passes foreseen": f"{foreseen.passes:.2f}",
        "passes measured": f"{learnt / forward:.2f}",
        "GFLOP/s of the forward pass": f"{foreseen.forward_flops / forward / 1e9:.0f}",
        "of it reached": f"{foreseen.flops / learnt / (foreseen.forward_flops / forward):.2f}",
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        shapes = (("gpt2", 4, 128), ("gpt2", 1, 512), ("smollm2-135m", 4, 128))
        print(markdown_table([check(*shape) for shape in shapes]))
    else:
        for batch, tokens in ((8, 256), (1, 2048)):
            print(f"\n{batch} x {tokens} tokens, half of each trained on, bfloat16\n")
            print(markdown_table(costs(batch, tokens)), flush=True)
        print(markdown_table(simulators()))
