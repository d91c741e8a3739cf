"""`tint params`: how large the simulator of a model is, from its configuration alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import Json, TranspositionOption
from tintformer.console import print_json, print_table
from tintformer.errors import TintError

if TYPE_CHECKING:
    from tintformer.analysis.accounting import Parameters
    from tintformer.analysis.paper_formula import Formula

LAYOUTS = ("paper", "lean")

_UNITS = (("billions", 1e9, 1e11), ("millions", 1e6, 1e7), ("thousands", 1e3, 0))
"""A unit, its size, and the smallest largest number of a table that is written in it."""

Rows = list[dict[str, Any]]


def params(
    model: Annotated[
        str,
        typer.Argument(
            help="A known name such as gpt2 or facebook/opt-125m, a directory with config.json, or a JSON file.",
            show_default=False,
        ),
    ],
    layout: Annotated[
        str | None, typer.Option(help=f"Construct only this layout: {' or '.join(LAYOUTS)}; default: both.")
    ] = None,
    stack: Annotated[int, typer.Option(help="Weight rows in one prefix token (S in the paper).")] = 4,
    transposition: TranspositionOption = None,
    json: Json = False,
) -> None:
    """Count the parameters of a model's simulator, from its configuration: no weights, nothing is fetched."""
    counts = count(model, layout=layout, stack=stack, transposition=transposition)
    if json:
        print_json(counts)
        return
    _print_tables(counts)


def count(model: str, *, layout: str | None = None, stack: int = 4, transposition: str | None = None) -> dict[str, Any]:
    """Everything that the command prints: the paper's formula, the construction, what sets them apart, strategies."""
    from tintformer.analysis.accounting import count_parameters, factors, non_zero_share
    from tintformer.analysis.paper_formula import Formula, strategies
    from tintformer.storage.configs import meta_auxiliary, read_config

    if layout is not None and layout not in LAYOUTS:
        raise TintError(f"layout={layout!r} is unknown; choose one of {', '.join(LAYOUTS)}")
    config = read_config(model)
    formula = Formula.of(config, stack=stack)
    auxiliary = meta_auxiliary(config, model)
    counted = [
        count_parameters(auxiliary, layout=name, stack=stack, tie_blocks=tied, transposition=transposition)
        for name in (LAYOUTS if layout is None else (layout,))
        for tied in (False, True)
    ]
    steps = factors(auxiliary, stack=stack, counted=counted)
    return {
        "model": model,
        "family": auxiliary.family,
        "parameters": auxiliary.model.num_parameters(),
        "symbols": _symbols(formula),
        "formula": [asdict(row) for row in formula.rows()],
        "constructed": [_constructed(counts) for counts in counted],
        "factors": [asdict(row) for row in steps],
        "non_zero_in_paper_layout": None if layout == "lean" else non_zero_share(auxiliary, stack=stack),
        "strategies": [
            asdict(row)
            for row in strategies(formula.dim_aux, paper_linear=formula.linear, lean_linear=steps[-1].linear)
        ],
    }


def _constructed(counts: Parameters) -> dict[str, Any]:
    return {
        "layout": counts.layout,
        "tie_blocks": counts.tie_blocks,
        "structural": counts.structural,
        "auxiliary": counts.auxiliary,
        "total": counts.total,
        "modules": counts.by_kind(),
        "parts": [asdict(part) for part in counts.parts],
        "differences_from_formula": {difference.reason: difference.parameters for difference in counts.differences},
    }


def _symbols(formula: Formula) -> dict[str, int]:
    """The paper's symbols by their names in the code, and their values."""
    names = ("stack", "shards", "dim_aux", "dim_sim", "num_heads", "num_prefix", "num_positions", "split", "linear")
    return {"num_layers": formula.num_layers, **{name: getattr(formula, name) for name in names}}


def _print_tables(counts: dict[str, Any]) -> None:
    symbols = counts["symbols"]
    print(
        f"{counts['model']} ({counts['family']}): {counts['parameters']:,} parameters, {symbols['num_layers']} blocks"
    )
    print(
        f"S = {symbols['stack']}, S' = {symbols['shards']}, D_aux = {symbols['dim_aux']}, "
        f"D_sim = {symbols['dim_sim']}, H_sim = {symbols['num_heads']}, K = {symbols['num_prefix']}, "
        f"T_sim = {symbols['num_positions']}, Q = {symbols['linear']:,}, Q_split = {symbols['split']:,}"
    )
    _print_sizes(counts["formula"], "simulator by the paper's formulas")
    print(f"in all, by the paper's formulas: {counts['formula'][-1]['total']:,} parameters")
    for built in counts["constructed"]:
        tied = "tied blocks" if built["tie_blocks"] else "a block for every layer"
        _print_sizes(built["modules"], f"simulator as constructed: layout {built['layout']}, {tied}")
        print(
            f"{built['structural']:,} constructed and {built['auxiliary']:,} that hold the auxiliary: "
            f"{built['total']:,} parameters"
        )
        if built["differences_from_formula"]:
            print("constructed minus formula, reason by reason:")
            for reason, number in built["differences_from_formula"].items():
                print(f"{number:>+16,}  {reason}")
    steps = [{**row, "smaller": f"{row['smaller']:.2f} x"} for row in counts["factors"]]
    title = "from the paper's count to ours: one linear forward module, all machinery, smaller than the row before"
    print_table(_with_numbers(steps, lambda number: f"{number:,}"), title=title)
    if (share := counts["non_zero_in_paper_layout"]) is not None:
        print(f"non-zero in the paper's layout as constructed: {share:.2%} of the entries")
    width = f"one inner product of width {symbols['dim_aux']}"
    print_table(_with_numbers(counts["strategies"], lambda number: f"{number:,}"), title=width)


def _print_sizes(rows: Rows, title: str) -> None:
    """Sizes in a unit that keeps the table narrow enough for a terminal; JSON has the exact ones."""
    largest = max(value for row in rows for value in row.values() if type(value) is int)
    name, unit = next((name, unit) for name, unit, least in _UNITS if largest >= least)
    print_table(_with_numbers(rows, lambda number: f"{number / unit:,.3f}"), title=f"{title}, {name} of parameters")


def _with_numbers(rows: Rows, write: Callable[[int], str]) -> Rows:
    """The rows with their whole numbers written out, flush right."""
    texts = [{key: write(value) if type(value) is int else str(value) for key, value in row.items()} for row in rows]
    widths = {key: max(len(text[key]) for text in texts) for key in texts[0]}
    return [
        {key: text[key].rjust(widths[key]) if type(row[key]) is int else text[key] for key in row}
        for row, text in zip(rows, texts, strict=True)
    ]
