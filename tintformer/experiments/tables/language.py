"""What language modelling shows: perplexity by method and share, and what each method gained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from tintformer.analysis.intervals import bootstrap, standard_error
from tintformer.experiments.language import LanguageModelling, LanguageResult, open_language
from tintformer.experiments.methods import METHODS
from tintformer.experiments.models import short_name
from tintformer.experiments.tables.table import OPTIMISTIC, Table, of_models

Done = Sequence[tuple[LanguageModelling, Sequence[LanguageResult]]]
"""Experiments with their results, one a model."""
TRUTH = "fine-tuning"
"""The method whose gain the others are measured by."""


def language_tables(done: Done) -> list[Table]:
    """Perplexity in the shape of the paper's table, then everything that is known about each entry."""
    return [_by_share(done), _details(done)]


def _by_share(done: Done) -> Table:
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


def _texts(done: Done) -> str:
    """What was scored, for each model where they differ, and whether their tokens can be compared."""
    blocks: dict[str, list[str]] = {}
    for experiment, _ in done:
        opened = open_language(experiment)
        said = f"{len(opened.scored)} blocks of {opened.length} tokens (seed {experiment.seed})"
        blocks.setdefault(said, []).append(short_name(experiment.model))
    said = "; ".join(said if len(blocks) == 1 else f"{', '.join(models)}: {said}" for said, models in blocks.items())
    tokenizers = {open_language(experiment).identity["tokenizer"] for experiment, _ in done}
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


def _details(done: Done) -> Table:
    note = (
        "Gain: nats per token below the model as it is, on the same blocks. Share of fine-tuning: of what fine-tuning "
        "of all block weights gains at its own rate. Intervals: 95%, bootstrap over blocks. n: blocks."
    )
    rows = [
        {"model": short_name(experiment.model)} | _detail(result, results)
        for experiment, results in done
        for result in results
    ]
    return of_models("Language modelling", "details", note, rows)


def _detail(result: LanguageResult, results: Sequence[LanguageResult]) -> dict[str, str]:
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
