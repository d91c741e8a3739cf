# pyright: basic
"""What it costs to write every linear attention of the simulator as softmax attentions: the error over the step.

The truth is the same simulator with linear attentions in float64. Two errors, both relative norms: of the logits after
the pass, and of the update, all movable parameters as one vector. Writes a table and every number as JSON.
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

import tintformer as tint
from tintformer.learning.text import encode, find_tokenizer
from tintformer.storage.whole_files import whole_file

EPSILONS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
NOTE = """<!-- Written by tintformer/benchmarks/softmax_form.py; softmax-form.json has all numbers. -->

{model}, {tokens} tokens of {text}, the first half trained on at rate {rate:g}; torch {torch}, {threads} thread(s).
Each entry: relative error of the logits / relative error of the update, against linear attentions in float64.

"""


def one_vector(updates: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([updates[name].double().flatten() for name in sorted(updates)])


def error(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value.double() - truth).norm() / truth.norm())


def measure(model: str, text: Path, tokens: int, rate: float) -> list[dict[str, Any]]:
    ids = torch.tensor([encode(find_tokenizer(model), text.read_text()[: 8 * tokens]).input_ids[:tokens]])
    train = (torch.arange(ids.shape[1]) < ids.shape[1] // 2)[None]
    rule = tint.LearningRule(learning_rate=rate)
    models = {
        str(dtype).removeprefix("torch."): tint.load(model, dtype=dtype) for dtype in (torch.float64, torch.float32)
    }
    truth = tint.build(models["float64"], rule)(ids, train_mask=train)
    true_update = one_vector(truth.updates())
    cases = [(dtype, form, epsilon) for dtype in models for form in ("pair", "printed") for epsilon in EPSILONS]
    records = []
    for dtype, form, epsilon in track(cases):
        knobs = {"attention": "softmax", "softmax_form": form, "softmax_epsilon": epsilon}
        record = {"dtype": dtype, "form": form, "epsilon": epsilon, "logits": None, "update": None}
        with suppress(tint.DivergenceError):  # so small a step that no digit is left
            out = tint.build(models[dtype], rule, **knobs)(ids, train_mask=train)
            record["logits"] = error(out.logits, truth.logits)
            record["update"] = error(one_vector(out.updates()), true_update)
        records.append(record)
    return records


def entry(record: dict[str, Any]) -> str:
    return "no number" if record["logits"] is None else f"{record['logits']:.0e} / {record['update']:.0e}"


def table(records: list[dict[str, Any]]) -> str:
    rows = [["form", "dtype", *(f"{epsilon:.0e}" for epsilon in EPSILONS)], ["---"] * (len(EPSILONS) + 2)]
    for form, dtype in dict.fromkeys((record["form"], record["dtype"]) for record in records):
        errors = [r for r in records if (r["form"], r["dtype"]) == (form, dtype)]
        rows.append([form, dtype, *map(entry, errors)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-5)
    parser.add_argument("--output", "-o", type=Path, default=Path("docs/results"))
    chosen = parser.parse_args()
    records = measure(chosen.model, chosen.text, chosen.tokens, chosen.rate)
    about = {
        "model": Path(chosen.model).name,
        "tokens": chosen.tokens,
        "text": chosen.text.name,
        "rate": chosen.rate,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    with whole_file(chosen.output / "softmax-form.json") as file:
        file.write_text(json.dumps({**about, "records": records}, indent=1) + "\n")
    with whole_file(chosen.output / "softmax-form.md") as file:
        file.write_text(NOTE.format(**about) + table(records))
    print(table(records))


if __name__ == "__main__":
    main()
