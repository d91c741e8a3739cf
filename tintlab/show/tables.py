"""Results as tables, in Markdown, LaTeX and CSV; nothing here decides a number, so records outlive its changes.

Language modelling: perplexity by method and share, and what each method gained. Tables of in-context learning are in
`accuracy_tables.py`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tintformer.console import on_one_line
from tintformer.storage.foreign_markup import to_csv, to_latex, to_markdown
from tintlab.data.models import short_name
from tintlab.kinds.lm import LanguageModelling, LanguageResult, open_language
from tintlab.methods.methods import METHODS
from tintlab.show.intervals import bootstrap, standard_error

LanguageResults = Sequence[tuple[LanguageModelling, Sequence[LanguageResult]]]
"""Experiments with their results, one a model."""
TRUTH = "fine-tuning"
"""The method whose gain the others are measured by."""
OPTIMISTIC = (
    "Learning rates: the best of the grid on the {} themselves, as the authors chose theirs. OPTIMISTIC: what is "
    "reported is what was chosen, so every gain holds some of the luck of its rate."
)


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """Rows with the same keys, which are the headings."""

    title: str
    note: str
    """What was measured and how, in a paragraph."""
    rows: tuple[Mapping[str, str], ...]

    @property
    def headings(self) -> list[str]:
        return list(self.rows[0])

    def markdown(self) -> str:
        """For pages."""
        lines = [self.headings, ["---"] * len(self.headings), *(list(row.values()) for row in self.rows)]
        table = "\n".join(f"| {' | '.join(map(to_markdown, line))} |" for line in lines)
        return f"**{to_markdown(self.title)}**\n\n{to_markdown(self.note)}\n\n{table}\n"

    def latex(self) -> str:
        """For papers; needs the package booktabs."""
        columns = "l" + "r" * (len(self.headings) - 1)
        head, *body = (" & ".join(map(to_latex, line)) + r" \\" for line in self._lines())
        parts = [
            f"% {on_one_line(self.note)}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(parts) + "\n"

    def csv(self) -> str:
        """For programs."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(map(to_csv, line) for line in self._lines())
        return text.getvalue()

    def _lines(self) -> list[list[str]]:
        return [self.headings, *(list(row.values()) for row in self.rows)]


def of_models(what: str, shown: str, note: str, rows: Sequence[Mapping[str, str]]) -> ResultTable:
    """Rows that name their model; a single one is named by the title instead.

    Cells that a row lacks are empty, so that rows of different experiments make one table.
    """
    models = list(dict.fromkeys(row["model"] for row in rows))
    headings = [
        name for name in dict.fromkeys(key for row in rows for key in row) if name != "model" or len(models) > 1
    ]
    title = f"{what}: {shown}" if len(models) > 1 else f"{what}, {models[0]}: {shown}"
    return ResultTable(
        title=title, note=note, rows=tuple({name: row.get(name, "") for name in headings} for row in rows)
    )


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
