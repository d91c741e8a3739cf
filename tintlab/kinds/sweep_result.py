"""What a sweep has found: rows, the best of them, a table, a DataFrame, a CSV and a plot."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tintformer.errors import TintError
from tintformer.learning.rate_search import CLEARLY_WORSE
from tintformer.storage.foreign_markup import to_csv, to_label
from tintformer.storage.whole_files import whole_file
from tintformer.study.frames import as_frame
from tintlab.data.models import short_name
from tintlab.show.figures import COLOURS, MARKERS
from tintlab.show.plot_style import STYLE, import_matplotlib
from tintlab.show.tables import ResultTable


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One combination."""

    rule: str
    """What the rule is called."""
    learning_rate: float
    """The rate."""
    layers: int | None
    """Of the top blocks that learnt; None: all."""
    steps: int
    """Gradient steps inside the pass."""
    loss: float
    """Mean over the evaluated tokens after learning, in nats; infinite if the rate diverged."""
    change: float
    """Of the loss, by learning: negative where it helped."""
    standard_error: float | None
    """Of the change, over tokens; None for a single one and for what diverged."""

    @property
    def perplexity(self) -> float:
        """Of the evaluated tokens after learning."""
        return _perplexity(self.loss)


COLUMNS = ("rule", "learning_rate", "layers", "steps", "loss", "perplexity", "change", "standard_error")


@dataclass(frozen=True, eq=False, kw_only=True)
class SweepResult:
    """All combinations of a sweep on one text."""

    model: str
    """Its name."""
    train_tokens: int
    """How many tokens of the text trained."""
    token_loss_before: tuple[float, ...]
    """Of every evaluated token by the model as it is, in nats."""
    rows: tuple[SweepRow, ...]
    """In the order of rules, rates, layers and steps."""

    @property
    def evaluation_tokens(self) -> int:
        """How many tokens were scored."""
        return len(self.token_loss_before)

    @property
    def loss_before(self) -> float:
        """Mean over the evaluated tokens by the model as it is, in nats."""
        return math.fsum(self.token_loss_before) / len(self.token_loss_before)

    @property
    def perplexity_before(self) -> float:
        """Of the evaluated tokens, by the model as it is."""
        return _perplexity(self.loss_before)

    @property
    def best(self) -> SweepRow:
        """The combination with the lowest loss."""
        return min(self.rows, key=lambda row: row.loss)

    def best_by_rule(self) -> dict[str, SweepRow]:
        """The combination with the lowest loss of each rule."""
        names = dict.fromkeys(row.rule for row in self.rows)
        return {name: min((row for row in self.rows if row.rule == name), key=lambda row: row.loss) for name in names}

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        return [{name: (asdict(row) | {"perplexity": row.perplexity})[name] for name in COLUMNS} for row in self.rows]

    def frame(self) -> Any:
        """A pandas DataFrame where pandas is installed, otherwise a list of dicts."""
        return as_frame(self.records())

    def table(self) -> ResultTable:
        """For people; the best combination of each rule is marked."""
        best = self.best_by_rule()
        return ResultTable(
            title=f"{self.model}: loss on {self.evaluation_tokens} tokens after learning from {self.train_tokens}",
            note=f"The model as it is: {self.loss_before:.4f} nats per token, perplexity {self.perplexity_before:.2f}.",
            rows=tuple(_shown(row, marked=row is best[row.rule]) for row in self.rows),
        )

    def save_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the rows, with all digits.

        Args:
            path: The file.
        """
        return write_result(Path(path), self.csv().encode())

    def csv(self) -> str:
        """The rows, with all digits, for programs; all layers and an unknown error are empty cells."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        # A rule may have any name; numbers stay numbers.
        writer.writerows([to_csv(row["rule"]), *(row[name] for name in COLUMNS[1:])] for row in self.records())
        return text.getvalue()

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the loss by learning rate, a line for each rule, layers and steps, into a PNG.

        Args:
            path: The file.
        """
        return write_result(Path(path), self.png())

    def png(self) -> bytes:
        """The same as bytes."""
        matplotlib = import_matplotlib("plots of a sweep")
        from matplotlib.figure import Figure

        lines: dict[str, list[SweepRow]] = {}
        for row in self.rows:
            lines.setdefault(self._label(row), []).append(row)
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(6.4, 4.0), layout="constrained")
            axes = figure.subplots()
            axes.axhline(self.loss_before, color="0.5", lw=0.8, ls="--", label="the model as it is")
            colours = list(COLOURS.values())
            for number, (label, rows) in enumerate(lines.items()):
                kept = sorted((row for row in rows if math.isfinite(row.loss)), key=lambda row: row.learning_rate)
                look: dict[str, Any] = {
                    "color": colours[number % len(colours)],
                    "marker": MARKERS[number % len(MARKERS)],
                }
                places = [row.learning_rate for row in kept]
                axes.plot(places, [row.loss for row in kept], label=to_label(label), lw=1.3, ms=4, **look)
            # What is far above the untrained loss would flatten all the rest: lines lead up there, and out.
            near = [row.loss for row in self.rows if row.loss < self.loss_before + CLEARLY_WORSE]
            lowest, highest = min(near, default=self.loss_before), max([*near, self.loss_before])
            margin = 0.1 * (highest - lowest) or 0.1
            axes.set_ylim(min(lowest, self.loss_before) - margin, highest + margin)
            axes.set(xscale="log", xlabel="learning rate", ylabel="nats per token, evaluation part")
            axes.set_title(to_label(f"{short_name(self.model)}, {self.train_tokens} tokens trained on"), fontsize=9)
            axes.legend(fontsize=7)
            png = io.BytesIO()
            figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
        return png.getvalue()

    def _label(self, row: SweepRow) -> str:
        """The rule, and whatever else differs between rows."""
        parts = [row.rule]
        if len({each.layers for each in self.rows}) > 1:
            parts.append("all layers" if row.layers is None else f"top {row.layers}")
        if len({each.steps for each in self.rows}) > 1:
            parts.append("1 step" if row.steps == 1 else f"{row.steps} steps")
        return ", ".join(parts)

    def __repr__(self) -> str:
        table = self.table()
        lines = [[*table.headings], *([*row.values()] for row in table.rows)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(table.headings))]
        body = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([table.title, table.note, *body])

    def _repr_html_(self) -> str | None:
        frame = self.frame()
        return frame.to_html(index=False) if hasattr(frame, "to_html") else None


def _shown(row: SweepRow, *, marked: bool) -> Mapping[str, str]:
    diverged = math.isinf(row.loss)
    error = "" if row.standard_error is None else f" ± {row.standard_error:.4f}"
    return {
        "rule": row.rule,
        "rate": f"{row.learning_rate:g}",
        "layers": "all" if row.layers is None else str(row.layers),
        "steps": str(row.steps),
        "loss": "diverged" if diverged else f"{row.loss:.4f}",
        "perplexity": "" if diverged else f"{row.perplexity:.2f}",
        "change": "" if diverged else f"{row.change:+.4f}{error}",
        "": "best" if marked and not diverged else "",
    }


def write_result(path: Path, content: bytes) -> Path:
    """Write a file that a result was asked for; what goes wrong is told in one line."""
    try:
        with whole_file(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise TintError(f"cannot write {path}: {error.strerror or error}; choose another place") from error
    return path


def _perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf
