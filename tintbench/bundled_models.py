"""What training inside the pass gains on a text that a model has not read, next to explicit fine-tuning.

The text is cut into segments that do not overlap. The first half of each is trained on, the second half scored. Every
method's rate is the best of one grid on segments of their own, which are not scored afterwards. Every number goes to a
JSON file, the table to a Markdown file.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import shlex
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

import tintformer as tint
from tintbench.results import markdown_table, run_as_script, save_json, save_markdown, versions
from tintformer.bundled import BUNDLED
from tintformer.console import print_table
from tintformer.learning.text import find_tokenizer, read_text
from tintformer.storage.whole_files import check_directory
from tintlab.methods.fine_tuning import Explicit, block_names, token_losses
from tintlab.show.intervals import bootstrap, standard_error

RATES = tuple(round(10 ** (exponent / 4), 9) for exponent in range(-20, -3))
"""From 1e-5 to 0.1, four a decade; a best one at the edge is an error, not a result."""
ROWS = 5
"""Sequences run at a time; each is adapted on its own."""

Losses = Callable[[Tensor, float], list[float]]
"""Mean loss of the second half of each row after training on the first half at a rate."""

NOTE = """<!-- Written by `python -m tintbench.bundled_models`; data/units/bundled-models.csv has all numbers. -->

{text} ({sha256:.12}), {segments} segments of {tokens} tokens, the first half trained on in one step, the second half
scored; rates chosen on {tuning} other segments. Gains in nats per token against the model as it is; `share`: of what
explicit fine-tuning of all block weights gains. Intervals: 95%, bootstrap over segments. torch {torch}, float32,
{threads} thread(s).

```bash
{command}
```
"""


def methods(auxiliary: tint.Auxiliary) -> dict[str, Losses]:
    """Everything that is compared, the model as it is first."""
    rules = {
        "inside the pass, default rule": tint.LearningRule,
        "inside the pass, paper's preset": tint.LearningRule.paper,
        "inside the pass, exact gradient of the same parameters": partial(
            tint.LearningRule, attention_gradient="exact"
        ),
        "inside the pass, exact gradient of all": tint.LearningRule.full,
    }
    return {
        "model as it is": lambda ids, _: score(auxiliary, ids),
        "explicit fine-tuning": lambda ids, rate: tune(auxiliary, ids, rate),
        **{
            name: lambda ids, rate, rule=rule: learn(auxiliary, rule(learning_rate=rate), ids)
            for name, rule in rules.items()
        },
    }


@torch.no_grad()
def score(auxiliary: tint.Auxiliary, ids: Tensor) -> list[float]:
    """The losses of the model as it is."""
    logits = auxiliary.model(ids, use_cache=False).logits
    return by_row(token_losses(logits, ids, ids.shape[1] // 2), ids)


def tune(auxiliary: tint.Auxiliary, ids: Tensor, rate: float) -> list[float]:
    """The losses after one step of autograd and SGD on all block weights, each row on its own."""
    tuner = Explicit(auxiliary.model, block_names(auxiliary), rate)
    return by_row(tuner.tune_each(ids, ids.shape[1] // 2), ids)


def learn(auxiliary: tint.Auxiliary, rule: tint.LearningRule, ids: Tensor) -> list[float]:
    """The losses after training inside the pass; infinite where the rate is too large for a row."""
    train = torch.arange(ids.shape[1]).expand(ids.shape) < ids.shape[1] // 2
    try:
        out = tint.Tint(auxiliary, rule)(ids, train_mask=train, logits="none")
    except tint.DivergenceError:
        return [math.inf] * len(ids)
    return by_row(out.token_loss[out.evaluation_mask], ids)


def by_row(losses: Tensor, ids: Tensor) -> list[float]:
    """The mean of each row."""
    means = losses.reshape(len(ids), -1).double().mean(dim=1)
    return means.nan_to_num(math.inf).tolist()


def run_method(method: Losses, segments: Tensor, rate: float) -> list[float]:
    """The loss of every segment."""
    return [loss for rows in segments.split(ROWS) for loss in method(rows, rate)]


def choose(method: Losses, segments: Tensor, name: str, console: Console) -> tuple[float, dict[float, float]]:
    """The rate with the lowest mean loss, and the whole curve; goes up until the loss is far above its lowest."""
    curve: dict[float, float] = {}
    for rate in track(RATES, description=f"  rate of {name}", console=console, transient=True):
        curve[rate] = fmean(run_method(method, segments, rate))
        if curve[rate] > min(curve.values()) + 1:
            break
    best = min(curve, key=lambda rate: curve[rate])
    if best in (RATES[0], RATES[-1]):
        raise tint.InputError(f"the best rate of {name} is {best:g}, the edge of the grid; widen RATES")
    return best, curve


def cut(tokenizer: Any, text: str, options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Segments to tune on and segments to judge by, drawn from all over the text."""
    ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    count, needed = len(ids) // options.tokens, options.segments + options.tuning
    if count < needed:
        raise tint.InputError(f"the text holds {count} segments of {options.tokens} tokens; {needed} are needed")
    segments = torch.tensor(ids[: count * options.tokens]).view(count, options.tokens)
    order = np.random.default_rng(options.seed).permutation(count)[:needed]
    return segments[order[options.segments :]], segments[order[: options.segments]]


