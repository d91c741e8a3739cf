"""The error of the update when gradients pass norms, activations or attention by differences.

The truth is the update with exact gradients in float64, all movable parameters as one vector. Writes every
number to a JSON file, a table and a figure; docs/approximations.md reads the defaults off them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

import tintformer as tint
from tintbench.results import (
    markdown_table,
    relative_error,
    run_as_script,
    save_json,
    save_markdown,
    versions,
)
from tintformer.console import print_table
from tintformer.engines.reference import TensorExecutor
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.learning.text import find_tokenizer
from tintformer.rule.optimiser import trainable_weights
from tintformer.storage.whole_files import whole_file
from tintlab.show.plot_style import import_matplotlib

EPSILONS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 1e-6, 1e-7)
CANDIDATES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
"""Steps that a default may have: in the table, and where norm and activation are also taken together."""
DTYPES = {"float64": torch.float64, "float32": torch.float32}
PARTS = ("norm", "activation", "attention")
SCHEMES = {
    ("first_order", "fixed"): {"color": "#D55E00", "marker": "o"},
    ("first_order", "relative"): {"color": "#E69F00", "marker": "s"},
    ("central", "fixed"): {"color": "#009E73", "marker": "^"},
    ("central", "relative"): {"color": "#0072B2", "marker": "D"},
}
"""Ways to take a difference, and how they are drawn: colours of Okabe and Ito, for colour-blind eyes too."""

Lines = dict[tuple[str, str, str], dict[str, dict[float, list[float]]]]
"""The errors of the sequences by part, scheme and mode, then by dtype, then by step."""

NOTE = """<!-- Written by `python -m tintbench.difference_error`; data/units/difference-error.csv has all numbers. -->

Relative error of the update, mean over {sequences} sequences of {tokens} tokens, the first half trained on.
`best`: at the best step tried (`both`: of those with a column). `worst`: the worst sequence at that step in
float32. The columns named by a step are float32. torch {torch}, {threads} thread(s).
"""
CAPTION = "**{model}** ({weights}), {text}: {trained_blocks} of {blocks} blocks, {moved:,} parameters.\n"


@dataclass(frozen=True, kw_only=True)
class DifferenceCase:
    """One way to take the gradient: which part of it by differences, and how."""

    part: str
    scheme: str = "exact"
    mode: str = "fixed"
    epsilon: float = 1.0

    @property
    def full(self) -> bool:
        """Whether the truth is plain SGD, where queries and keys have gradients too."""
        return self.part in ("attention", "nothing (full rule)")

    def rule(self, layers: int | None) -> tint.LearningRule:
        """The default rule (for attention: the full one) with this one change."""
        knobs: dict[str, Any] = {"layers": layers, "epsilon": self.epsilon, "epsilon_mode": self.mode}
        for part in ("norm", "activation"):
            if self.part in (part, "both"):
                knobs[f"{part}_gradient"] = self.scheme
        if self.part == "attention":
            knobs["attention_gradient"] = "perturbed"
        return (tint.LearningRule.full if self.full else tint.LearningRule)(learning_rate=1.0, **knobs)


EXACT, EXACT_FULL = DifferenceCase(part="nothing"), DifferenceCase(part="nothing (full rule)")
Errors = dict[tuple[str, DifferenceCase], float]


def list_cases(epsilons: Sequence[float]) -> Iterator[DifferenceCase]:
    """Exact gradients first, then every part by every scheme; the perturbed softmax is central by itself."""
    yield from (EXACT, EXACT_FULL)
    for part in ("norm", "activation", "both", "attention"):
        for scheme, mode in SCHEMES:
            if part != "attention" or scheme == "central":
                steps = [step for step in epsilons if part != "both" or step in CANDIDATES]
                yield from (DifferenceCase(part=part, scheme=scheme, mode=mode, epsilon=step) for step in steps)


class Pass:
    """One forward pass with its tape, from which the update by any gradient follows."""

    def __init__(self, auxiliary: tint.Auxiliary, ids: list[int], layers: int | None):
        self.auxiliary, self.layers = auxiliary, layers
        train_mask = torch.arange(len(ids)) < len(ids) // 2
        self.batch = Batch.of(auxiliary, torch.tensor([ids]), train_mask=train_mask[None])
        rule, blocks = EXACT.rule(layers), auxiliary.blocks
        frozen = blocks[: len(blocks) - rule.num_trained(len(blocks))]
        executor = TensorExecutor(auxiliary, rule, self.batch)
        steps = [step for each in (*blocks, auxiliary.final) for step in each]
        x, tape = walk.forward(executor, steps, executor.embed())
        self.tape = tape[sum(len(block) for block in frozen) :]
        self.gradient = executor.loss_gradient(x)

    def update(self, case: DifferenceCase) -> list[Tensor]:
        """The update of every trainable parameter after one step, in the order of the walk."""
        rule = case.rule(self.layers)
        executor = TensorExecutor(self.auxiliary, rule, self.batch)
        walk.backward(executor, rule, self.tape, self.gradient)
        return [executor.updates[weight][0] for weight in trainable_weights(rule, self.auxiliary)]


@torch.no_grad()
def measure(auxiliaries: dict[str, tint.Auxiliary], ids: list[int], options: argparse.Namespace) -> Errors:
    """The error of every case on one sequence, by dtype; the first, exact in float64, are the truth."""
    errors: Errors = {}
    truth: dict[bool, list[Tensor]] = {}
    for dtype, auxiliary in auxiliaries.items():
        passed = Pass(auxiliary, ids, options.layers)
        for case in track(list(list_cases(options.epsilons)), description=dtype):
            update = passed.update(case)
            errors[dtype, case] = relative_error(update, truth.setdefault(case.full, update))
    return errors


def read_sequences(model: str, text: Path, *, tokens: int, count: int) -> list[list[int]]:
    """The first `count` runs of `tokens` tokens of a text, by the model's own tokenizer."""
    start = text.read_text(encoding="utf-8")[: 32 * tokens * count]
    ids: list[int] = find_tokenizer(model)(start, verbose=False).input_ids
    if len(ids) < tokens * count:
        raise tint.InputError(f"{text} gives {len(ids)} tokens but {count} x {tokens} are asked for")
    return [ids[start : start + tokens] for start in range(0, tokens * count, tokens)]


