"""What a probe has found: shifts of every set of contexts beside its control; rows, tables, a CSV and a figure."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tintformer.storage.foreign_markup import to_csv
from tintformer.study.frames import as_frame
from tintlab.data.models import short_name
from tintlab.kinds.sweep_result import write_result
from tintlab.show.intervals import Estimate, crossed_bootstrap
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
        from tintlab.kinds.probe_figure import draw

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
