# pyright: basic
"""What somebody else chose is shown in Markdown, LaTeX, CSV and figures, and not obeyed."""

from __future__ import annotations

import re

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from tintformer.storage.foreign_markup import to_csv, to_label, to_latex, to_markdown

OURS = (
    "0.1234 [-0.1, 0.2]",
    "+1.2 [-0.3, +2.1]",
    "-50% [-60%, nan]",
    "-inf",
    "+nan",
    "1 ± 0.4",
    "opt-125m",
    "a_b (c)",
)


def test_markdown() -> None:
    assert to_markdown("<script>alert(1)</script>&") == "&lt;script&gt;alert(1)&lt;/script&gt;&amp;"
    assert to_markdown("[x](http://y) ![z](w) [a][b] [c]: d [1](http://y)") == (
        r"\[x](http://y) !\[z](w) \[a]\[b] \[c]: d \[1](http://y)"
    )
    assert to_markdown("a|b\n# c `d` *e* \\") == r"a\|b\\n# c \`d\` \*e\* \\"
    assert all(to_markdown(text) == text for text in OURS)


@pytest.mark.parametrize(
    "text",
    [
        r"\input{/etc/passwd}",
        r"\write18{rm -rf x}",
        "^^5cinput{x}",
        "a & b % c $d$ #1 x_y ~ {",
        "}\\end{tabular}",
        "a\n\\input x",
        "a\r\\input x",
    ],
)
def test_latex_has_no_commands_but_ours(text: str) -> None:
    shown = to_latex(text)
    ours = r"\\textbackslash\{\}|\\textasciicircum\{\}|\\textasciitilde\{\}|\\[&%$#_{}]"
    left = re.sub(ours, "", shown)
    assert not set("\\&%$#_{}^~\n\r") & set(left)


def test_latex_of_our_own() -> None:
    assert to_latex("50% ± 1") == r"50\% $\pm$ 1"
    assert to_latex("[1]") == "{[}1]" and to_latex("*") == "{*}"  # they would belong to the end of the row before


@pytest.mark.parametrize("text", ["=1+1", '=HYPERLINK("http://x")', "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+A1", "\t=1"])
def test_csv_has_no_formulas(text: str) -> None:
    assert to_csv(text)[0] in "'\\"


def test_csv_of_our_own() -> None:
    assert all(to_csv(text) == text for text in OURS)


@pytest.mark.parametrize("text", ["$", "$x$", r"$\frac{1$", r"\$a$b$", "a\x1b$\n$", "\ud800", "x" * 10_000, "$" * 9])
def test_figures_show_dollars(text: str) -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.set(title=to_label(text), xscale="log", xlim=(1e-3, 1))
    figure.canvas.draw()  # a formula that is none raises an error here
    shown, is_formula = vars(Text)["_preprocess_math"](axes.title, to_label(text))
    assert not is_formula
    assert len(text) > 100 or shown == text.replace("\x1b", r"\x1b").replace("\n", r"\n").replace("\ud800", r"\ud800")
