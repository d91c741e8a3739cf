# pyright: basic
"""What the studies behind the published tables make of their units: means, standard errors, intervals, ratios.

A function takes the rows of a file of docs/results/data/units and yields rows of estimates: the table that each belongs
to, its labels, a metric, and its numbers. Intervals are those of the package's own bootstrap, whose draws are the same
every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from statistics import fmean, median
from typing import Any

from tintbench.automatic_rates import HARM, HOPELESS
from tintlab.show.intervals import Estimate, bootstrap, crossed_bootstrap, standard_error
from tintlab.show.position_gain import ChunkSums, gain_by_position, total_gain

STEPS = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
"""That a default step of a difference may have."""

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
                for step in STEPS:
                    if step in errors:
                        row = {"step": f"{step:.0e}", "metric": "error", "value": fmean(errors[step])}
                        yield {**labels, **row, "high": max(errors[step])}
    yield from _of_defaults(units)


def _of_defaults(units: Sequence[Unit]) -> Estimates:
    """Yield what defaults were read off: errors in float32 at the steps that they may have, by model and at most."""
    largest: dict[tuple[str, str], float] = {}
    for where, found in grouped(units, "part", "scheme", "mode", "model", "dtype", "epsilon"):
        errors, step = numbers(found, "error"), f"{float(where['epsilon']):.0e}"
        if where["dtype"] != "float32" or float(step) not in STEPS or where["part"] not in ("both", "attention"):
            continue
        scheme = where["scheme"].replace("_", "-")
        if where["part"] == "both":
            labels = {"scheme": f"{scheme}, {where['mode']}", "model": where["model"], "step": step}
            yield {"table": "both", **labels, "metric": "error", "value": fmean(errors), "high": max(errors)}
        if where["mode"] == "relative":
            kind = scheme if where["part"] == "both" else "perturbed attention"
            largest[step, kind] = max(largest.get((step, kind), 0.0), fmean(errors))
    for (step, kind), value in sorted(largest.items(), key=lambda item: -float(item[0][0])):
        yield {"table": "largest", "step": step, "kind": kind, "metric": "error", "value": value}


def _by_step(units: Sequence[Unit]) -> Iterator[tuple[list[Unit], list[float]]]:
    for _, found in grouped(units, "epsilon"):
        yield found, numbers(found, "error")


def softmax_form(units: Sequence[Unit]) -> Estimates:
    """Yield both errors of every form, dtype and step; one pass each, so that a unit is an estimate."""
    for unit in units:
        labels = {"table": "errors", "form": unit["form"], "dtype": unit["dtype"]}
        step = f"{float(unit['epsilon']):.0e}"
        yield from ({**labels, "step": step, "metric": name, "value": unit[name]} for name in ("logits", "update"))


def streams(units: Sequence[Unit]) -> Estimates:
    """Yield the two tables of the small models: gain and cost, and the gain by quarters of a block."""
    for where, here in grouped(units, "model"):
        by_method = {labels["method"]: found for labels, found in grouped(here, "method")}
        plain = by_method["the model as it is"]
        for method, chunks in by_method.items():
            rate = format(float(chunks[0]["rate"]), ".3g") if chunks[0]["rate"] else ""
            documents, tokens = _paired(plain, chunks), sum(numbers(chunks, "tokens"))
            passes = _flops(chunks) / _flops(plain)
            row = {"table": "small-models", **where, "method": method, "rate": rate}
            perplexity = math.exp(math.fsum(numbers(chunks, "nats")) / tokens)
            yield {**row, "metric": "perplexity", "value": perplexity, "n": len(documents)}
            yield {**row, "metric": "tokens", "value": int(tokens)}
            yield {**row, "metric": "passes", "value": passes}
            if chunks is plain:
                continue
            gain = total_gain(documents)
            yield {**row, "metric": "gain", **interval(gain)}
            ends = {"value": gain.value, "low": gain.high, "high": gain.low}
            yield {**row, "metric": "change of perplexity", **{end: math.expm1(-nats) for end, nats in ends.items()}}
            quarter = (max(int(chunk["first token"]) for chunk in chunks) + _width(chunks)) // 4
            row = {"table": "small-models-positions", **where, "method": method}
            places = gain_by_position([_merged(each, quarter // _width(chunks)) for each in documents], quarter)
            for name, place in zip(("first quarter", "second", "third", "last"), places, strict=True):
                yield {**row, "position": name, "metric": "gain", **interval(place.gain), "n": place.documents}


def _paired(plain: Sequence[Unit], learnt: Sequence[Unit]) -> list[ChunkSums]:
    """Return the documents of a method beside those of the model as it is."""
    before = {labels["document"]: chunks for labels, chunks in grouped(plain, "document")}
    return [
        ChunkSums(
            before=tuple(numbers(before[labels["document"]], "nats")),
            after=tuple(numbers(chunks, "nats")),
            tokens=tuple(int(chunk["tokens"]) for chunk in chunks),
        )
        for labels, chunks in grouped(learnt, "document")
    ]


def _flops(chunks: Sequence[Unit]) -> float:
    return sum(float(chunk["flops"]) for chunk in chunks if chunk["flops"])


def _width(chunks: Sequence[Unit]) -> int:
    return int(chunks[1]["first token"]) - int(chunks[0]["first token"])


def _merged(document: ChunkSums, count: int) -> ChunkSums:
    """Return a document with so many chunks as one."""
    starts = range(0, len(document.tokens), count)
    return ChunkSums(
        before=tuple(math.fsum(document.before[at : at + count]) for at in starts),
        after=tuple(math.fsum(document.after[at : at + count]) for at in starts),
        tokens=tuple(sum(document.tokens[at : at + count]) for at in starts),
    )


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


def sizes(units: Sequence[Unit], table: str, *labels: str) -> Estimates:
    """Yield counts and errors that nothing is averaged over."""
    for unit in units:
        named = {name: unit[name] for name in labels}
        counted = {name: value for name, value in unit.items() if name not in labels and value}
        yield from ({"table": table, **named, "metric": name, "value": value} for name, value in counted.items())


def constructions(units: Sequence[Unit]) -> Estimates:
    """Yield a table for each direction."""
    for where, here in grouped(units, "pass"):
        shown = [{name: value for name, value in unit.items() if name != "pass"} for unit in here]
        yield from sizes(shown, where["pass"].replace(" ", "-"), "construction")


def speed(units: Sequence[Unit]) -> Estimates:
    """Yield medians, and what they are in other units."""
    medians = {
        tuple(where.values()): median(numbers(runs, "seconds"))
        for where, runs in grouped(units, "model", "case", "method")
    }
    for where, (unit, *others) in grouped(units, "model", "case", "method"):
        model, case, _ = where.values()
        seconds = medians[tuple(where.values())]
        found = {"seconds": seconds, "tokens per second": int(unit["tokens"]) / seconds}
        for name in ("fast", "forward"):
            if (model, case, name) in medians:
                found[f"over {name}"] = seconds / medians[model, case, name]
        if unit["peak_memory_bytes"]:
            found["peak memory in bytes"] = float(unit["peak_memory_bytes"])
        if unit["multiply_adds"]:
            found["share of peak"] = (
                float(unit["multiply_adds"]) / seconds / float(unit["peak_multiply_adds_per_second"])
            )
        for metric, value in found.items():
            row = {"metric": metric, "value": value, "n": 1 + len(others)}
            yield {"table": "speed", **where, "note": unit["note"], **row}


STUDIES: dict[str, Callable[[Sequence[Unit]], Estimates]] = {
    "automatic-rates": automatic_rates,
    "bundled-models": bundled_models,
    "constructions": constructions,
    "difference-error": difference_error,
    "language-modelling": language_modelling,
    "network-sizes": lambda units: sizes(units, "sizes", "model"),
    "other-losses": other_losses,
    "probe": probe,
    "regression": regression,
    "softmax-form": softmax_form,
    "speed": speed,
    "speed-all-methods": speed,
    "speed-simulator": speed,
    "streams": streams,
}
"""By the name of the file of units and of the file of estimates, which are the same."""
