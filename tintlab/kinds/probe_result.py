"""What a probe has found: shifts of every set of contexts beside its control; rows, tables, a CSV and a figure.

The figure of a probe: shifts by reading and by learning rate, and the first label by demonstrations.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tintformer.storage.foreign_markup import to_csv, to_label
from tintformer.study.frames import as_frame
from tintlab.data.models import short_name
from tintlab.kinds.sweep_result import write_result
from tintlab.show.figures import COLOURS, MARKERS
from tintlab.show.intervals import Estimate, crossed_bootstrap
from tintlab.show.plot_style import STYLE, import_matplotlib
from tintlab.show.tables import ResultTable

After = Literal["learning", "reading", "both"]
"""What was done with a context: its update is in the weights, it stands before the prompt, or both."""
TEXT, MOVED, PRIOR = "text_loss", "labels_moved", "first_label"
SAME, OTHER = "first_label_same", "first_label_other"
TITLES = {
    TEXT: "loss of unrelated texts",
    MOVED: "probability moved between the labels of unrelated questions",
    PRIOR: "probability of the first label of unrelated questions",
    SAME: "probability of the first label by demonstrations, questions with their labels",
    OTHER: "probability of the first label by demonstrations, questions with other labels",
}
"""What each measure is the change of; of the labels' distribution before and after, MOVED is the total variation."""
OWN_TEXT = " Own text: what learning does to the loss of the context itself; where that is 0, no shift says nothing."


@dataclass(frozen=True, kw_only=True)
class Shift:
    """How far something has moved from where the model as it is has it, and how much further than by the control."""

    value: Estimate
    """How far, with its interval."""
    over_control: Estimate | None
    """The difference from the control set, after the same; None for the control itself, and where it diverged."""

    @property
    def differs(self) -> bool:
        """Whether the interval of the difference excludes 0."""
        return self.over_control is not None and not self.over_control.low <= 0 <= self.over_control.high

    @classmethod
    def of(cls, table: Sequence[Sequence[float]], control: Sequence[Sequence[float]] | None) -> Shift:
        """From the change of every context (rows) on every prompt (columns), and that of the control's contexts.

        Args:
            table: The changes.
            control: Those of the control; None where there is none to compare with.
        """
        return cls(
            value=crossed_bootstrap(table),
            over_control=None if control is None else crossed_bootstrap(table, control),
        )


@dataclass(frozen=True, kw_only=True)
class ProbeRow:
    """One set of contexts after learning, reading or both."""

    contexts: str
    """The set."""
    num_contexts: int
    """How many are in it."""
    after: After
    """What was done with them."""
    rule: str | None
    """What the rule is called; None where nothing was learnt."""
    learning_rate: float | None
    """Of the rule."""
    layers: int | None
    """Of the top blocks that learnt; None: all."""
    steps: int | None
    """Gradient steps inside the pass."""
    num_diverged: int
    """Contexts by which learning diverged; with any, there are no shifts."""
    context_change: float | None
    """Of the loss on what was learnt from, in nats per token: how much of the context the update holds."""
    shifts: Mapping[str, Shift]
    """By measure: those that the prompts allow."""

    def record(self) -> dict[str, Any]:
        """As plain values, every interval in columns of its own."""
        plain = {name: value for name, value in self.__dict__.items() if name != "shifts"}
        for name, shift in self.shifts.items():
            for suffix, estimate in (("", shift.value), ("_over_control", shift.over_control)):
                for end in ("value", "low", "high"):
                    key = f"{name}{suffix}" + ("" if end == "value" else f"_{end}")
                    plain[key] = None if estimate is None else getattr(estimate, end)
        return plain