def study(name: str, text: str, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """All methods on one model."""
    started = time.perf_counter()
    tuning, judging = cut(find_tokenizer(name), text, options)  # first: a text that is too short needs no model
    auxiliary = tint.load(name)
    found: list[dict[str, Any]] = []
    for label, method in methods(auxiliary).items():
        rate, curve = (0.0, {}) if not found else choose(method, tuning, f"{name}, {label}", console)
        losses = run_method(method, judging, rate)
        found.append({"method": label, "rate": rate, "curve": curve, "losses": losses})
        console.print(f"{name}, {label}: {fmean(losses):.4f} nats at rate {rate:g}")
    return {"model": name, "methods": found, "seconds": round(time.perf_counter() - started, 1)}


def summarise(model: dict[str, Any]) -> list[dict[str, str]]:
    """One row a method: its loss, its gain, and the share of what explicit fine-tuning gains."""
    plain, explicit = (method["losses"] for method in model["methods"][:2])
    rows: list[dict[str, str]] = []
    for method in model["methods"]:
        losses, trained = method["losses"], method["rate"] > 0
        share = bootstrap([plain, losses, explicit], lambda before, after, tuned: (before - after) / (before - tuned))
        rows.append(
            {
                "method": method["method"],
                "rate": f"{method['rate']:.2g}" if trained else "",
                "nats per token": f"{fmean(losses):.4f} ± {standard_error(losses):.4f}",
                "perplexity": f"{math.exp(fmean(losses)):.2f}",
                "gain": f"{bootstrap([plain, losses]):.4f}" if trained else "",
                "share": f"{share:.0%}" if trained and losses is not explicit else "",
            }
        )
    return rows


def markdown(record: dict[str, Any]) -> str:
    """The tables of all models."""
    parts = [NOTE.format_map(record)]
    for model in record["models"]:
        parts.append(f"**{model['model']}** ({model['seconds']:.0f} s)\n\n{_marked(model)}")
    return "\n".join(parts)


def _marked(model: dict[str, Any]) -> str:
    return markdown_table(summarise(model), mark=f"bundled-models.csv#{model['model']}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("text", type=Path, help="a text that the models have not read")
    add("--model", action="append", help="directory, hub id or bundled name; repeat for several (the bundled models)")
    add("--segments", type=int, default=50, help="segments to judge by (%(default)s)")
    add("--tuning", type=int, default=20, help="segments to choose rates on (%(default)s)")
    add("--tokens", type=int, default=512, help="tokens of a segment (%(default)s)")
    add("--seed", type=int, default=0, help="decides which segments are drawn (%(default)s)")
    add("--output", type=Path, default=Path("docs/results"), help="where results go (%(default)s)")
    options = parser.parse_args()
    if options.segments < 2 or options.tuning < 1 or options.tokens < 4:
        raise tint.InputError("give at least 2 --segments, 1 for --tuning, and 4 --tokens")
    return options


def _other_words() -> list[str]:
    """What was given besides the text, without the place for the results."""
    words = sys.argv[2:]
    return words[: words.index("--output")] if "--output" in words else words


def main() -> None:
    """Measure every model, then write and print the results."""
    options = parse()
    text, console = read_text(file=options.text), Console(stderr=True)
    path = options.output / "bundled-models.json"
    check_directory(options.output, (path.name, path.with_suffix(".md").name))
    record: dict[str, Any] = {
        "text": options.text.name,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        **{name: getattr(options, name) for name in ("segments", "tuning", "tokens", "seed")},
        **versions(),
        "command": shlex.join(["python", "-m", f"{__package__}.bundled_models", options.text.name, *_other_words()]),
        "models": [study(name, text, options, console) for name in options.model or BUNDLED],
    }
    save_json(record, path)
    save_markdown(markdown(record), path.with_suffix(".md"))
    for model in record["models"]:
        print_table(summarise(model), title=model["model"])


if __name__ == "__main__":
    run_as_script("bundled_models", main)
