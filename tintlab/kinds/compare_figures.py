"""Results of comparisons as figures; nothing here decides a number, so records outlive it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tintformer.storage.foreign_markup import to_label
from tintlab.data.models import short_name
from tintlab.kinds.compare_measures import MEASURES, PREDICTIONS, SIMILARITIES
from tintlab.kinds.compare_tables import ComparisonResults, compared_groups, task_name, with_most
from tintlab.kinds.comparison import ComparedCase, Comparison
from tintlab.methods.methods import METHODS
from tintlab.show.figures import png_of, rate_curves
from tintlab.show.intervals import Estimate

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
