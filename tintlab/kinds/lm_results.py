"""What language modelling has found: perplexity by method and share, and what each method gained."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from tintformer.storage.foreign_markup import to_label
from tintlab.data.models import short_name
from tintlab.kinds.lm import LanguageModelling, LanguageResult, open_language
from tintlab.methods.methods import METHODS
from tintlab.show.figures import LOOKS, png_of, rate_curves
from tintlab.show.intervals import bootstrap, standard_error
from tintlab.show.tables import OPTIMISTIC, ResultTable, of_models

LanguageResults = Sequence[tuple[LanguageModelling, Sequence[LanguageResult]]]
"""Experiments with their results, one a model."""
TRUTH = "fine-tuning"
"""The method whose gain the others are measured by."""


def language_tables(done: LanguageResults) -> list[ResultTable]:
    """Perplexity in the shape of the paper's table, then everything that is known about each entry."""
    return [_by_share(done), _language_details(done)]


def _by_share(done: LanguageResults) -> ResultTable:
    rows = [
        {"model": short_name(experiment.model), "method": METHODS[name].title}
        | {f"{result.share:.0%}": _perplexity(result) for result in results if result.method == name}
        for experiment, results in done
        for name in dict.fromkeys(result.method for result in results)
    ]
    note = (
        f"{_texts(done)} Columns: the share of each block that is trained on; entries: perplexity per token of the "
        f"rest, with its standard error. {_how_rates_were_chosen(done[0][0])}"
    )
    return of_models("Language modelling", "perplexity", note, rows)


def _texts(done: LanguageResults) -> str:
    """What was scored, for each model where they differ, and whether their tokens can be compared."""
    blocks: dict[str, list[str]] = {}
    for experiment, _ in done:
        opened = open_language(experiment)
        said = f"{len(opened.scored)} blocks of {opened.length} tokens (seed {experiment.seed})"
        blocks.setdefault(said, []).append(short_name(experiment.model))
    said = "; ".join(said if len(blocks) == 1 else f"{', '.join(models)}: {said}" for said, models in blocks.items())
    tokenizers = {open_language(experiment).model.identity["tokenizer"] for experiment, _ in done}
    apart = " Tokenizers differ, and so do the blocks: compare models per word or byte." if len(tokenizers) > 1 else ""
    return f"{open_language(done[0][0]).texts.name}, {said}.{apart}"


def _how_rates_were_chosen(experiment: LanguageModelling) -> str:
    if experiment.rates is not None and len(experiment.rates) == 1:
        return f"Learning rate {experiment.rates[0]:g}, as given."
    if experiment.chosen_on == "test":
        return OPTIMISTIC.format("scored blocks")
    grid = "a grid that finds its own range" if experiment.rates is None else "the given grid"
    return (
        f"Learning rates: the best of {grid} on {experiment.tuning} other blocks of the same text, for each method and "
        "share."
    )


def _perplexity(result: LanguageResult) -> str:
    value = perplexity(result)
    return f"{value:.2f} ± {value * standard_error(per_token(result)):.2f}"


def perplexity(result: LanguageResult) -> float:
    """Per token, over all blocks."""
    return _exp(fmean(per_token(result)))


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


def per_token(result: LanguageResult) -> list[float]:
    """Mean loss of each block; all blocks have as many scored tokens."""
    return [nats / result.tokens for nats in result.nats]


def _language_details(done: LanguageResults) -> ResultTable:
    note = (
        "Gain: nats per token below the model as it is, on the same blocks. Share of fine-tuning: of what fine-tuning "
        "of all block weights gains at its own rate. Intervals: 95%, bootstrap over blocks. n: blocks."
    )
    rows = [
        {"model": short_name(experiment.model)} | _language_detail(result, results)
        for experiment, results in done
        for result in results
    ]
    return of_models("Language modelling", "details", note, rows)