def study(model: str, text: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All errors on one model, with the identity of what was measured."""
    started, rule = time.perf_counter(), EXACT.rule(options.layers)
    auxiliaries = {dtype: tint.load(model, dtype=value) for dtype, value in DTYPES.items()}
    sequences = read_sequences(model, text, tokens=options.tokens, count=options.sequences)
    runs = [measure(auxiliaries, ids, options) for ids in sequences]
    auxiliary, files = auxiliaries["float64"], Path(model).expanduser().glob("*")
    return {
        "model": name,
        "weights": sorted(file.name for file in files if file.suffix in (".gguf", ".safetensors")) or [name],
        "text": text.name,
        "blocks": len(auxiliary.blocks),
        "trained_blocks": rule.num_trained(len(auxiliary.blocks)),
        "moved": sum(weight.read().numel() for weight in trainable_weights(rule, auxiliary)),
        "seconds": round(time.perf_counter() - started, 1),
        "cases": [{"dtype": d, **asdict(c), "errors": [run[d, c] for run in runs]} for d, c in runs[0]],
    }


def lines_of(model: dict[str, Any]) -> Lines:
    """The cases of one model, gathered into lines."""
    lines: Lines = {}
    for case in model["cases"]:
        line = lines.setdefault((case["part"], case["scheme"], case["mode"]), {})
        line.setdefault(case["dtype"], {})[case["epsilon"]] = case["errors"]
    return lines


def summarise(model: dict[str, Any], *, candidates: Sequence[float]) -> list[dict[str, str]]:
    """One row a line: in each dtype the best step and its error there; in float32 also the candidates'."""
    rows: list[dict[str, str]] = []
    for (part, scheme, mode), line in lines_of(model).items():
        how = scheme if scheme == "exact" else f"{scheme.replace('_', '-')}, {mode}"
        row = {"differences": part, "scheme": how}
        best = {dtype: min(errors, key=lambda step: fmean(errors[step])) for dtype, errors in line.items()}
        for dtype, errors in line.items():
            where = "" if scheme == "exact" else f" at {best[dtype]:.0e}"
            row[f"{dtype} best"] = f"{fmean(errors[best[dtype]]):.1e}{where}"
        errors = line["float32"]
        row["worst"] = f"{max(errors[best['float32']]):.1e}"
        row |= {f"{step:.0e}": f"{fmean(errors[step]):.1e}" if step in errors else "" for step in candidates}
        rows.append(row)
    return rows


def markdown(record: dict[str, Any]) -> str:
    """The table of every model, with what was measured."""
    parts = [NOTE.format_map(record)]
    for model in record["models"]:
        parts.append(CAPTION.format_map({**model, "weights": ", ".join(model["weights"])}))
        rows = summarise(model, candidates=CANDIDATES)
        parts.append(markdown_table(rows, mark=f"difference-error.csv#{model['model']}"))
    return "\n".join(parts)


def draw(record: dict[str, Any], path: Path) -> None:
    """One row a model, one column a part."""
    from matplotlib.figure import Figure

    shape = (len(record["models"]), len(PARTS))
    figure = Figure(figsize=(3.6 * shape[1], 2.9 * shape[0] + 1.2), layout="constrained")
    grid: Any = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
    for model, row in zip(record["models"], grid, strict=True):
        for part, axes in zip(PARTS, row, strict=True):
            draw_panel(axes, lines_of(model), part)
            axes.set_title(f"{model['model']}: {part}", fontsize=10)
            axes.set(xlabel="step (epsilon)", ylabel="relative error of the update")
            axes.label_outer()
    handles = sorted(grid[0, 0].get_lines(), key=lambda line: "float64" in line.get_label())
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9)
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")


