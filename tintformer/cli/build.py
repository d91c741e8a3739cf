"""`tint build`: construct the simulator of a model and write it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import (
    Device,
    Dtype,
    Json,
    Model,
    RuleOptions,
    Text,
    with_built_rule_options,
    with_construction_options,
)
from tintformer.cli.rule_setup import choose_rule, open_model, print_rate, provenance, warnings_as_lines
from tintformer.console import doing, print_json, print_table, say
from tintformer.errors import InputError, LoadError
from tintformer.rule.learning_rule import require_built

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary
    from tintformer.learning.rate_selection import RateChoice
    from tintformer.rule.learning_rule import LearningRule
    from tintformer.simulator.simulator import Simulator


@with_construction_options
@with_built_rule_options
def build(
    model: Model,
    text: Text = None,
    *,
    rule: RuleOptions,
    knobs: dict[str, Any],
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory to write; made if it is not there.")],
    full: Annotated[bool, typer.Option("--full", help="Write every constructed tensor, not only the weights.")] = False,
    file: Annotated[Path | None, typer.Option(help="A text to find the learning rate on.")] = None,
    dtype: Dtype = "float32",
    device: Device = None,
    json: Json = False,
) -> None:
    """Construct the transformer that trains MODEL in its forward pass, and write it to a directory.

    The learning rate is a weight of the simulator: give it, or a TEXT on which it is found.
    """
    if rule.auto and text is None and file is None:
        raise InputError("the learning rate is built in: give --learning-rate, or a text to find it on")
    require_built(rule.build(), "a simulator")
    _check_directory(output)
    with warnings_as_lines():
        auxiliary = open_model(model, dtype, device)
        settled, choice = _settle(auxiliary, rule, model, text, file)
        doing(f"building the simulator of {model}")
        simulator = _construct(auxiliary, settled, knobs)
        doing(f"writing {output}")
        _write(simulator, model, output, full=full)
    record = {**provenance(auxiliary, settled, choice), **_sizes(simulator, output)}
    if json:
        print_json(record)
    else:
        _print(record)


def _settle(
    auxiliary: Auxiliary, options: RuleOptions, model: str, text: str | None, file: Path | None
) -> tuple[LearningRule, RateChoice | None]:
    if not options.auto:
        return options.build(), None
    import torch

    from tintformer.learning.text import encode, find_tokenizer, read_text

    input_ids = torch.tensor([encode(find_tokenizer(model), read_text(text, file)).input_ids])
    return choose_rule(options, auxiliary, input_ids, torch.ones_like(input_ids, dtype=torch.bool))


def _construct(auxiliary: Auxiliary, rule: LearningRule, knobs: dict[str, Any]) -> Simulator:
    from tintformer.simulator.simulator import build as construct

    return construct(auxiliary, rule, **knobs)


def _check_directory(output: Path) -> None:
    """Refuse before the work what must not be replaced after it."""
    from tintformer.storage.loading import is_simulator
    from tintformer.storage.whole_files import check_directory, entries

    if os.path.exists(output) and not os.path.isdir(output):
        raise InputError(f"cannot write {output}: it is a file; give a directory")
    check_directory(output)
    if output.is_dir() and entries(output) and not is_simulator(output):
        raise InputError(f"{output} holds files that are no simulator; give a new directory")


def _write(simulator: Simulator, model: str, output: Path, *, full: bool) -> None:
    from tintformer.learning.text import find_tokenizer
    from tintformer.storage.whole_files import whole_directory

    with whole_directory(output) as folder:
        simulator.save_pretrained(folder, full=full)
        with suppress(LoadError):  # a model without a tokenizer is a model all the same
            find_tokenizer(model).save_pretrained(str(folder))


def _sizes(simulator: Simulator, output: Path) -> dict[str, Any]:
    g = simulator.geometry
    return {
        "layout": g.layout,
        "tie_blocks": simulator.construction.tie_blocks,
        "construction": asdict(simulator.construction),
        "store_capacity": simulator.store_capacity,
        "stack": g.stack,
        "shards": g.shards,
        "dim_aux": g.dim_aux,
        "dim_slot": g.dim_slot,
        "dim_sim": g.dim_sim,
        "num_heads": g.num_heads,
        "num_prefix": g.num_prefix,
        "structural": simulator.num_structural,
        "auxiliary": simulator.num_auxiliary,
        "output": str(output),
        "bytes": sum(path.stat().st_size for path in output.iterdir()),
    }


def _print(record: dict[str, Any]) -> None:
    tied = "tied blocks" if record["tie_blocks"] else "a block for every layer"
    title = f"{record['model']}: layout {record['layout']}, {tied}"
    names = ("stack", "shards", "dim_aux", "dim_slot", "dim_sim", "num_heads", "num_prefix")
    print_table([{name: record[name] for name in names}], title=title)
    say(f"{record['structural']:,} constructed parameters, {record['auxiliary']:,} that hold the model's weights")
    if (capacity := record["store_capacity"]) is not None:
        longer = "are refused" if record["construction"]["transposition"] else "have their scores transposed instead"
        say(f"backward attention stores the scores of up to {capacity} training tokens; more {longer}")
    print_rate(record)
    say(f"wrote {record['output']} ({record['bytes'] / 1e6:.1f} MB)")
