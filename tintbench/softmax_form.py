"""What it costs to write every linear attention of the simulator as softmax attentions: the error over the step.

The truth is the same simulator with linear attentions in float64. Two errors, both relative norms: of the logits after
the pass, and of the update, all movable parameters as one vector. Writes a table and every number as JSON.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

import tintformer as tint
from tintbench.results import (
    markdown_table,
    relative_error,
    run_as_script,
    save_json,
    save_markdown,
    versions,
)
from tintformer.learning.text import encode, find_tokenizer

EPSILONS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
NOTE = """<!-- Written by `python -m tintbench.softmax_form`; data/units/softmax-form.csv has all numbers. -->

{model}, {tokens} tokens of {text}, the first half trained on at rate {rate:g}; torch {torch}, {threads} thread(s).
Each entry: relative error of the logits / relative error of the update, against linear attentions in float64.

"""


def measure(model: str, text: Path, tokens: int, rate: float) -> list[dict[str, Any]]:
    """Both errors of every form, dtype and step."""
    ids = torch.tensor([encode(find_tokenizer(model), text.read_text()[: 8 * tokens]).input_ids[:tokens]])
    train = (torch.arange(ids.shape[1]) < ids.shape[1] // 2)[None]
    rule = tint.LearningRule(learning_rate=rate)
    models = {
        str(dtype).removeprefix("torch."): tint.load(model, dtype=dtype) for dtype in (torch.float64, torch.float32)
    }
    truth = tint.build(models["float64"], rule)(ids, train_mask=train)
    assert truth.logits is not None
    update = truth.updates()
    cases = [(dtype, form, epsilon) for dtype in models for form in ("pair", "printed") for epsilon in EPSILONS]
    records: list[dict[str, Any]] = []
    for dtype, form, epsilon in track(cases):
        knobs: dict[str, Any] = {"attention": "softmax", "softmax_form": form, "softmax_epsilon": epsilon}
        record: dict[str, Any] = {"dtype": dtype, "form": form, "epsilon": epsilon, "logits": None, "update": None}
        with suppress(tint.DivergenceError):  # so small a step that no digit is left
            out = tint.build(models[dtype], rule, **knobs)(ids, train_mask=train)
            assert out.logits is not None
            found = out.updates()
            record["logits"] = relative_error([out.logits], [truth.logits])
            record["update"] = relative_error([found[name] for name in update], list(update.values()))
        records.append(record)
    return records


def entry(record: dict[str, Any]) -> str:
    """Both errors of a record, as they stand in the table."""
    return "no number" if record["logits"] is None else f"{record['logits']:.0e} / {record['update']:.0e}"


def table(records: list[dict[str, Any]]) -> str:
    """One row a form and dtype, one column a step."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for record in records:
        form, dtype = record["form"], record["dtype"]
        row = rows.setdefault((form, dtype), {"form": form, "dtype": dtype})
        row[f"{record['epsilon']:.0e}"] = entry(record)
    return markdown_table(list(rows.values()), mark="softmax-form.csv#errors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-5)
    parser.add_argument("--output", "-o", type=Path, default=Path("docs/results"))
    chosen = parser.parse_args()
    records = measure(chosen.model, chosen.text, chosen.tokens, chosen.rate)
    sizes = {"model": Path(chosen.model).name, "tokens": chosen.tokens, "text": chosen.text.name, "rate": chosen.rate}
    about = {**sizes, **versions()}
    save_json({**about, "records": records}, chosen.output / "softmax-form.json")
    save_markdown(NOTE.format(**about) + table(records), chosen.output / "softmax-form.md")
    print(table(records))


if __name__ == "__main__":
    run_as_script("softmax_form", main)
