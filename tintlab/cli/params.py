"""`tint params`: how large the simulator of a model is, from its configuration alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import Json, TranspositionOption
from tintformer.console import print_json, print_table, say
from tintformer.errors import InputError, TintError, brief

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary
    from tintformer.rule.learning_rule import LearningRule
    from tintlab.checks.accounting.paper_formula import Formula
    from tintlab.checks.accounting.simulator_size import Parameters

LAYOUTS = ("paper", "lean")

_UNITS = (("trillions", 1e12, 1e13), ("billions", 1e9, 1e11), ("millions", 1e6, 1e7), ("thousands", 1e3, 0))
"""A unit, its size, and the smallest largest number of a table that is written in it."""

_CAPACITY = {
    "forward_values": "every value of the blocks",
    "kept": "what backward reads, in slots",
    "text_slots": "all text slots, by liveness",
    "store": "one attention's store, T H_aux",
}

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
    tokens: Annotated[
        int | None,
        typer.Option(help="Text tokens of the compiled network; default: 64, or fewer if the model has fewer."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of descent in the compiled network; default: 1.")] = None,
    momentum: Annotated[float, typer.Option(help="Above 0: prefix tokens hold a velocity as well.")] = 0.0,
    decay: Annotated[float, typer.Option(help="Above 0: prefix tokens hold the base as well.")] = 0.0,
    json: Json = False,
) -> None:
    """Count a model's simulator and its compiled network, from its configuration: no weights, nothing is fetched."""
    memory = {"momentum": momentum, "decay": decay}
    counts = count(model, layout=layout, stack=stack, transposition=transposition, tokens=tokens, steps=steps, **memory)
    if json:
        print_json(counts)
        return
    _print_tables(counts)


def count(
    model: str,
    *,
    layout: str | None = None,
    stack: int = 4,
    transposition: str | None = None,
    tokens: int | None = None,
    steps: int | None = None,
    momentum: float = 0.0,
    decay: float = 0.0,
) -> dict[str, Any]:
    """Everything that the command prints: the paper's formula and theorem, the construction, what sets them apart,
    strategies, and the compiled network.
    """
    from tintformer.rule.learning_rule import LearningRule
    from tintformer.storage.configs import meta_auxiliary, read_config

    rule = LearningRule(learning_rate=1e-4, steps=1 if steps is None else steps, momentum=momentum, decay=decay)
    if layout is not None and layout not in LAYOUTS:
        raise TintError(f"layout={brief(layout)} is unknown; choose one of {', '.join(LAYOUTS)}")
    if layout == "paper" and (tokens, steps) != (None, None):
        raise TintError("--tokens and --steps are the network's, which has the lean layout; leave out --layout paper")
    config = read_config(model)  # a wrong one is told of before seconds of imports
    from tintlab.checks.accounting.network_size import MAX_BLOCKS
    from tintlab.checks.accounting.paper_formula import Formula, strategies
    from tintlab.checks.accounting.simulator_size import count_parameters, factors, non_zero_share

    if config.num_hidden_layers > MAX_BLOCKS:  # before they are built, even without numbers
        raise TintError(f"{brief(model)} has {config.num_hidden_layers} blocks; sizes are counted up to {MAX_BLOCKS}")
    formula = Formula.of(config, stack=stack)
    auxiliary = meta_auxiliary(config, model)
    asked = (tokens, steps) != (None, None)
    network = None if layout == "paper" else _network(auxiliary, rule, stack=stack, tokens=tokens, asked=asked)
    counted = [
        count_parameters(auxiliary, rule=rule, layout=name, stack=stack, tie_blocks=tied, transposition=transposition)
        for name in (LAYOUTS if layout is None else (layout,))
        for tied in (False, True)
    ]
    rows = factors(auxiliary, stack=stack, counted=counted, rule=rule)
    return {
        "model": model,
        "family": auxiliary.family,
        "parameters": auxiliary.model.num_parameters(),
        "symbols": _symbols(formula),
        "formula": [asdict(row) for row in formula.rows()],
        "theorem": _theorem(formula),
        "constructed": [_constructed(counts) for counts in counted],
        "factors": [asdict(row) for row in rows],
        "non_zero_in_paper_layout": None if layout == "lean" else non_zero_share(auxiliary, stack=stack),
        "strategies": [
            asdict(row) for row in strategies(formula.dim_aux, paper_linear=formula.linear, lean_linear=rows[-1].linear)
        ],
        "network": network,
    }


def _theorem(formula: Formula) -> dict[str, Any]:
    from tintlab.checks.accounting.paper_formula import CONSTANTS

    return {
        "constants": dict(zip(("c1", "c2", "c3"), CONSTANTS, strict=True)),
        "parameters": formula.theorem(),
        "parameters_as_printed": formula.theorem(as_printed=True),
    }


