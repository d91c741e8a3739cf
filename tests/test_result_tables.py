# pyright: basic
"""Every published table of results is what its rows make, and the rows are what the units make."""

from __future__ import annotations

import json
import math
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "docs" / "tools"))
tables: Any = import_module("result_tables")
computed: Any = import_module("result_estimates")

PAGES = tables.pages()
QUICK = ("constructions", "network-sizes", "other-losses", "softmax-form", "speed")
"""Files of units whose estimates take no time; the others are computed again by the sweep."""


def names(page: Path) -> str:
    return str(page.relative_to(tables.DOCS))


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_tables_are_what_their_rows_make(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert tables.remade(text) == text, "write the tables by `make tables`"


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_a_table_of_results_has_rows(page: Path) -> None:
    others = tables.declared()["others"].get(names(page), {})
    assert all(others.values()), "a table without rows states its reason"
    assert sorted(tables.unmarked(page.read_text(encoding="utf-8"))) == sorted(others)


def test_pages_that_have_no_marks_are_looked_at_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results").mkdir()
    page = tmp_path / "results" / "new.md"
    page.write_text("# New\n\n| method | gain |\n| --- | --- |\n| TinT | 1 |\n\n```\n| no table |\n```\n")
    monkeypatch.setattr(tables, "DOCS", tmp_path)
    monkeypatch.setattr(tables, "DATA", tmp_path / "results" / "data")
    assert tables.pages() == [page]
    assert tables.unmarked(page.read_text()) == ["| method | gain |"]


def test_a_number_that_has_no_row_is_noticed() -> None:
    text = (tables.DOCS / "results" / "other-losses.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\| nano-gpt2 \| TinT \| .*\n", text, flags=re.MULTILINE)
    changed = text.replace(line, line.replace("0.2480", "0.2481"))
    assert changed != text and tables.remade(changed) == text


def test_every_row_is_on_a_page() -> None:
    marked = {f"{mark['file']}#{mark['table']}" for page in PAGES for mark in tables.MARKED.finditer(page.read_text())}
    files = {path.name for path in tables.DATA.glob("*.csv")}
    assert marked == {f"{file}#{row['table']}" for file in files for row in tables.read_rows(file)}
    assert marked == set(tables.declared()["tables"])


@pytest.mark.parametrize("table", tables.declared()["tables"])
def test_every_metric_of_a_table_is_shown(table: str) -> None:
    """A pattern with a misspelt name would leave its cells empty."""
    file, name = table.split("#")
    rows, columns = [row for row in tables.read_rows(file) if row["table"] == name], tables.declared()["tables"][table]
    whole = tables.render(columns, rows)
    for metric in {row["metric"] for row in rows}:
        assert tables.render(columns, [row for row in rows if row["metric"] != metric]) != whole, metric


def test_every_row_says_where_it_comes_from() -> None:
    for path in tables.DATA.glob("*.csv"):
        for status in {row["status"] for row in tables.read_rows(path.name)}:
            units = re.fullmatch(r"computed from (units/[\w-]+\.csv)", status)
            assert re.fullmatch(r"as published at [0-9a-f]{7}", status) or (
                units and (tables.DATA / units[1]).is_file()
            )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.sweep) for name in computed.STUDIES]
)
def test_estimates_are_what_the_units_make(name: str) -> None:
    written = [row for row in tables.read_rows(f"{name}.csv") if row["status"].startswith("computed")]
    found = computed.estimates(name)
    assert len(found) == len(written) > 0
    for row, again in zip(written, found, strict=True):
        for column, text in row.items():
            if column not in tables.NUMBERS or not text:
                assert text == again.get(column, "")
            else:  # sums come in another order elsewhere, and so small an error is one of rounding
                assert math.isclose(float(text), float(again[column]), rel_tol=1e-6, abs_tol=1e-9), (row, again)


def shown(table: str, pattern: str, **labels: str) -> str:
    """A pattern of cells filled from the one line of a table that has these labels."""
    file, name = table.split("#")
    rows = [row for row in tables.read_rows(file) if row["table"] == name]
    line = {row["metric"]: tables.estimate(row) for row in rows if labels.items() <= row.items()}
    return pattern.format_map(line)


