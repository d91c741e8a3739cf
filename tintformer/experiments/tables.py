"""Results as tables, in Markdown, LaTeX and CSV; nothing here decides a number, so records outlive its changes.

Language modelling: perplexity by method and share, and what each method gained. In-context learning: accuracy and label
cross-entropy by task and method, with and without calibration.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from tintformer.analysis.foreign_markup import to_csv, to_latex, to_markdown
from tintformer.analysis.intervals import bootstrap, standard_error
from tintformer.console import on_one_line
from tintformer.experiments.in_context_learning import InContextLearning, InContextResult, open_task
from tintformer.experiments.label_scoring import Answers
from tintformer.experiments.language_modelling import LanguageModelling, LanguageResult, open_language
from tintformer.experiments.methods import METHODS
from tintformer.experiments.open_models import short_name

LanguageResults = Sequence[tuple[LanguageModelling, Sequence[LanguageResult]]]
"""Experiments with their results, one a model."""
InContextResults = Sequence[tuple[InContextLearning, Sequence[InContextResult]]]
"""Experiments with their results."""
TRUTH = "fine-tuning"
"""The method whose gain the others are measured by."""
NAMES = ("model", "setting", "method", "scores")
AVERAGE = "average"
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


def in_context_tables(done: InContextResults, *, by_length: bool = False) -> list[ResultTable]:
    """Accuracy and label cross-entropy in the shape of the paper's table, then all that is known about each entry."""
    return [
        _by_task(done, by_length, "right", "accuracy"),
        _by_task(done, by_length, "cross_entropy", "label cross-entropy"),
        _in_context_details(done, by_length),
    ]


def task_title(experiment: InContextLearning) -> str:
    """What tables call the task, and its prompt if that is not its own."""
    task = open_task(experiment).task
    return task.title if task.variant is None else f"{task.title} ({task.variant})"


def budget(experiment: InContextLearning) -> str:
    """Which blocks of the model learn, in how many steps."""
    return f"{'all' if experiment.layers is None else experiment.layers} x {experiment.steps}"


def format_of(experiment: InContextLearning) -> str:
    """Shots, how they are shown, and what of them is learnt."""
    if experiment.shots == 0:
        return "zero-shot"
    text = " and test text" if experiment.test_text else ""
    return f"{experiment.shots}-shot {experiment.mode}, {experiment.loss} loss{text}"


def setting(experiment: InContextLearning) -> str:
    """What distinguishes experiments on one task."""
    chosen = ", rates from tests" if optimistic(experiment) else ""
    return f"{format_of(experiment)}, {budget(experiment)}{chosen}"


def optimistic(experiment: InContextLearning) -> bool:
    """Whether what is reported is also what rates were chosen by."""
    return experiment.chosen_on == "test" and (experiment.rates is None or len(experiment.rates) > 1)


def _setting_of(experiment: InContextLearning, result: InContextResult) -> str:
    """Of a model that does not learn, what it is shown is all that matters."""
    if METHODS[result.method].preset is not None:
        return setting(experiment)
    shown = experiment.shots > 0 and experiment.mode == "multi"
    return f"{experiment.shots} in the context" if shown else "zero-shot"


def _place(experiment: InContextLearning, result: InContextResult) -> tuple[float | str, ...]:
    """Where a row stands among those of its model."""
    method = list(METHODS).index(result.method)
    if METHODS[result.method].preset is None:
        shown = experiment.shots > 0 and experiment.mode == "multi"
        return experiment.shots if shown else 0, "", "", 0, 0, method
    layers = math.inf if experiment.layers is None else experiment.layers
    return experiment.shots, experiment.mode, experiment.loss, -layers, experiment.steps, method


def _by_task(done: InContextResults, by_length: bool, measure: str, shown: str) -> ResultTable:
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    means: dict[tuple[str, ...], dict[str, float]] = {}
    models = list(dict.fromkeys(experiment.model for experiment, _ in done))
    # Experiments of several runs come in any order; rows go from few shots to many and from all blocks to few.
    for experiment, result in sorted(
        ((experiment, result) for experiment, results in done for result in results),
        key=lambda each: (models.index(each[0].model), *_place(*each)),
    ):
        for scores in ("plain", "calibrated"):
            names = short_name(experiment.model), _setting_of(experiment, result), METHODS[result.method].title, scores
            row = rows.setdefault(names, dict(zip(NAMES, names, strict=True)))
            values = pooled(result, calibrated=scores == "calibrated", by_length=by_length, measure=measure)
            row[task_title(experiment)] = _with_error(values, measure)
            means.setdefault(names, {})[task_title(experiment)] = fmean(values)
    tasks = list(dict.fromkeys(task_title(experiment) for experiment, _ in done))
    for names, row in rows.items():
        average = _rounded(fmean(means[names].values()), measure) if set(means[names]) == set(tasks) else ""
        cells = {task: row.get(task, "") for task in tasks} | ({AVERAGE: average} if len(tasks) > 1 else {})
        rows[names] = {name: row[name] for name in NAMES} | cells
    return of_models("In-context learning", shown, _note(done, measure), list(rows.values()))


