# pyright: basic
"""Prints the numbers of a run as tidy rows, one a unit: a block, a text, a function, a context and a prompt.

    python docs/tools/rows_of_records.py RUN_DIRECTORY > docs/results/data/units/NAME.csv

RUN_DIRECTORY is what was given to `--output` of `tint eval lm`, `stream`, `regression` or, with the names of its models
behind it, of `tint probe`; or the JSON file of a study of `tintbench`, of `tint bench` or of `tint eval constructions
--json`. Nothing is computed anew: a record that is missing is an error.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tintlab.kinds.runs import load_runs
from tintlab.study.runner import Runner
from tintlab.study.store import RecordStore
from tintlab.study.tuning import run_experiment

Units = Iterator[dict[str, Any]]


def of_language(experiment: Any, runner: Runner) -> Units:
    """Yield the scored blocks of `tint eval lm`, by share and method, each at the rate that other blocks chose."""
    from tintlab.data.models import short_name
    from tintlab.methods.methods import METHODS

    for result in run_experiment(experiment, runner):
        units = experiment.units(result.share, result.method, result.rate, "test")
        for unit, found in zip(units, runner.complete(experiment, units), strict=True):
            yield {
                "model": short_name(experiment.model),
                "trained": f"{result.share:.0%}",
                "method": METHODS[result.method].title,
                "rate": result.rate or "",
                "block": unit.blocks[0],
                "nats": found["nats"][0],
                "tokens": found["tokens"],
                "words": found["words"][0],
                "bytes": found["bytes"][0],
            }


def of_regression(experiment: Any, runner: Runner) -> Units:
    """Yield the functions of `tint eval regression`, by method and size of the context."""
    for result in run_experiment(experiment, runner):
        title = experiment.table[result.method].title.replace("many steps", f"{experiment.steps} steps")
        for number, error in enumerate(result.errors or ()):
            about = {"functions": experiment.model, "method": title, "examples": result.examples}
            yield about | {"rate": result.rate or "", "function": number, "squared error": error}


def of_streams(experiment: Any, runner: Runner) -> Units:
    """Yield the chunks of every document of `tint eval stream`, and with the first of a unit what it took to read."""
    from tintlab.data.models import short_name

    for result in run_experiment(experiment, runner):
        units = experiment.units(experiment.settings()[0], result.method, result.rate, "test")
        for unit, found in zip(units, runner.complete(experiment, units), strict=True):
            flops = found["flops"]
            for document, nats, tokens in zip(unit.documents, found["nats"], found["tokens"], strict=True):
                for chunk, (loss, count) in enumerate(zip(nats, tokens, strict=True)):
                    yield {
                        "model": short_name(experiment.model),
                        "method": experiment.table[result.method].title,
                        "rate": result.rate or "",
                        "document": document,
                        "first token": chunk * experiment.chunk,
                        "nats": loss,
                        "tokens": count,
                        "flops": flops,
                    }
                    flops = ""


def of_probe(directory: Path, model: str) -> Units:
    """Yield what every prompt does after reading every context, and after learning from it at the middle rate."""
    import torch

    from tintformer.learning.text_model import open_text_model
    from tintlab.kinds.probe_result import MOVED, SAME, TEXT
    from tintlab.kinds.probe_study import FACTORS, ask, prepare
    from tintlab.kinds.sweep import RECORDS

    torch.set_num_threads(1)
    auxiliary = open_text_model(model, None, None, "float32")
    study = prepare(
        ask(None, None, None, "default", None, None, {}, tokens=None, quick=False), auxiliary, model, threads=1
    )
    with Runner(RecordStore(directory / RECORDS), only_records=True) as runner:
        before, *found = runner.complete(study.experiment, study.units())
    results = iter(found)
    for part in study.parts:
        middle = part.rules[FACTORS.index(1.0)][1]
        for unit, result in [(unit, next(results)) for unit in part.units()]:
            if unit.rule not in (None, middle):
                continue
            of_set, number = next(
                (name, contexts.index(unit.context))
                for name, contexts in part.sets.items()
                if any(unit.context is each for each in contexts)
            )
            after = "reading" if unit.rule is None else "learning"
            about = {"model": model, "rate": f"{middle.rate:.3g}", "contexts": of_set, "context": number}
            measures = part.measures(before, result, "behind" if unit.rule is None else "alone")
            for measure in [name for name in (TEXT, MOVED, SAME) if name in measures]:  # what the page shows
                for prompt, shift in enumerate(measures[measure]):
                    yield about | {"after": after, "measure": measure, "prompt": prompt, "shift": f"{shift:.7g}"}


def of_automatic_rates(record: Any) -> Units:
    """Yield what every text gained: at the rates of the grid, and at those that `auto` chose before and chooses now."""
    for text in record["texts"]:
        about = {name: text[name] for name in ("model", "kind", "length", "number")}
        yield from (about | {"choice": "grid", "rate": rate, "gain": gain} for rate, gain in text["curve"].items())
        for choice, part in (("before", "last_fifth"), ("now", "auto")):
            yield about | {"choice": choice, "rate": text[part]["rate"], "gain": text[part]["gain"]}


def of_bundled_models(record: Any) -> Units:
    """Yield the loss of every scored segment, and the mean over the others at every rate that was tried there."""
    for model in record["models"]:
        for method in model["methods"]:
            about = {"model": model["model"], "method": method["method"]}
            for rate, loss in method["curve"].items():
                yield about | {"rate": rate, "segment": "mean of the tuning segments", "nats per token": loss}
            for number, loss in enumerate(method["losses"]):
                yield about | {"rate": method["rate"] or "", "segment": number, "nats per token": loss}


def of_difference_error(record: Any) -> Units:
    """Yield the error of every sequence."""
    for model in record["models"]:
        for case in model["cases"]:
            about = {name: case[name] for name in ("part", "scheme", "mode", "dtype", "epsilon")}
            for number, error in enumerate(case["errors"]):
                yield {"model": model["model"], **about, "sequence": number, "error": error}


def of_constructions(record: Any) -> Units:
    """Yield what every construction takes, and how far off it is, in each direction that it has."""
    for each in record["constructions"]:
        about = {"construction": each["name"], "pass": "forward", "tokens": each["weight_tokens"]}
        sizes = {"layers": each["layers"], "parameters": each["parameters"], "non-zero": each["non_zero"]}
        yield about | sizes | each["errors"]
        if each["step_errors"]:
            sizes = {"layers": each["step_layers"], "parameters": each["step_parameters"], "non-zero": None}
            yield about | {"pass": "step of descent", "tokens": None} | sizes | each["step_errors"]


def of_speed(records: Any) -> Units:
    """Yield every run of every method, with what its time is compared to."""
    for record in records:
        about = {name: record[name] for name in ("model", "case", "method", "note")}
        about["tokens"] = round(record["tokens_per_second"] * record["seconds"])
        about |= {
            name: record[name] for name in ("multiply_adds", "peak_multiply_adds_per_second", "peak_memory_bytes")
        }
        yield from (about | {"run": number, "seconds": seconds} for number, seconds in enumerate(record["times"]))


STUDIES: dict[str, Callable[[Any], Units]] = {
    "automatic-rates": of_automatic_rates,
    "bundled-models": of_bundled_models,
    "difference-error": of_difference_error,
    "constructions": of_constructions,
    "softmax-form": lambda record: iter(record["records"]),
    "network-sizes": lambda record: iter(record["records"]),
}
KINDS = {"lm": of_language, "regression": of_regression, "stream": of_streams}


def units_of(path: Path, models: Iterable[str]) -> Units:
    """Yield the units of a run or of a study."""
    if path.is_file():
        study = of_speed if path.stem.startswith("speed") else STUDIES[path.stem]
        yield from study(json.loads(path.read_text(encoding="utf-8")))
        return
    for model in models:
        yield from of_probe(path, model)
    if models:
        return
    with Runner(RecordStore(path / "records"), only_records=True) as runner:
        for run in load_runs(path):
            for experiment in run.experiments:
                yield from KINDS[run.kind](experiment, runner)


def main() -> None:
    """Print the units of the run that the command line names."""
    first, *others = units_of(Path(sys.argv[1]), sys.argv[2:])
    writer = csv.DictWriter(sys.stdout, list(first), lineterminator="\n")
    writer.writeheader()
    writer.writerows([first, *others])


if __name__ == "__main__":
    main()