def _language_detail(result: LanguageResult, results: Sequence[LanguageResult]) -> dict[str, str]:
    others = {other.method: other for other in results if other.share == result.share}
    plain, truth = others.get("auxiliary"), others.get(TRUTH)
    losses, nats = per_token(result), sum(result.nats)
    gain = share = ""
    if plain is not None and result is not plain:
        gain = f"{bootstrap([per_token(plain), losses]):.4f}"
        if truth is not None and result is not truth:
            samples = [per_token(plain), losses, per_token(truth)]
            share = f"{bootstrap(samples, lambda before, after, tuned: (before - after) / (before - tuned)):.0%}"
    return {
        "trained": f"{result.share:.0%}",
        "method": METHODS[result.method].title,
        "rate": f"{result.rate:.3g}" if result.rate else "",
        "n": str(len(losses)),
        "nats per token": f"{fmean(losses):.4f} ± {standard_error(losses):.4f}",
        "perplexity per token": f"{perplexity(result):.2f}",
        "per word": f"{_exp(nats / result.words):.1f}" if result.words else "",
        "per byte": f"{_exp(nats / result.bytes):.3f}" if result.bytes else "",
        "gain": gain,
        "share of fine-tuning": share,
    }


def language_figures(done: LanguageResults) -> dict[str, bytes]:
    """PNGs by name."""
    curves = [
        (f"{short_name(experiment.model)}, {result.share:.0%} trained", result.method, result.curve)
        for experiment, results in done
        for result in results
    ]

    gained = [each for each in done if len({result.method for result in each[1]} | {"auxiliary"}) > 1]

    def draw(panels: Sequence[Any], shown: LanguageResults, draw_one: Callable[..., None]) -> None:
        for panel, (experiment, results) in zip(panels, shown, strict=True):
            draw_one(panel, results)
            panel.set(xlabel="share of the block trained on, %", title=to_label(short_name(experiment.model)))
            panel.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)  # not over the points

    blocks = "tuning blocks" if done[0][0].tunes else "scored blocks"
    return {
        "perplexity": png_of(len(done), lambda panels: draw(panels, done, _draw_shares), height=4.0),
        "gain": png_of(len(gained), lambda panels: draw(panels, gained, _gains), height=4.0),
        "rates": rate_curves(curves, f"nats per token, {blocks}"),
    }


def _draw_shares(axes: Any, results: Sequence[LanguageResult]) -> None:
    for name in dict.fromkeys(result.method for result in results):
        mine = [result for result in results if result.method == name]
        shares = [100 * result.share for result in mine]
        perplexities = [math.exp(min(fmean(per_token(result)), 700)) for result in mine]
        errors = [p * standard_error(per_token(result)) for p, result in zip(perplexities, mine, strict=True)]
        axes.errorbar(
            shares, perplexities, yerr=errors, label=METHODS[name].title, capsize=2, lw=1.3, ms=4, **LOOKS[name]
        )
    axes.set_ylabel("perplexity of the rest")


def _gains(axes: Any, results: Sequence[LanguageResult]) -> None:
    """What each method gains on the same blocks, which differ much more from each other than methods do."""
    plain = {result.share: per_token(result) for result in results if result.method == "auxiliary"}
    names = [name for name in dict.fromkeys(result.method for result in results) if name != "auxiliary"]
    for number, name in enumerate(names):
        mine = [result for result in results if result.method == name and result.share in plain]
        gains = [bootstrap([plain[result.share], per_token(result)]) for result in mine]
        places = [100 * result.share + 1.5 * (number - (len(names) - 1) / 2) for result in mine]
        errors = [[gain.value - gain.low for gain in gains], [gain.high - gain.value for gain in gains]]
        look = {"label": METHODS[name].title, "capsize": 2, "ls": "", "ms": 4, **LOOKS[name]}
        axes.errorbar(places, [gain.value for gain in gains], yerr=errors, **look)
    axes.axhline(0, color="0.5", lw=0.8, ls="--")
    axes.set_ylabel("gain, nats per token, 95% interval")