def test_the_readme_says_what_the_rows_say() -> None:
    found: list[str] = []
    for text, said in (("WikiText-103", "WikiText-103"), ("speeches", "speeches (State of the Union)")):
        before, tuned, tint = (
            shown("language-modelling.csv#two-kinds-of-text", "{perplexity:.2f}", text=text, method=method)
            for method in ("the model as it is", "fine-tuning, all block weights", "TinT")
        )
        share = shown(
            "language-modelling.csv#two-kinds-of-text", "{share of fine-tuning:.0%}", text=text, method="TinT"
        )
        found += [f"{said} {before} -> {tuned} / {tint}", f"{text} {share}"]
    accuracy = "{accuracy in percent, as it is:.1f} -> {accuracy in percent, TinT:.1f}"
    for task in ("SST-2", "MR", "CR", "AG News", "Amazon"):
        found.append(f"{task} {shown('in-context-learning.csv#where-tint-helps', accuracy, task=task)}")
    for model in ("nano-gpt2", "nano-llama"):
        table = f"bundled-models.csv#{model}"
        before, tuned, tint = (
            shown(table, "{perplexity.value:.2f}", method=method)
            for method in ("model as it is", "explicit fine-tuning", "inside the pass, default rule")
        )
        found.append(f"{model} {before} -> {tuned} / {tint}")
        for method in ("default rule", "exact gradient of the same parameters"):
            found.append(f"{model} {shown(table, '{share of fine-tuning:.0%}', method=f'inside the pass, {method}')}")
    articles = "streams.csv#smollm2-135m"
    found.append(f"{shown(articles, '{perplexity:.2f}', method='the model as it is')} -> ")
    found.append(
        shown(articles, "{perplexity:.2f} (RMS-scaled, {change of perplexity:+.1%})", method="RMS of tuning texts")
    )
    found += [f"{shown(articles, '{perplexity:.2f}', method=method)} ({method})" for method in ("Adam", "SGD")]
    along = "{range.low:.3f} to {range.high:.3f}"
    labels = {"model": "smollm2-135m", "measure": "share of reading's change along learning's"}
    for case in ("the model", "shuffled labels", "untrained model"):
        low, high = shown("reading-and-learning.csv#untrained", along, **labels, case=case).split(" to ")
        found.append(f"{100 * float(low):.1f} to {100 * float(high):.1f}%")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [each for each in found if each not in text] == []


def test_other_pages_say_what_the_rows_say() -> None:
    plain, tint = (
        shown("language-modelling.csv#smollm2-135m-by-share", "{perplexity.value:.2f}", trained="50%", method=method)
        for method in ("the model as it is", "TinT")
    )
    assert f"perplexity {plain} to {tint}" in (ROOT / "docs/index.md").read_text(encoding="utf-8")
    one_step = {"method": "regression, one step", "examples": "8"}
    assert shown("regression.csv#squared-error", "{squared error:.3g} for one step", **one_step) in (
        ROOT / "docs/regression.md"
    ).read_text(encoding="utf-8")


def test_readme_and_performance_have_the_speed_that_was_measured() -> None:
    readme, performance = ((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/performance.md"))
    models = {"gpt2": "GPT-2 small", "opt-125m": "OPT-125m", "smollm2-135m": "SmolLM2-135M"}
    cases = {"8x64": "8 x 64, 75%", "4x256": "4 x 256, 50%", "2x1024": "2 x 1024, 50%"}
    seconds: dict[tuple[str, str, str], float] = {}
    for file in ("speed.json", "speed-gpt2.json"):  # the later one replaces what the first says of GPT-2
        for record in json.loads((ROOT / "docs" / "results" / file).read_text(encoding="utf-8")):
            seconds[record["model"], record["case"], record["method"]] = record["seconds"]
    pairs = (("explicit_block", "fast"), ("fast", "forward"))
    for model, title in models.items():
        ratios = {
            case: [f"{seconds[model, case, method] / seconds[model, case, other]:.2f}" for method, other in pairs]
            for case in cases
        }
        for case, (explicit, fast) in ratios.items():
            assert f"| {title} | {cases[case]} | {explicit} | {fast} |" in performance
        if model == "gpt2":
            assert all(", ".join(column) in readme for column in zip(*ratios.values(), strict=True))
