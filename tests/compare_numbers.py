# pyright: basic
"""Compare the numbers of two versions of the package, through the public interface, on every family.

    PYTHONPATH=OLD python tests/compare_numbers.py record before.safetensors    # with the old checkout's package
    python tests/compare_numbers.py compare before.safetensors                  # with this one's

A refactoring changes no number: the fast engine agrees within 1e-12 in float64, every other engine within the
tolerance that it is held to against the oracle. Exits with 1 if anything differs by more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from cases import MODELS, call, make_batch, make_model, make_rule
from safetensors.torch import load_file, save_file
from torch import Tensor

import tintformer as tint

TOLERANCES = {"fast": 1e-12, "tuned": 1e-12, "reference": 1e-8, "simulator": 1e-8, "oracle": 1e-8}
RULES = ("default", "paper", "full")


def numbers(name: str, rule_name: str) -> Iterator[tuple[str, Tensor]]:
    """Logits, losses and updates of one model by one rule: every engine, then one update for all sequences."""
    model, rule, batch = make_model(name), make_rule(rule_name, steps=2), make_batch()
    seen = batch["attention_mask"].bool()
    for engine in ("fast", "reference", "simulator", "oracle"):
        out = call(tint.Tint(model, rule, engine=engine), batch, before=True)
        yield f"{engine}/logits", out.logits[seen]
        yield f"{engine}/logits_before", out.logits_before[seen]
        yield f"{engine}/token_loss", out.token_loss
        for row in range(len(seen)):
            for parameter, change in out.updates(row).items():
                yield f"{engine}/row {row}/{parameter}", change
    tuned = tint.Tint(model, rule).adapt(batch["input_ids"], attention_mask=batch["attention_mask"])
    yield "tuned/token_loss", tuned.score(batch["input_ids"], attention_mask=batch["attention_mask"]).token_loss
    for parameter, change in tuned.updates().items():
        yield f"tuned/{parameter}", change


def all_numbers() -> dict[str, Tensor]:
    return {
        f"{name}/{rule}/{key}": value.detach().clone().contiguous()
        for name in MODELS
        for rule in RULES
        for key, value in numbers(name, rule)
    }


def compare(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    """Print the largest difference of each engine; false if one is above its tolerance or a value is missing."""
    if missing := before.keys() ^ after.keys():
        print(f"{len(missing)} values exist in one version only, such as {min(missing)}")
        return False
    largest: dict[str, tuple[float, str]] = {}
    for key, old in before.items():
        engine = key.split("/")[2]
        difference = float((after[key] - old).abs().max()) if old.numel() else 0.0
        largest[engine] = max(largest.get(engine, (0.0, key)), (difference, key))
    for engine, (difference, key) in largest.items():
        print(f"{engine}: largest difference {difference:.1e} ({key}), allowed {TOLERANCES[engine]:.0e}")
    return all(difference <= TOLERANCES[engine] for engine, (difference, _) in largest.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    found = all_numbers()
    print(f"{len(found)} values of {len(MODELS)} models by {len(RULES)} rules, from {tint.__file__}")
    if arguments.action == "record":
        save_file(found, arguments.file)
        return 0
    return 0 if compare(load_file(arguments.file), found) else 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
