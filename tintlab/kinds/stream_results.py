"""Results of streams as tables and figures; nothing here decides a number, so records outlive its changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tintformer.storage.foreign_markup import to_label
from tintlab.data.models import short_name
from tintlab.kinds.document_streams import DocumentStreams, StreamResult, open_streams
from tintlab.methods.methods import STREAM_METHODS
from tintlab.show.figures import png_of, rate_curves
from tintlab.show.intervals import Estimate
from tintlab.show.position_gain import ChunkSums, draw_gains, gain_by_position, total_gain
from tintlab.show.tables import ResultTable, of_models

StreamResults = Sequence[tuple[DocumentStreams, Sequence[StreamResult]]]
"""Experiments with their results, one a model."""
PLACES = 4
"""Columns of gain by position, as many tokens each."""
COLOURS = {
    "auxiliary": "#6b7280",
    "sgd": "#d55e00",
    "momentum": "#e69f00",
    "decay": "#cc79a7",
    "rms": "#5e3c99",
    "adam": "#1f2329",
    "muon": "#8c510a",
    "layer-rates": "#b2182b",
    "top-quarter": "#4d9221",
    "tint": "#0072b2",
    "lora": "#009e73",
}
_LOOKS = {
    name: {"color": COLOURS[name], "marker": marker} for name, marker in zip(STREAM_METHODS, "osD^vPX*<>h", strict=True)
}


def perplexity(result: StreamResult) -> float:
    """Per token, over all documents."""
    if result.nats is None:
        return math.inf
    return math.exp(min(700.0, _total(result.nats) / _total(result.tokens)))


def _total(values: Sequence[Sequence[float]]) -> float:
    return math.fsum(value for each in values for value in each)


def paired(plain: StreamResult, result: StreamResult) -> list[ChunkSums] | None:
    """The documents of a method beside the model as it is; None if the method has diverged on one."""
    if plain.nats is None or result.nats is None:
        return None
    return [
        ChunkSums(before=before, after=after, tokens=tokens)
        for before, after, tokens in zip(plain.nats, result.nats, result.tokens, strict=True)
    ]


def stream_tables(done: StreamResults) -> list[ResultTable]:
    """Perplexity, gain and cost of every method, then the gain by position."""
    done = _joined(done)
    return [_overview(done), _positions(done)]


def _joined(done: StreamResults) -> StreamResults:
    """Runs that differ in methods and rates alone are one: all of their methods beside the one model as it is."""
    groups: dict[DocumentStreams, tuple[DocumentStreams, list[StreamResult]]] = {}
    for experiment, results in done:
        same = replace(experiment, methods=("auxiliary",), rates=None, statistics=None)
        _, found = groups.setdefault(same, (experiment, []))
        found += [result for result in results if result not in found]
    order = list(STREAM_METHODS)
    return [
        (experiment, sorted(found, key=lambda result: order.index(result.method)))
        for experiment, found in groups.values()
    ]


def _overview(done: StreamResults) -> ResultTable:
    rows = [
        {"model": short_name(experiment.model)} | _row(result, results)
        for experiment, results in done
        for result in results
    ]
    note = (
        f"{_corpus(done)} Gain: nats per token below the model as it is, which reads the same windows; documents count "
        "by their tokens. Intervals: 95%, bootstrap over documents. Passes: arithmetic of matrix products and "
        "attention, counted as it ran, over that of the model as it is on the same windows. "
        f"{_how_rates_were_chosen(done[0][0])}"
    )
    return of_models("Streams", "perplexity, gain and cost", note, rows)


def _row(result: StreamResult, results: Sequence[StreamResult]) -> dict[str, str]:
    plain = next((other for other in results if other.method == "auxiliary"), None)
    gain = change = passes = ""
    if plain is not None and result is not plain:
        documents = paired(plain, result)
        if documents is None:
            gain = "diverged"
        else:
            estimate = total_gain(documents)
            gain, change = _shown(estimate, ".4f"), _shown(_relative(estimate), "+.1%")
    if plain is not None and plain.flops and result.flops is not None:
        passes = f"{result.flops / plain.flops:.2f}"
    return {
        "method": STREAM_METHODS[result.method].title,
        "rate": f"{result.rate:.3g}" if result.rate else "",
        "n": str(len(result.tokens)),
        "tokens": str(int(_total(result.tokens))),
        "perplexity": f"{perplexity(result):.2f}",
        "change of perplexity": change,
        "gain": gain,
        "passes": passes,
    }


def _relative(gain: Estimate) -> Estimate:
    """A gain in nats as a change of perplexity; the ends of its interval change places."""
    return Estimate(value=math.expm1(-gain.value), low=math.expm1(-gain.high), high=math.expm1(-gain.low))


def _shown(estimate: Estimate, spec: str) -> str:
    return f"{estimate.value:{spec}}" if math.isnan(estimate.low) else f"{estimate:{spec}}"


def _corpus(done: StreamResults) -> str:
    """What was read, and how, for each model where they differ."""
    found: dict[str, list[str]] = {}
    for experiment, _ in done:
        opened = open_streams(experiment)
        how = opened.settings
        first = "" if opened.first is None else ", each begun by the tokenizer's own first token"
        number = "one document" if len(opened.scored) == 1 else f"{len(opened.scored)} documents"
        said = (
            f"{opened.texts.name}, {number} cut at {experiment.length} tokens "
            f"(seed {experiment.seed}){first}, in "
            f"chunks of {how.chunk}, windows of {how.window}, carry {how.carry}"
        )
        found.setdefault(said, []).append(short_name(experiment.model))
    said = "; ".join(said if len(found) == 1 else f"{', '.join(models)}: {said}" for said, models in found.items())
    return f"{said}."


def _how_rates_were_chosen(experiment: DocumentStreams) -> str:
    if not any(method.chooses_rate for method in experiment.compared().values()):
        return ""
    if experiment.has_one_rate and experiment.rates is not None:
        return f"Learning rate {experiment.rates[0]:g}, as given."
    grid = "a grid that finds its own range" if experiment.rates is None else "the given grid"
    others = "another document" if experiment.tuning == 1 else f"{experiment.tuning} other documents"
    return f"Learning rates: for each method the best of {grid} on {others}."


def _positions(done: StreamResults) -> ResultTable:
    rows: list[dict[str, str]] = []
    for experiment, results in done:
        width = -(-experiment.length // (PLACES * experiment.chunk)) * experiment.chunk
        plain = next((result for result in results if result.method == "auxiliary"), None)
        for result in results:
            documents = None if plain is None or result is plain else paired(plain, result)
            if documents is None:
                continue
            merged = [_merged(each, width // experiment.chunk) for each in documents]
            rows.append(
                {"model": short_name(experiment.model), "method": STREAM_METHODS[result.method].title}
                | {
                    f"{place.start} to {place.end}": f"{_shown(place.gain, '.4f')}, n {place.documents}"
                    for place in gain_by_position(merged, width)
                }
            )
    if not rows:
        rows = [{"model": short_name(experiment.model), "method": "nothing has learnt"} for experiment, _ in done]
    note = "Gain in nats per token below the model as it is, by position in the document; n: documents that reach it."
    return of_models("Streams", "gain by position", note, rows)


def _merged(document: ChunkSums, count: int) -> ChunkSums:
    """With so many chunks as one."""
    starts = range(0, len(document.tokens), count)
    return ChunkSums(
        before=tuple(math.fsum(document.before[at : at + count]) for at in starts),
        after=tuple(math.fsum(document.after[at : at + count]) for at in starts),
        tokens=tuple(sum(document.tokens[at : at + count]) for at in starts),
    )


def stream_figures(done: StreamResults) -> dict[str, bytes]:
    """PNGs by name."""
    done = _joined(done)
    shown = [(experiment, gained) for experiment, results in done if (gained := _gained(results))]
    curves = [
        (short_name(experiment.model), result.method, result.curve)
        for experiment, results in done
        for result in results
    ]

    def positions(panels: Sequence[Any]) -> None:
        for panel, (experiment, gained) in zip(panels, shown, strict=True):
            for number, (name, documents) in enumerate(gained):
                places = gain_by_position(documents, experiment.chunk)
                shift = experiment.chunk / 12 * (number - (len(gained) - 1) / 2)
                look = {"label": STREAM_METHODS[name].title, "lw": 1.0, "ms": 3, **_LOOKS[name]}
                draw_gains(panel, places, shift=shift, **look)
            _finish(panel, experiment)

    def gains(panels: Sequence[Any]) -> None:
        for panel, (experiment, gained) in zip(panels, shown, strict=True):
            for number, (name, documents) in enumerate(gained):
                gain = total_gain(documents)
                error = None if math.isnan(gain.low) else [[gain.value - gain.low], [gain.high - gain.value]]
                look = {"label": STREAM_METHODS[name].title, "ls": "", "ms": 5, "capsize": 2, **_LOOKS[name]}
                panel.errorbar([number], [gain.value], yerr=error, **look)
            panel.axhline(0, color="0.5", lw=0.8, ls="--")
            panel.set(ylabel="gain, nats per token, 95% interval", xticks=[])
            _finish(panel, experiment)

    return {
        "positions": png_of(len(shown), positions, width=6.4, height=4.6, columns=2),
        "gain": png_of(len(shown), gains, height=4.0),
        "rates": rate_curves(curves, "nats per token, tuning documents", STREAM_METHODS, _LOOKS),
    }


def _gained(results: Sequence[StreamResult]) -> list[tuple[str, list[ChunkSums]]]:
    """The documents of every result of a method that learns and has not diverged; joined runs may have two of one."""
    plain = next((result for result in results if result.method == "auxiliary"), None)
    if plain is None:
        return []
    found = [(result.method, paired(plain, result)) for result in results if result is not plain]
    return [(name, documents) for name, documents in found if documents is not None]


def _finish(panel: Any, experiment: DocumentStreams) -> None:
    panel.set_title(to_label(short_name(experiment.model)))
    panel.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)  # not over the points
