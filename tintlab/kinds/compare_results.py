"""What a comparison of reading and learning has found: its sentences, tables and figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tintformer.storage.foreign_markup import to_label
from tintlab.data.models import short_name
from tintlab.kinds.compare_measures import (
    MEASURES,
    PREDICTIONS,
    SHARE,
    SIMILARITIES,
    SIZES,
    compare_estimates,
)
from tintlab.kinds.comparison import ComparedCase, Comparison
from tintlab.methods.methods import METHODS
from tintlab.show.figures import png_of, rate_curves
from tintlab.show.intervals import Estimate
from tintlab.show.tables import ResultTable, of_models

ComparisonResults = Sequence[tuple[Comparison, Sequence[ComparedCase]]]
"""Experiments with their results, one a model and task."""
CASES = ("the model", "shuffled labels", "untrained model")
"""What stands side by side, as tables call it."""


def comparison_tables(done: ComparisonResults) -> list[ResultTable]:
    """All measures beside the controls with the most demonstrations, then with every number of them, then by block.

    Of several models or tasks, first what matters most in one line each.
    """
    what, note = "Reading against learning", _note(done)
    overview = [
        of_models(what, "overview", _overview_note(), list(_overview_rows(done))),
        of_models(what, "likeness over tasks", _likeness_note(), list(_likeness_rows(done))),
    ]
    return [
        *(overview if len(done) > 1 else []),
        _narrow(of_models(what, "with the most demonstrations", note, list(_rows(done, most=True)))),
        of_models(what, "by demonstrations", note, list(_rows(done, most=False))),
        of_models(what, "by block", _block_note(), list(_block_rows(done))),
    ]


def _narrow(table: ResultTable) -> ResultTable:
    """The same with what is equal in all rows in the title: terminals are not wide."""
    equal = [name for name in ("task", "shots", "n") if len({row[name] for row in table.rows}) == 1]
    title = ", ".join([table.title, *(f"{name} {table.rows[0][name]}" for name in equal)])
    rows = tuple({name: cell for name, cell in row.items() if name not in equal} for row in table.rows)
    return ResultTable(title=title, note=table.note, rows=rows)


def _note(done: ComparisonResults) -> str:
    experiment = done[0][0]
    blocks = "all" if experiment.layers is None else f"the top {experiment.layers}"
    steps = "1 step" if experiment.steps == 1 else f"{experiment.steps} steps"
    return (
        f"The same demonstrations read in the context, or learnt from one by one ({experiment.loss} loss, {steps}, "
        f"{blocks} blocks) and left out of it. Measures are means over test inputs, and over blocks where they are of "
        "blocks; docs/compare.md defines each. Intervals: 95%, bootstrap over test inputs and seeds. n: test inputs x "
        "seeds. Controls: the same with shuffled labels, and an untrained model of the same shape. Last column: the "
        f"model against the untrained one, by intervals that do not touch. {_how_rates_were_chosen(experiment)}"
    )


def _how_rates_were_chosen(experiment: Comparison) -> str:
    if experiment.rates is not None and experiment.has_one_rate:
        return f"Learning rate {experiment.rates[0]:g}, as given."
    grid = "a grid that finds its own range" if experiment.rates is None else "the given grid"
    return (
        f"Learning rates: the best of {grid} by label cross-entropy on {experiment.tuning} other examples a seed, for "
        "the model, for the untrained one, and for each number of demonstrations."
    )


def compared_groups(done: ComparisonResults) -> Iterator[tuple[Comparison, str, int, dict[str, ComparedCase]]]:
    """What stands side by side: the cases of one model, task, method and number of demonstrations."""
    for experiment, results in done:
        for method in dict.fromkeys(result.method for result in results):
            for shots in sorted({result.shots for result in results}):
                mine = [result for result in results if (result.method, result.shots) == (method, shots)]
                yield experiment, method, shots, {result.case: result for result in mine}


def with_most(done: ComparisonResults) -> Iterator[tuple[Comparison, str, int, dict[str, ComparedCase]]]:
    """Of these, the ones with the most demonstrations."""
    return (each for each in compared_groups(done) if each[2] == max(each[0].shots))


def _rows(done: ComparisonResults, *, most: bool) -> Iterator[dict[str, str]]:
    several = len({result.method for _, results in done for result in results}) > 1
    for experiment, method, shots, cases in with_most(done) if most else compared_groups(done):
        model, untrained = cases["the model"], cases.get("untrained model")
        where = {"model": short_name(experiment.model), "task": task_name(experiment)}
        where |= {"method": METHODS[method].title} if several else {}
        where |= {"shots": str(shots), "n": f"{model.inputs} x {model.seeds}"}
        for name, title in MEASURES.items():
            if name not in model.measures:
                continue
            cells = {case: _shown(name, result.measures[name]) for case, result in cases.items()}
            if untrained is not None:
                cells["against it"] = compare_estimates(model.measures[name], untrained.measures[name])
            yield where | {"measure": title} | cells
        facts = {
            "learning rate": {case: f"{result.rate:.3g}" for case, result in cases.items()},
            "demonstrations, on average": {case: f"{result.demonstrations:.1f}" for case, result in cases.items()},
            "inputs left out, too long": {case: str(result.left_out) for case, result in cases.items()},
        }
        for title, cells in facts.items():
            yield where | {"measure": title} | cells


def _overview_note() -> str:
    return (
        "With the most demonstrations. Accuracies, agreement and KL (in nats, over label words) are the model's own. "
        "Along learning's: the share of the change that reading makes to the stream that lies along the change by "
        "learning, with its interval, beside the controls. Directions without relation would give 1/(2 width)."
    )


def _overview_rows(done: ComparisonResults) -> Iterator[dict[str, str]]:
    """One a model, task and method."""
    several = len({result.method for _, results in done for result in results}) > 1
    for experiment, method, _, cases in with_most(done):
        model = cases["the model"]

        def shown(*names: str, of: ComparedCase = model, form: str = ".0%") -> str:
            return " / ".join(f"{of.measures[name].value:{form}}" for name in names)

        yield {
            "model": short_name(experiment.model),
            "task": task_name(experiment),
            **({"method": METHODS[method].title} if several else {}),
            "n": f"{model.inputs} x {model.seeds}",
            "demonstrations": f"{model.demonstrations:.1f}",
            "accuracy: zero-shot / reading / learning": shown("accuracy_zero", "accuracy_read", "accuracy_learnt"),
            "reading agrees with: zero-shot / learning": shown("agreement_zero", "agreement"),
            "KL of reading to: zero-shot / learning": shown("kl_zero", "kl_learnt", form=".3f"),
            "along learning's": f"{model.measures['block_share']:.1%}",
            **{case: shown("block_share", of=each, form=".1%") for case, each in cases.items() if each is not model},
        }


def _likeness_note() -> str:
    return (
        "Similarities with the most demonstrations, from the least to the greatest of the tasks. Last column: in how "
        "many tasks the model is above or below the untrained one, by intervals that do not touch."
    )


def _likeness_rows(done: ComparisonResults) -> Iterator[dict[str, str]]:
    """One a model and similarity, over its tasks and methods."""
    by_model: dict[str, list[dict[str, ComparedCase]]] = {}
    for experiment, _, _, cases in with_most(done):
        by_model.setdefault(short_name(experiment.model), []).append(cases)
    for model, groups in by_model.items():
        for name, title in (SHARE | SIMILARITIES).items():
            row = {"model": model, "measure": title}
            for case in CASES:
                values = [each[case].measures[name].value for each in groups if case in each]
                known = [value for value in values if math.isfinite(value)]
                row |= {case: f"{min(known):.3f} to {max(known):.3f}" if known else ""}
            verdicts = [
                compare_estimates(each["the model"].measures[name], each["untrained model"].measures[name])
                for each in groups
                if "untrained model" in each
            ]
            counts = f"{verdicts.count('higher')} / {verdicts.count('lower')} of {len(verdicts)}"
            yield row | {"higher / lower than untrained": counts if verdicts else ""}


def _shown(name: str, estimate: Estimate) -> str:
    if not math.isfinite(estimate.value):
        return "none"
    # Where reading changes next to nothing, a share of that is a huge number which says no more than its sign.
    if name == "kl_removed" and estimate.value < -10:
        return "below -10"
    return f"{estimate:.0%}" if name.startswith(("accuracy", "agreement", "flips")) else f"{estimate:.3f}"


def task_name(experiment: Comparison) -> str:
    """What tables call the task, and its prompt if that is not its own."""
    task = experiment.opened().task
    return task.title if task.variant is None else f"{task.title} ({task.variant})"


def _block_note() -> str:
    return (
        "Cosines of the change by reading and the change by learning at the query, and the sizes of both relative to "
        "the stream, for every block from the first, with the most demonstrations. Intervals as in the first table."
    )


def _block_rows(done: ComparisonResults) -> Iterator[dict[str, str]]:
    for experiment, method, _, cases in with_most(done):
        for case, result in cases.items():
            for number in range(len(result.blocks["block_output"])):
                yield {
                    "model": short_name(experiment.model),
                    "task": task_name(experiment),
                    "method": METHODS[method].title,
                    "case": case,
                    "block": str(number + 1),
                    **{
                        title: _shown(name, result.blocks[name][number])
                        for name, title in (SIMILARITIES | SIZES).items()
                    },
                }


def findings(done: ComparisonResults) -> list[str]:
    """How much of what reading does is what learning does, in two lines for each task, as the numbers have it."""
    lines: list[str] = []
    for experiment, method, shots, cases in with_most(done):
        model, where = cases["the model"], f"{task_name(experiment)}, {shots} demonstrations, {METHODS[method].title}"
        share, *distances = (model.measures[name] for name in ("block_share", "kl_learnt", "kl_zero"))
        controls = {case: result.measures["block_share"] for case, result in cases.items() if result is not model}
        beside = "; ".join(f"{case} {other:.1%}" for case, other in controls.items())
        lines.append(
            f"{where}: of the change that reading makes to the stream, {share:.1%} lies along the change that learning "
            f"makes{f' ({beside})' if beside else ''}; from the answers after reading, those after learning are "
            f"{distances[0]:.3f} nats away, and zero-shot ones {distances[1]:.3f}"
        )
        if (untrained := cases.get("untrained model")) is not None:
            lines.append(f"{where}: {_of_untrained(model, untrained)}")
    return lines


def _of_untrained(model: ComparedCase, untrained: ComparedCase) -> str:
    """Whether an untrained model scores comparably on similarities, as has been published."""
    verdicts: dict[str, list[str]] = {}
    for name, title in SIMILARITIES.items():
        verdict = compare_estimates(untrained.measures[name], model.measures[name])
        verdicts.setdefault(verdict, []).append(title)
    said = (f"{verdict}: {'; '.join(titles)}" for verdict, titles in verdicts.items())
    return f"cosines of an untrained model against the model's. {'. '.join(said)}"


LOOKS = {
    "the model": {"color": "#0072b2", "marker": "o"},
    "shuffled labels": {"color": "#e69f00", "marker": "s"},
    "untrained model": {"color": "#6b7280", "marker": "D"},
}
"""How figures draw each case."""
BY_BLOCK = ("attention_output", "attention_map", "block_output", "implicit_effect")
BY_SHOTS = ("change_correlation", "block_share")
"""Measures that have a panel of their own in the figures by block and by number of demonstrations."""


def comparison_figures(done: ComparisonResults) -> dict[str, bytes]:
    """PNGs by name."""
    curves = [
        (f"{_title(experiment)}, {result.shots} shots, {result.case}", result.method, result.curve)
        for experiment, results in done
        for result in results
    ]
    return {
        "tasks": _task_figure(done) if len(done) > 1 else b"",
        "blocks": _block_figure(done),
        "demonstrations": _shots_figure(done),
        "rates": rate_curves(curves, "label cross-entropy, tuning examples"),
    }


def _task_figure(done: ComparisonResults) -> bytes:
    """Cosines by block, a row of panels for each model: a line for every task, and in grey its untrained control."""
    by_model: dict[str, list[tuple[str, dict[str, ComparedCase]]]] = {}
    for experiment, method, _, cases in with_most(done):
        title = f"{task_name(experiment)}, {METHODS[method].title}"
        by_model.setdefault(short_name(experiment.model), []).append((title, cases))

    def draw(panels: Sequence[Any]) -> None:
        wanted = [(model, name) for model in by_model for name in BY_BLOCK]
        for panel, (model, name) in zip(panels, wanted, strict=True):
            for title, cases in by_model[model]:
                for case, result in cases.items():
                    values = [each.value for each in result.blocks[name]]
                    if case == "the model":
                        panel.plot(range(1, 1 + len(values)), values, label=to_label(title), lw=1.3)
                    elif case == "untrained model":
                        panel.plot(range(1, 1 + len(values)), values, color="0.7", lw=0.8, zorder=0)
            _finish_by_block(panel, name, f"{model}; grey: untrained")

    return png_of(len(BY_BLOCK) * len(by_model), draw, columns=len(BY_BLOCK))


def _block_figure(done: ComparisonResults) -> bytes:
    """Cosines by block: a row of panels for each model and task."""
    shown = list(with_most(done))

    def draw(panels: Sequence[Any]) -> None:
        wanted = [(each, name) for each in shown for name in BY_BLOCK]
        for panel, ((experiment, method, shots, cases), name) in zip(panels, wanted, strict=True):
            for case, result in cases.items():
                _band(panel, range(1, 1 + len(result.blocks[name])), result.blocks[name], case)
            _finish_by_block(panel, name, f"{_title(experiment)}, {shots} shots, {METHODS[method].title}")

    return png_of(len(BY_BLOCK) * len(shown), draw, columns=len(BY_BLOCK))


def _finish_by_block(panel: Any, name: str, title: str) -> None:
    """Axes, title and legend of a panel with the cosines of one similarity."""
    panel.axhline(0, color="0.5", lw=0.8, ls="--")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set(xlabel="block", ylabel=f"cosine of {SIMILARITIES[name]}")
    panel.set_title(to_label(title), fontsize=8)
    panel.legend(fontsize=6)


def _band(panel: Any, places: Sequence[float], estimates: Sequence[Estimate], case: str) -> None:
    look = LOOKS[case]
    panel.plot(places, [each.value for each in estimates], label=case, lw=1.3, ms=3.5, **look)
    lows, highs = [each.low for each in estimates], [each.high for each in estimates]
    panel.fill_between(places, lows, highs, color=look["color"], alpha=0.15, lw=0)


def _shots_figure(done: ComparisonResults) -> bytes:
    """By the number of demonstrations: accuracies of the model, then likenesses beside the controls."""
    rows: dict[tuple[Comparison, str], list[dict[str, ComparedCase]]] = {}
    for experiment, method, _, cases in compared_groups(done):
        if len(set(experiment.shots)) > 1:
            rows.setdefault((experiment, method), []).append(cases)
    columns = 1 + len(BY_SHOTS)

    def draw(panels: Sequence[Any]) -> None:
        for at, ((experiment, method), found) in enumerate(rows.items()):
            first, *others = panels[at * columns : (at + 1) * columns]
            shots = [cases["the model"].shots for cases in found]
            _accuracies(first, shots, [cases["the model"] for cases in found])
            for panel, name in zip(others, BY_SHOTS, strict=True):
                for case in found[0]:
                    _band(panel, shots, [cases[case].measures[name] for cases in found], case)
                panel.set_ylabel(MEASURES[name])
            for panel in (first, *others):
                panel.set(xlabel="demonstrations", xticks=shots)
                panel.legend(fontsize=6)
                panel.set_title(to_label(f"{_title(experiment)}, {METHODS[method].title}"), fontsize=8)

    return png_of(columns * len(rows), draw, columns=columns)


def _accuracies(panel: Any, shots: Sequence[int], results: Sequence[ComparedCase]) -> None:
    looks = {"accuracy_zero": "#6b7280", "accuracy_read": "#d55e00", "accuracy_learnt": "#0072b2"}
    for name, colour in looks.items():
        values = [result.measures[name] for result in results]
        below, above = [each.value - each.low for each in values], [each.high - each.value for each in values]
        errors = [[100 * length for length in lengths] for lengths in (below, above)]
        label = PREDICTIONS[name].removeprefix("accuracy, ")
        panel.errorbar(shots, [100 * each.value for each in values], yerr=errors, label=label, color=colour, capsize=2)
    panel.set_ylabel("accuracy, %, 95% interval")


def _title(experiment: Comparison) -> str:
    return f"{short_name(experiment.model)}, {task_name(experiment)}"