@dataclass(frozen=True, eq=False, kw_only=True)
class ProbeResult:
    """What contexts do to a model on prompts that have nothing to do with them."""

    model: str
    """Its name."""
    context_tokens: int
    """Tokens of every context: all are cut to one length, so that they differ in content alone."""
    num_texts: int
    """Prompts whose loss is taken."""
    num_questions: int
    """Prompts with labels."""
    num_same_labels: int = 0
    """Of them, those with the labels of the demonstrations."""
    control: str
    """The set that others are compared with."""
    balanced: str | None
    """The set of demonstrations that others are compared with; None without demonstrations."""
    rows: tuple[ProbeRow, ...]
    """By sets of contexts."""
    demonstrations: tuple[ProbeRow, ...] = ()
    """By sets of demonstrations, of which only labels are learnt."""

    def records(self) -> list[dict[str, Any]]:
        """All rows as plain values, with the same keys."""
        found = [row.record() for row in (*self.rows, *self.demonstrations)]
        keys = dict.fromkeys(key for record in found for key in record)
        return [{key: record.get(key) for key in keys} for record in found]

    def frame(self) -> Any:
        """A pandas DataFrame where pandas is installed, otherwise a list of dicts."""
        return as_frame(self.records())

    def csv(self) -> str:
        """The rows, with all digits, for programs."""
        text, records = io.StringIO(), self.records()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(records[0])
        # Sets and rules may have any names; numbers stay numbers.
        writer.writerows([to_csv(each) if isinstance(each, str) else each for each in row.values()] for row in records)
        return text.getvalue()

    def save_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the rows, with all digits.

        Args:
            path: The file.
        """
        return write_result(Path(path), self.csv().encode())

    def tables(self) -> dict[str, ResultTable]:
        """For people, by measure: those that there are prompts and contexts for."""
        parts = {TEXT: self.rows, MOVED: self.rows, PRIOR: self.rows}
        parts |= {SAME: self.demonstrations, OTHER: self.demonstrations}
        return {
            name: self._table(name, rows) for name, rows in parts.items() if any(name in row.shifts for row in rows)
        }

    def _table(self, name: str, rows: Sequence[ProbeRow]) -> ResultTable:
        learnt = [row for row in rows if row.rule is not None]
        varied = {knob for knob in ("rule", "layers", "steps") if len({getattr(row, knob) for row in learnt}) > 1}
        return ResultTable(
            title=f"{short_name(self.model)}: {TITLES[name]}",
            note=self._note(name, rows),
            rows=tuple(_shown(row, name, varied) for row in rows),
        )

    def _note(self, name: str, rows: Sequence[ProbeRow]) -> str:
        """What was measured on what, in a paragraph."""
        counts = {row.contexts: row.num_contexts for row in rows}
        sizes = ", ".join(f"{contexts} ({count})" for contexts, count in counts.items())
        by_demonstrations = name in (SAME, OTHER)
        control = self.balanced if by_demonstrations else self.control
        form = "of which the labels alone are learnt" if by_demonstrations else f"of {self.context_tokens} tokens each"
        prompts = f"{self.num_prompts(name)} {'texts' if name == TEXT else 'questions'}"
        unit = "nats per token" if name == TEXT else "percentage points"
        return (
            f"Contexts {form}: {sizes}; {prompts}. Shifts from the model as it is, in {unit}, with 95% intervals over "
            f"contexts and prompts; beside them the difference from {control} after the same, * where its interval "
            f"excludes 0.{OWN_TEXT if name == TEXT else ''}"
        )

    def num_prompts(self, measure: str) -> int:
        """How many prompts a measure is taken on.

        Args:
            measure: Its name, a key of `tables`.
        """
        same = self.num_same_labels
        return {TEXT: self.num_texts, SAME: same, OTHER: self.num_questions - same}.get(measure, self.num_questions)

    def png(self) -> bytes:
        """The figure as bytes: shifts by rate, and the first label by demonstrations."""

        return draw(self)

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the shifts by rate, and the first label by demonstrations, into a PNG.

        Args:
            path: The file.
        """
        return write_result(Path(path), self.png())

    def __repr__(self) -> str:
        parts: list[str] = []
        for table in self.tables().values():
            lines = [[*table.headings], *([*row.values()] for row in table.rows)]
            widths = [max(len(line[at]) for line in lines) for at in range(len(table.headings))]
            parts += [table.title, table.note]
            parts += ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines] + [""]
        return "\n".join(parts).rstrip()

    def _repr_html_(self) -> str | None:
        frame = self.frame()
        return frame.to_html(index=False) if hasattr(frame, "to_html") else None


def _shown(row: ProbeRow, measure: str, varied: set[str]) -> dict[str, str]:
    """A row for people; knobs that are the same everywhere are left out."""
    layers = "all" if row.layers is None else str(row.layers)
    knobs = {"rule": row.rule or "", "layers": layers, "steps": str(row.steps)}
    cells = {
        "contexts": row.contexts,
        "after": row.after,
        "rate": "" if row.learning_rate is None else f"{row.learning_rate:.3g}",
        **{name: value if row.rule else "" for name, value in knobs.items() if name in varied},
    }
    shift = row.shifts.get(measure)
    over = None if shift is None else shift.over_control
    mark = " *" if shift is not None and shift.differs else ""
    cells["shift"] = f"diverged ({row.num_diverged})" if shift is None else _interval(shift.value, measure)
    cells["over control"] = "" if over is None else _interval(over, measure) + mark
    if measure == TEXT:
        cells["own text"] = "" if row.context_change is None else f"{row.context_change:+.2f}"
    return cells


