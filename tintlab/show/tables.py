"""Results as tables, in Markdown, LaTeX and CSV; nothing here decides a number, so records outlive its changes."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tintformer.console import on_one_line
from tintformer.storage.foreign_markup import to_csv, to_latex, to_markdown

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
