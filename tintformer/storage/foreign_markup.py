r"""Texts that somebody else chose, inside of Markdown, LaTeX, CSV and figures: shown, and nothing of them is obeyed.

The name of a model or the title of a task may hold `<script>`, `\input{...}`, `=HYPERLINK(...)` or half a formula.
"""

from __future__ import annotations

import re

from tintformer.console import on_one_line

_NUMBER = r"(?:[-+\d.,% ]|nan|inf)*"
_LINK = re.compile(rf"\[(?!{_NUMBER}\](?![(\[:]))")
"""An opening bracket, unless it is that of an interval, as in `0.1 [0.0, 0.2]`."""
_MARKDOWN = str.maketrans({"<": "&lt;", ">": "&gt;", "&": "&amp;"} | {char: f"\\{char}" for char in "\\`*|"})
_LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"±": "$\\pm$", "\\": "\\textbackslash{}", "^": "\\textasciicircum{}", "~": "\\textasciitilde{}"}
)
_FORMULA = re.compile(rf"[=@]|[-+](?!{_NUMBER}(?:[\[\]±]{_NUMBER})*$)")
"""How a spreadsheet knows a formula; numbers and their intervals begin with a sign too, and stay numbers."""
_LONGEST_LABEL = 120


def to_markdown(text: str) -> str:
    """For a line or a cell of a table: no HTML, no links, no code, no cell of its own."""
    return _LINK.sub(r"\\[", on_one_line(text).translate(_MARKDOWN))


def to_latex(text: str) -> str:
    """For a cell: no commands, also none by `^^5c`, and no optional argument of the row's end before it."""
    shown = on_one_line(text).translate(_LATEX)
    return f"{{{shown[0]}}}{shown[1:]}" if shown.startswith(("[", "*")) else shown


def to_csv(text: str) -> str:
    """For a cell: what a spreadsheet would compute gets the apostrophe with which it takes a cell as text."""
    shown = on_one_line(text)
    return f"'{shown}" if _FORMULA.match(shown) else shown


def to_label(text: str) -> str:
    """For a figure, where two dollars enclose a formula; what is too long to be read is cut."""
    shown = on_one_line(text)
    cut = shown if len(shown) <= _LONGEST_LABEL else f"{shown[: _LONGEST_LABEL - 3]}..."
    return cut.replace("$", r"\$")