def _interval(estimate: Estimate, measure: str) -> str:
    if measure == TEXT:
        return f"{estimate:+.3f}"
    value, low, high = (100 * number for number in (estimate.value, estimate.low, estimate.high))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


LABELS = {TEXT: "nats per token", MOVED: "probability moved between labels", SAME: "change of the first label"}


def draw(result: ProbeResult) -> bytes:
    """A PNG with a panel for each measure that there is."""
    matplotlib = import_matplotlib("figures of a probe")
    from matplotlib.figure import Figure

    panels = [name for name in (TEXT, MOVED) if any(name in row.shifts for row in result.rows)]
    panels += [SAME for row in result.demonstrations[:1] if SAME in row.shifts]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.7 * len(panels), 3.4), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            axes.axhline(0, color="0.6", lw=0.6)
            if name == SAME:
                _by_demonstrations(axes, result.demonstrations)
            else:
                _by_rate(axes, result.rows, name)
            axes.set_ylabel(LABELS[name])
            axes.legend(fontsize=6.5)
        figure.suptitle(to_label(f"{short_name(result.model)}: shift on unrelated prompts"), fontsize=9)
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return png.getvalue()


def _by_rate(axes: Any, rows: Sequence[ProbeRow], name: str) -> None:
    """What reading does, then what learning does by the rates of the first rule, layers and steps."""
    learnt = [row for row in rows if row.after == "learning"]
    knobs = next((row.rule, row.layers, row.steps) for row in learnt)
    rates = sorted({row.learning_rate or 0.0 for row in learnt})
    for number, contexts in enumerate(dict.fromkeys(row.contexts for row in rows)):
        own = [row for row in rows if row.contexts == contexts and name in row.shifts]
        read = [row for row in own if row.after == "reading"]
        shown = [row for row in own if row.after == "learning" and (row.rule, row.layers, row.steps) == knobs]
        # Side by side: intervals at one place would hide each other.
        places = [1 + rates.index(row.learning_rate or 0.0) + 0.08 * number for row in shown]
        _draw_line(axes, places, shown, name, number, label=to_label(contexts))
        _draw_line(axes, [0.08 * number for _ in read], read, name, number)
    axes.set_xticks(range(len(rates) + 1), ["reading", *(f"{rate:.2g}" for rate in rates)])
    axes.set_xlabel("reading, and learning by rate")


def _by_demonstrations(axes: Any, rows: Sequence[ProbeRow]) -> None:
    """The first label of questions with the demonstrations' labels, a line for reading and each way of learning."""
    sets = list(dict.fromkeys(row.contexts for row in rows))
    ways = dict.fromkeys((row.after, row.learning_rate) for row in rows if row.after != "both")
    knobs = next(((row.rule, row.layers, row.steps) for row in rows if row.rule is not None), None)
    for number, (after, rate) in enumerate(ways):
        shown = [
            row
            for row in rows
            if (row.after, row.learning_rate) == (after, rate)
            and SAME in row.shifts
            and (row.rule is None or (row.rule, row.layers, row.steps) == knobs)
        ]
        label = after if rate is None else f"{after}, {rate:.2g}"
        places = [sets.index(row.contexts) + 0.05 * number for row in shown]
        _draw_line(axes, places, shown, SAME, number, label=label, ls="--" if after == "reading" else "-")
    axes.set_xticks(range(len(sets)), [name.partition(" ")[0] for name in sets])
    axes.set_xlabel(to_label(f"demonstrations with the first label, {sets[0].partition(' ')[2]}"))


def _draw_line(
    axes: Any, places: Sequence[float], rows: Sequence[ProbeRow], name: str, number: int, **look: Any
) -> None:
    """Shifts with their intervals."""
    values = [row.shifts[name].value for row in rows]
    # Of equal values an interval may end a rounding error short of their mean.
    below = [max(0.0, each.value - each.low) for each in values]
    above = [max(0.0, each.high - each.value) for each in values]
    look |= {"color": _colour(number), "marker": MARKERS[number % len(MARKERS)]}
    axes.errorbar(places, [each.value for each in values], [below, above], ms=3.5, lw=1.1, elinewidth=0.7, **look)


def _colour(number: int) -> str:
    return list(COLOURS.values())[number % len(COLOURS)]
