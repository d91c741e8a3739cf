# pyright: basic
"""Compare the numbers of every family, rule and engine with those that are frozen, and with those of another version.

    python tests/compare_numbers.py                              # with tests/frozen/numbers.json
    python tests/compare_numbers.py before.safetensors           # and with every number of another version,
    PYTHONPATH=OLD python tests/compare_numbers.py record before.safetensors    # recorded with its checkout
    python tests/compare_numbers.py freeze                       # after a change of numbers that is meant

A refactoring changes no number. What is frozen is a projection of each quantity onto fixed signs, which notices values
that have changed places; all engines are held to the same ones, where they are exact. With a recording, every value is
compared: the fast engine agrees within 1e-12 in float64, the others within the tolerance to which the tests hold them
against the oracle, and so do all engines with the oracle of the same run. Exits with 1 if anything differs by more.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch
from number_cases import ENGINES, all_numbers
from safetensors.torch import load_file, save_file
from torch import Tensor

import tintformer as tint

FROZEN = Path(__file__).parent / "frozen" / "numbers.json"
EXACT = 1e-8
"""What every engine is held to, against the oracle and against another version of itself."""
TOLERANCES = {"fast": 1e-12, "tuned": 1e-12, "stream": 1e-12, "generate": 1e-6, "softmax": 1e-6, "printed": 1e-4}
"""Against another version, where it is not `EXACT`: transformers rounds logits, and softmax forms divide by a step."""
RELATIVE = {"simulator": EXACT, "network": EXACT, "generate": 1e-6, "softmax": 1e-6, "printed": 1e-4}
"""Of the frozen projections, where it is not 1e-9: constructions lose digits in long sums."""

Numbers = dict[str, Tensor]
Frozen = dict[str, dict[str, float]]
"""Projections by quantity, by case: `model/rule` where all engines are exact, otherwise `model/rule/engine`."""


def kind(engine: str) -> str:
    """`simulator` for `simulator-paper`."""
    return engine.partition("-")[0]


class Largest:
    """The largest difference of each engine, as a share of what is allowed."""

    def __init__(self, what: str):
        self.what = what
        self.found: dict[str, tuple[float, float, str]] = {}

    def add(self, key: str, difference: float, allowed: float) -> None:
        engine = key.split("/")[2]
        # A comparison with nan is false, and a difference that is none is the largest.
        share = difference / allowed if difference == difference else float("inf")
        self.found[engine] = max(self.found.get(engine, (-1.0, 0.0, "")), (share, allowed, key))

    def report(self) -> bool:
        """Print them; false if one is above what is allowed, or none was found."""
        print(f"\n{self.what}")
        for engine, (share, allowed, key) in self.found.items():
            verdict = "" if share <= 1 else "  DIFFERS"
            print(f"{engine}: largest difference {share * allowed:.1e} ({key}), allowed {allowed:.0e}{verdict}")
        return bool(self.found) and all(share <= 1 for share, _, _ in self.found.values())


def with_another_version(before: Numbers, after: Numbers) -> bool:
    if missing := before.keys() ^ after.keys():
        print(f"{len(missing)} values exist in one version only, such as {min(missing)}")
    largest = Largest("with the other version, value by value:")
    for key in (key for key in before if key in after):
        allowed = TOLERANCES.get(kind(key.split("/")[2]), EXACT)
        largest.add(key, _distance(before[key], after[key]), allowed)
    return largest.report() and not missing


def with_the_oracle(numbers: Numbers) -> bool:
    largest = Largest("with the oracle, value by value:")
    for key, value in numbers.items():
        model, rule, engine, quantity = key.split("/", 3)
        if kind(engine) in ENGINES and engine != "oracle":
            largest.add(key, _distance(numbers[f"{model}/{rule}/oracle/{quantity}"], value), EXACT)
    return largest.report()


def _distance(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    return float((a - b).abs().max()) if a.numel() else 0.0


def with_the_frozen(numbers: Numbers) -> bool:
    frozen: Frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    largest, seen = Largest("with the frozen numbers, relative to the length of each quantity:"), set()
    for case, engine, quantity, value, length in projections(numbers):
        seen.add((case, quantity))
        difference = abs(value - frozen.get(case, {}).get(quantity, float("nan"))) / (length or 1.0)
        model_and_rule = "/".join(case.split("/")[:2])
        largest.add(f"{model_and_rule}/{engine}/{quantity}", difference, RELATIVE.get(kind(engine), 1e-9))
    if gone := {(case, quantity) for case, held in frozen.items() for quantity in held} - seen:
        print(f"{len(gone)} frozen numbers are no longer computed, such as {min(gone)}")
    return largest.report() and not gone


def projections(numbers: Numbers) -> Iterator[tuple[str, str, str, float, float]]:
    """Case, engine, quantity, its projection onto fixed signs, and its length; updates as matrices and as vectors."""
    sums: dict[tuple[str, str], list[float]] = {}
    for key, value in numbers.items():
        model, rule, engine, quantity = key.split("/", 3)
        held = quantity
        if quantity.startswith("row "):
            held = "matrices" if value.dim() > 1 else "vectors"
        entry = sums.setdefault((f"{model}/{rule}/{engine}", held), [0.0, 0.0])
        entry[0] += float(value.flatten() @ _signs(quantity, value.numel()))
        entry[1] += float(value.square().sum())
    for (case, quantity), (value, square) in sums.items():
        model_and_rule, _, engine = case.rpartition("/")
        yield model_and_rule if kind(engine) in ENGINES else case, engine, quantity, value, square**0.5


@cache
def _signs(quantity: str, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(quantity.encode()))
    return torch.randint(0, 2, (number,), generator=generator).double() * 2 - 1


def freeze(numbers: Numbers) -> None:
    """Write the projections; of engines that are exact the oracle's, which all of them have."""
    frozen: Frozen = {}
    for case, engine, quantity, value, _ in projections(numbers):
        if engine == "oracle" or kind(engine) not in ENGINES:
            frozen.setdefault(case, {})[quantity] = float(f"{value:.12g}")
    lines = (f"{json.dumps(case)}: {json.dumps(held, sort_keys=True)}" for case, held in sorted(frozen.items()))
    FROZEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main(words: list[str]) -> int:
    numbers = all_numbers()
    print(f"{len(numbers):,} values of {len({key.split('/')[0] for key in numbers})} models, from {tint.__file__}")
    if words == ["freeze"]:
        freeze(numbers)
        return 0
    if words[:1] == ["record"]:
        save_file(numbers, words[1])
        return 0
    passed = [with_the_oracle(numbers), with_the_frozen(numbers)]
    passed += [with_another_version(load_file(file), numbers) for file in words]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    if "--help" in sys.argv or len(sys.argv) > 3 or sys.argv[1:] == ["record"]:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
