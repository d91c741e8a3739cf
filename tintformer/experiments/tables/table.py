"""Tables: rows of text, written as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OPTIMISTIC = (
    "Learning rates: the best of the grid on the {} themselves, as the authors chose theirs. OPTIMISTIC: what is "
    "reported is what was chosen, so every gain holds some of the luck of its rate."
)
_LATEX = str.maketrans({char: f"\\{char}" for char in "&%$#_{}"} | {"±": "$\\pm$", "\\": "/"})


@dataclass(frozen=True, kw_only=True)
class Table:
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
        table = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
        return f"**{self.title}**\n\n{self.note}\n\n{table}\n"

    def latex(self) -> str:
        """For papers; needs the package booktabs."""
        columns = "l" + "r" * (len(self.headings) - 1)
        head, *body = (" & ".join(cell.translate(_LATEX) for cell in line) + r" \\" for line in self._lines())
        parts = [
            f"% {self.note}".replace("\n", "\n% "),
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
        csv.writer(text, lineterminator="\n").writerows(self._lines())
        return text.getvalue()

    def _lines(self) -> list[list[str]]:
        return [self.headings, *(list(row.values()) for row in self.rows)]


def of_models(what: str, shown: str, note: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """Rows that name their model; a single one is named by the title instead.

    Cells that a row lacks are empty, so that rows of different experiments make one table.
    """
    models = list(dict.fromkeys(row["model"] for row in rows))
    headings = [
        name for name in dict.fromkeys(key for row in rows for key in row) if name != "model" or len(models) > 1
    ]
    title = f"{what}: {shown}" if len(models) > 1 else f"{what}, {models[0]}: {shown}"
    return Table(title=title, note=note, rows=tuple({name: row.get(name, "") for name in headings} for row in rows))
