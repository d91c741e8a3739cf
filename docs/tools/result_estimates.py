# pyright: basic
"""Computes the estimates of tables from the units they were measured on; `make tables` writes them.

A file of docs/results/data/units has one row a unit, and a function here that knows what the study made of them: means,
standard errors, and the intervals of the package's own bootstrap, whose draws are the same every time. Estimates take
the place of those that were computed before; rows "as published at COMMIT", whose units nobody has, stay.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import result_tables

from tintbench.automatic_rates import HARM, HOPELESS
from tintlab.show.intervals import Estimate, bootstrap, crossed_bootstrap, standard_error

UNITS = result_tables.DATA / "units"
DIGITS = "{:.10g}"
"""Of an estimate in a file: more than any table shows, fewer than rounding on other processors changes."""

Unit = dict[str, str]
Estimates = Iterator[dict[str, Any]]


def grouped(units: Iterable[Unit], *names: str) -> Iterator[tuple[dict[str, str], list[Unit]]]:
    """Yield the units that have the same values of these columns, in the order of the file."""
    groups: dict[tuple[str, ...], list[Unit]] = {}
    for unit in units:
        groups.setdefault(tuple(unit[name] for name in names), []).append(unit)
    for values, found in groups.items():
        yield dict(zip(names, values, strict=True)), found


def numbers(units: Iterable[Unit], column: str) -> list[float]:
    """Return a column as numbers."""
    return [float(unit[column]) for unit in units]


def interval(found: Estimate) -> dict[str, float]:
    """Return an estimate as the columns of a row."""
    return {"value": found.value, "low": found.low, "high": found.high}


def share(before: Any, after: Any, tuned: Any) -> Any:
    """Return which part of one gain another one is."""
    return (before - after) / (before - tuned)


def compared(
    units: Sequence[Unit], losses: Callable[[Sequence[Unit]], list[float]], plain: str, truth: str, rate: str
) -> Iterator[tuple[dict[str, str], list[Unit], list[dict[str, Any]]]]:
    """Yield what every method made of the same blocks: its loss, its perplexity, its gain, and the share of a gain."""
    by_method = {labels["method"]: found for labels, found in grouped(units, "method")}
    for method, found in by_method.items():
        own, before = losses(found), losses(by_method[plain])
        perplexity, error = math.exp(fmean(own)), standard_error(own)
        labels = {"method": method, "rate": format(float(found[0]["rate"]), rate) if found[0]["rate"] else ""}
        rows: list[dict[str, Any]] = [
            {"metric": "nats per token", "value": fmean(own), "error": error, "n": len(own)},
            {"metric": "perplexity", "value": perplexity, "error": perplexity * error},
        ]
        if method != plain:
            rows.append({"metric": "gain", **interval(bootstrap([before, own]))})
        if method not in (plain, truth):
            samples = [before, own, losses(by_method[truth])]
            rows.append({"metric": "share of fine-tuning", **interval(bootstrap(samples, share))})
        yield labels, found, rows


def language_modelling(units: Sequence[Unit]) -> Estimates:
    """Yield the two tables of the small models."""

    def losses(blocks: Sequence[Unit]) -> list[float]:
        return [float(block["nats"]) / int(block["tokens"]) for block in blocks]

    plain, truth = "the model as it is", "fine-tuning, all block weights"
    for where, here in grouped(units, "model", "trained"):
        for labels, blocks, rows in compared(here, losses, plain, truth, ".3g"):
            (perplexity,) = (row for row in rows if row["metric"] == "perplexity")
            yield {"table": "small-models-by-share", **where, "method": labels["method"], **perplexity}
            details = [row for row in rows if row is not perplexity]
            details.append({"metric": "perplexity per token", "value": perplexity["value"]})
            for name in ("word", "byte"):
                value = math.exp(sum(numbers(blocks, "nats")) / sum(numbers(blocks, f"{name}s")))
                details.append({"metric": f"perplexity per {name}", "value": value})
            yield from ({"table": "small-models-details", **where, **labels, **row} for row in details)


def other_losses(units: Sequence[Unit]) -> Estimates:
    """Yield the table of losses without a softmax, and adapters."""

    def losses(blocks: Sequence[Unit]) -> list[float]:
        return [float(block["nats"]) / int(block["tokens"]) for block in blocks]

    for where, here in grouped(units, "model"):
        plain, truth = "the model as it is", "fine-tuning, all block weights"
        for labels, _, rows in compared(here, losses, plain, truth, ".3g"):
            yield from ({"table": "gains", **where, **labels, **row} for row in rows if "share" not in row["metric"])


def bundled_models(units: Sequence[Unit]) -> Estimates:
    """Yield a table for each bundled model."""
    scored = [unit for unit in units if unit["segment"].isdecimal()]
    for where, here in grouped(scored, "model"):

        def losses(segments: Sequence[Unit]) -> list[float]:
            return numbers(segments, "nats per token")

        for labels, _, rows in compared(here, losses, "model as it is", "explicit fine-tuning", ".2g"):
            yield from ({"table": where["model"], **labels, **row} for row in rows)


def automatic_rates(units: Sequence[Unit]) -> Estimates:
    """Yield three tables for each model: all texts, by length, and by kind."""
    for where, here in grouped(units, "model"):
        texts = [found for _, found in grouped(here, "kind", "length", "number")]
        for table, name in (("all", "texts of"), ("length", "length"), ("kind", "kind")):
            values = {text[0].get(name, "all") for text in texts}
            for value in sorted(values, key=lambda value: (int(value), "") if value.isdecimal() else (0, value)):
                chosen = [text for text in texts if text[0].get(name, "all") == value]
                for choice in ("before", "now"):
                    labels = {"table": f"{where['model']}-{table}", name: value, "auto": choice}
                    yield from ({**labels, **row} for row in _of_choice(chosen, choice))


def _of_choice(texts: Sequence[Sequence[Unit]], choice: str) -> Estimates:
    """Yield how often a choice of rates harms, and which share of the best gain it has."""
    own = [unit for text in texts for unit in text if unit["choice"] == choice]
    # A text that diverged has lost more than any that is in the table; its loss is taken as that of the grid's end.
    gains = [float(unit["gain"]) if unit["gain"] else HOPELESS for unit in own]
    best = [max(0.0, *numbers([unit for unit in text if unit["choice"] == "grid"], "gain")) for text in texts]
    harm = bootstrap([[float(gain < -HARM) for gain in gains]])
    yield {"metric": "harm", **interval(harm), "n": len(gains)}
    yield {"metric": "share of the best gain", **interval(bootstrap([gains, best], lambda gain, most: gain / most))}
    yield {"metric": "mean gain", "value": sum(gains) / len(gains)}
    yield {"metric": "best gain in hindsight", "value": sum(best) / len(best)}
    yield {"metric": "learns", "value": sum(float(unit["rate"]) > 0 for unit in own) / len(own)}


def difference_error(units: Sequence[Unit]) -> Estimates:
    """Yield a table for each model: the error at the best step in each dtype, and at those that a default may have."""
    for where, here in grouped(units, "model", "part", "scheme", "mode"):
        exact = where["scheme"] == "exact"
        how = "exact" if exact else f"{where['scheme'].replace('_', '-')}, {where['mode']}"
        labels = {"table": where["model"], "differences": where["part"], "scheme": how}
        for dtype, of_dtype in groupby(here, lambda unit: unit["dtype"]):
            errors = {float(unit["epsilon"]): found for (unit, *_), found in _by_step(list(of_dtype))}
            best = min(errors, key=lambda step: fmean(errors[step]))
            yield {**labels, "metric": f"{dtype} best", "value": fmean(errors[best])}
            if not exact:
                yield {**labels, "metric": f"{dtype} best step", "value": best}
            if dtype == "float32":
                yield {**labels, "metric": "worst", "value": max(errors[best])}
                for step in (1e-2, 3e-3, 1e-3, 3e-4, 1e-4):
                    if step in errors:
                        row = {"step": f"{step:.0e}", "metric": "error", "value": fmean(errors[step])}
                        yield {**labels, **row, "high": max(errors[step])}


def _by_step(units: Sequence[Unit]) -> Iterator[tuple[list[Unit], list[float]]]:
    for _, found in grouped(units, "epsilon"):
        yield found, numbers(found, "error")


def softmax_form(units: Sequence[Unit]) -> Estimates:
    """Yield both errors of every form, dtype and step; one pass each, so that a unit is an estimate."""
    for unit in units:
        labels = {"table": "errors", "form": unit["form"], "dtype": unit["dtype"]}
        step = f"{float(unit['epsilon']):.0e}"
        yield from ({**labels, "step": step, "metric": name, "value": unit[name]} for name in ("logits", "update"))


def regression(units: Sequence[Unit]) -> Estimates:
    """Yield the mean squared error of every method and size of the context, with its interval over functions."""
    for labels, functions in grouped(units, "method", "examples"):
        found = bootstrap([numbers(functions, "squared error")])
        yield {"table": "squared-error", **labels, "metric": "squared error", **interval(found), "n": len(functions)}


def probe(units: Sequence[Unit]) -> Estimates:
    """Yield the shifts of the bundled models, and how much further they are than those of the control."""
    tables = {
        "text_loss": ("text-loss", "", 1),
        "labels_moved": ("labels-moved", " in points", 100),
        "first_label_same": ("label-bias", " in points", 100),
    }
    for where, here in grouped(units, "measure", "model", "rate", "contexts", "after"):
        if where["measure"] not in tables:
            continue
        table, unit, scale = tables[where.pop("measure")]
        shifts = _by_context(here, scale)
        yield {"table": table, **where, "metric": f"shift{unit}", **interval(crossed_bootstrap(shifts))}
        if table != "label-bias" and where["contexts"] != "innocuous":
            same = {**where, "measure": here[0]["measure"], "contexts": "innocuous"}
            control = [each for each in units if all(each[name] == value for name, value in same.items())]
            over = crossed_bootstrap(shifts, _by_context(control, scale))
            yield {"table": table, **where, "metric": f"over control{unit}", **interval(over)}


def _by_context(units: Sequence[Unit], scale: float) -> list[list[float]]:
    return [[scale * shift for shift in numbers(found, "shift")] for _, found in grouped(units, "context")]


STUDIES: dict[str, Callable[[Sequence[Unit]], Estimates]] = {
    "automatic-rates": automatic_rates,
    "bundled-models": bundled_models,
    "difference-error": difference_error,
    "language-modelling": language_modelling,
    "other-losses": other_losses,
    "probe": probe,
    "regression": regression,
    "softmax-form": softmax_form,
}
"""By the name of the file of units and of the file of estimates, which are the same."""


def estimates(name: str) -> list[dict[str, str]]:
    """Return the rows that the units of a study make."""
    with (UNITS / f"{name}.csv").open(encoding="utf-8", newline="") as text:
        found = list(STUDIES[name](list(csv.DictReader(text))))
    status = f"computed from units/{name}.csv"
    return [{key: _text(value) for key, value in row.items()} | {"status": status} for row in found]


def _text(value: Any) -> str:
    return DIGITS.format(value) if isinstance(value, float) else str(value)


def write(path: Path, computed: Sequence[dict[str, str]]) -> None:
    """Write computed rows in front of those of the file that are as published."""
    kept = [dict(row) for row in result_tables.read_rows(path.name)] if path.is_file() else []
    rows = [*computed, *(row for row in kept if row["status"].startswith("as published"))]
    used = dict.fromkeys(key for row in rows for key, text in row.items() if text)
    labels = [name for name in used if name not in result_tables.FIELDS]
    fields = [name for name in result_tables.FIELDS if name in used]
    names = [fields[0], *labels, *fields[1:]]
    with path.open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, names, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    result_tables.read_rows.cache_clear()


def main() -> None:
    """Write the estimates of every study, then the tables."""
    for name in STUDIES:
        if (UNITS / f"{name}.csv").is_file():
            write(result_tables.DATA / f"{name}.csv", estimates(name))
    result_tables.main()


if __name__ == "__main__":
    main()