def _note(done: InContextResults, measure: str) -> str:
    what = {
        "right": "Accuracy in percent",
        "cross_entropy": "Cross-entropy of the right label among the label words, in nats (lower is better)",
    }
    note = (
        f"{what[measure]}, with the standard error over test examples (each averaged over seeds). Settings name the "
        "blocks of the model that learn and the steps. Calibrated: label words are scored against the prompt alone."
    )
    if any(optimistic(experiment) for experiment, _ in done):
        note += " " + OPTIMISTIC.format("test examples")
    return note


def _with_error(values: Sequence[float], measure: str) -> str:
    return f"{_rounded(fmean(values), measure)} ± {_rounded(standard_error(values), measure)}"


def _rounded(value: float, measure: str) -> str:
    return f"{100 * value:.1f}" if measure == "right" else f"{value:.3f}"


def pooled(result: InContextResult, *, calibrated: bool, by_length: bool, measure: str) -> list[float]:
    """One number a test example, the mean over seeds: examples are the sample, seeds repeat the measurement."""
    return [fmean(each) for each in zip(*by_seed(result.answers, calibrated, by_length, measure), strict=True)]


def by_seed(answers: Sequence[Answers], calibrated: bool, by_length: bool, measure: str) -> list[list[float]]:
    """One number a test example, for each seed."""
    values: list[list[float]] = []
    for each in answers:
        each = each.by_length() if by_length else each
        each = each.calibrated() if calibrated else each
        values.append(getattr(each, measure)())
    return values


def _in_context_details(done: InContextResults, by_length: bool) -> ResultTable:
    rows = [
        _in_context_detail(experiment, results, result, calibrated, by_length)
        for experiment, results in done
        for result in results
        for calibrated in (False, True)
    ]
    note = (
        "Differences to the model as it is, on the same test examples, with 95% intervals (bootstrap over examples). "
        "Cross-entropy: of the right label among the label words, in nats. n: test examples x seeds. Seeds: standard "
        "deviation of the accuracy over them. Tokens: of each label word. Demonstrations: learnt from or in "
        "the prompt, on average. Cut: texts that lost their end."
    )
    distinct = {tuple(row.items()): row for row in rows}  # a model that does not learn is the same in every setting
    return of_models("In-context learning", "details", note, list(distinct.values()))


def _in_context_detail(
    experiment: InContextLearning,
    results: Sequence[InContextResult],
    result: InContextResult,
    calibrated: bool,
    by_length: bool,
) -> dict[str, str]:
    plain = next((each for each in results if each.method == "auxiliary"), None)
    measures = {
        measure: pooled(result, calibrated=calibrated, by_length=by_length, measure=measure)
        for measure in ("right", "cross_entropy")
    }
    changes = {"right": "", "cross_entropy": ""}
    if plain is not None and result is not plain:
        for measure, values in measures.items():
            before = pooled(plain, calibrated=calibrated, by_length=by_length, measure=measure)
            scale = 100 if measure == "right" else 1
            found = bootstrap([[scale * value for value in values], [scale * value for value in before]])
            changes[measure] = f"{found:+.1f}" if measure == "right" else f"{found:+.3f}"
    # What neither learns nor is shown anything answers the same for every seed.
    answers: Sequence[Answers] = result.answers if experiment.depends_on_seed(result.method) else result.answers[:1]
    accuracies = [100 * fmean(right) for right in by_seed(answers, calibrated, by_length, "right")]
    return {
        "model": short_name(experiment.model),
        "task": task_title(experiment),
        "setting": _setting_of(experiment, result),
        "method": METHODS[result.method].title,
        "scores": "calibrated" if calibrated else "plain",
        "rate": ", ".join(f"{rate:.3g}" for rate in dict.fromkeys(result.rates) if rate),
        "n": f"{len(answers[0].labels)} x {len(answers)}",
        "accuracy": _with_error(measures["right"], "right"),
        "seeds": f"{stdev(accuracies):.1f}" if len(accuracies) > 1 else "",
        "change of accuracy": changes["right"],
        "cross-entropy": _with_error(measures["cross_entropy"], "cross_entropy"),
        "change of cross-entropy": changes["cross_entropy"],
        "tokens": ", ".join(map(str, answers[0].num_tokens)),
        "demonstrations": f"{fmean(each.demonstrations for each in answers):.1f}"
        if experiment.depends_on_seed(result.method)
        else "",
        "cut": str(sum(each.cut for each in answers)),
    }