def draw_panel(axes: Any, lines: Lines, part: str) -> None:
    """The lines of one part of one model: float32 solid, float64 dashed, the floor of float32 dotted."""
    axes.set(xscale="log", yscale="log")
    axes.grid(alpha=0.25, linewidth=0.6)
    for dtype, style in {"float32": "-", "float64": "--"}.items():
        for scheme, mode in SCHEMES:
            errors = lines.get((part, scheme, mode), {}).get(dtype, {})
            look = {"linestyle": style, "linewidth": 1.4, "markersize": 3.5, **SCHEMES[scheme, mode]}
            label = f"{scheme.replace('_', '-')}, {mode} step, {dtype}"
            axes.plot(list(errors), [fmean(values) for values in errors.values()], label=label, **look)
    exact = EXACT_FULL if part == "attention" else EXACT
    floor = fmean(lines[exact.part, exact.scheme, exact.mode]["float32"][exact.epsilon])
    axes.axhline(floor, color="0.3", linestyle=":", label="exact gradients, float32")


def parse() -> argparse.Namespace:
    """The command line, checked: models, texts and names belong together."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", action="append", default=[], help="local directory or hub id; repeat for several")
    add("--text", action="append", default=[], type=Path, help="text file: one a model, or one for all")
    add("--name", action="append", default=[], help="short name a model (the last part of --model)")
    add("--tokens", type=int, default=128, help="tokens of a sequence, half trained on (%(default)s)")
    add("--sequences", type=int, default=1, help="sequences from the start of the text (%(default)s)")
    add("--layers", type=int, help="how many of the top blocks learn (all)")
    add("--epsilons", type=float, nargs="+", default=EPSILONS, help="steps to try (0.1 to 1e-7)")
    add("--output", type=Path, default=Path("docs/results"), help="where results go (%(default)s)")
    add("--quick", action="store_true", help="one sequence and three steps only")
    add("--redraw", action="store_true", help="measure nothing: table and figure from the JSON in --output")
    options = parser.parse_args()
    if options.quick:
        options.epsilons, options.sequences = (1e-2, 1e-3, 1e-4), 1
    if not options.redraw and not (options.model and options.text):
        raise tint.InputError("pass --model DIR --text FILE (repeat both for several models); see --help")
    texts = options.text * (len(options.model) if len(options.text) == 1 else 1)
    names = options.name or [Path(model).name for model in options.model]
    if not len(options.model) == len(texts) == len(names):
        raise tint.InputError("give as many --text (or one for all) and --name (or none) as --model")
    if options.tokens < 4 or options.sequences < 1:
        raise tint.InputError("--tokens must be at least 4 and --sequences at least 1")
    options.work = list(zip(options.model, texts, names, strict=True))
    return options


def main() -> None:
    """Measure every model, then write and print the results."""
    options = parse()
    import_matplotlib("the figures of the results")
    path = options.output / "difference-error.json"
    if options.redraw:
        record = json.loads(path.read_text())
    else:
        models = [study(model, text, name, options) for model, text, name in options.work]
        record = {**versions(), "tokens": options.tokens, "sequences": options.sequences, "models": models}
        save_json(record, path)
    save_markdown(markdown(record), path.with_suffix(".md"))
    draw(record, path.with_suffix(".png"))
    for model in record["models"]:
        print_table(summarise(model, candidates=()), title=model["model"])


if __name__ == "__main__":
    run_as_script("difference_error", main)