def _network(
    auxiliary: Auxiliary, rule: LearningRule, *, stack: int, tokens: int | None, asked: bool
) -> dict[str, Any]:
    """The compiled network; where none can be compiled and none was asked for, the reason."""
    from tintlab.checks.accounting.network_size import count_network

    try:
        size = count_network(auxiliary, rule=rule, max_tokens=tokens, stack=stack)
    except InputError as error:
        if asked:
            raise
        return {"reason": str(error)}
    counted = asdict(size)
    counted["capacity"]["multiples_of_dim_sim"] = size.capacity.widths
    return {**counted, "layers_a_step": size.layers_a_step, "depth": size.depth(), "stored": size.stored()}


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
    say(f"{counts['model']} ({counts['family']}): {counts['parameters']:,} parameters, {symbols['num_layers']} blocks")
    say(
        f"S = {symbols['stack']}, S' = {symbols['shards']}, D_aux = {symbols['dim_aux']}, "
        f"D_sim = {symbols['dim_sim']}, H_sim = {symbols['num_heads']}, K = {symbols['num_prefix']}, "
        f"T_sim = {symbols['num_positions']}, Q = {symbols['linear']:,}, Q_split = {symbols['split']:,}"
    )
    _print_sizes(counts["formula"], "simulator by the paper's formulas")
    say(f"in all, by the paper's formulas: {counts['formula'][-1]['total']:,} parameters")
    theorem = counts["theorem"]
    constants = ", ".join(f"{name} = {value}" for name, value in theorem["constants"].items())
    say(
        f"by the paper's theorem, without its surplus D^2, {constants}: {theorem['parameters']:,} parameters "
        f"(as printed: {theorem['parameters_as_printed']:.3g})"
    )
    for built in counts["constructed"]:
        tied = "tied blocks" if built["tie_blocks"] else "a block for every layer"
        _print_sizes(built["modules"], f"simulator as constructed: layout {built['layout']}, {tied}")
        say(
            f"{built['structural']:,} constructed and {built['auxiliary']:,} that hold the auxiliary: "
            f"{built['total']:,} parameters"
        )
        if built["differences_from_formula"]:
            say("constructed minus formula, reason by reason:")
            for reason, number in built["differences_from_formula"].items():
                say(f"{number:>+16,}  {reason}")
    steps = [{**row, "smaller": f"{row['smaller']:.2f} x"} for row in counts["factors"]]
    title = "from the paper's count to ours: one linear forward module, all machinery, smaller than the row before"
    print_table(_with_numbers(steps, lambda number: f"{number:,}"), title=title)
    if (share := counts["non_zero_in_paper_layout"]) is not None:
        say(f"non-zero in the paper's layout as constructed: {share:.2%} of the entries")
    width = f"one inner product of width {symbols['dim_aux']}"
    print_table(_with_numbers(counts["strategies"], lambda number: f"{number:,}"), title=width)
    if counts["network"] is not None:
        _print_network(counts["network"])


def _print_network(size: dict[str, Any]) -> None:
    if reason := size.get("reason"):
        say(f"no compiled network: {reason}")
        return
    steps = "1 step" if size["steps"] == 1 else f"{size['steps']} steps"
    title = f"compiled network, {size['text_tokens']} tokens, {steps}"
    print_table(_with_numbers(size["depth"], lambda number: f"{number:,}"), title=f"{title}: layers")
    say(
        f"{size['prefix_tokens']:,} prefix tokens and {size['text_tokens']:,} text tokens, {size['width']:,} "
        f"coordinates each: {size['weight_slots']} weight slots and {size['slots']:,} text slots of "
        f"{size['slot_width']:,}"
    )
    say(f"each further step: {size['layers_a_step']:,} layers, and those that clear slots for them")
    _print_stored(size["stored"], title)
    say(f"{size['auxiliary']:,} parameters hold the auxiliary")
    capacity = size["capacity"]
    rows = [
        {"kept for backward": text, "coordinates": capacity[name], "of the paper's": f"{many:.2f} x"}
        for name, many in capacity["multiples_of_dim_sim"].items()
        for text in [_CAPACITY[name]]
    ]
    title = f"a token of the paper has D_sim = {capacity['dim_sim']:,} coordinates"
    print_table(_with_numbers(rows, lambda number: f"{number:,}"), title=title)


def _print_stored(rows: Rows, title: str) -> None:
    """Parameters by how they are stored, each row in a unit of its own: they differ by factors of a million."""
    written: Rows = []
    for row in rows:
        name, unit = next((name, unit) for name, unit, least in _UNITS if row["total"] >= least)
        texts = {key: f"{value / unit:,.3f}" for key, value in row.items() if type(value) is int}
        written.append({"parameters": f"{row['parameters']}, {name}", **texts})
    widths = {key: max(len(row[key]) for row in written) for key in written[0]}
    flush = [
        {key: text if key == "parameters" else text.rjust(widths[key]) for key, text in row.items()} for row in written
    ]
    print_table(flush, title=f"{title}: parameters of the layers")


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
