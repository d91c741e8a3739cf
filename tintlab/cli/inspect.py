"""`tint inspect`: how the simulator of a model is laid out, and what stands in its regions while it runs."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import (
    Device,
    Dtype,
    Json,
    RuleOptions,
    Text,
    given_names,
    with_construction_options,
    with_rule_options,
)
from tintformer.cli.rule_setup import choose_rule, finite, open_model, provenance, warnings_as_lines
from tintformer.console import print_json, say
from tintformer.errors import InputError, LoadError
from tintformer.learning.split import TRAIN_FRACTION, Split
from tintformer.rule.learning_rule import require_built
from tintformer.storage.untrusted_files import user_path
from tintlab.cli.inspect_network import inspect_network

if TYPE_CHECKING:
    import torch

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.learning.rate_selection import RateChoice
    from tintformer.rule.learning_rule import LearningRule
    from tintformer.simulator.simulator import Simulator
    from tintlab.checks.inspect.inspection import Keep, Observation

TOKENS = 24

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class View:
    """What is shown."""

    block: int | None = None
    everything: bool = False
    token: int | None = None
    prefix_token: int = 0
    first: int = 4

    def __post_init__(self) -> None:
        if self.everything and self.block is not None:
            raise InputError("--all and --block contradict each other; give one of them")

    def keep(self, auxiliary: Auxiliary) -> Keep:
        """Which ops are shown: those of one block, all, or the last block and what stands outside of the blocks."""
        num_blocks = len(auxiliary.blocks)
        if self.block is not None and not 0 <= self.block < num_blocks:
            raise InputError(f"--block {self.block}: {auxiliary.name} has the blocks 0 to {num_blocks - 1}")
        shown = (None, num_blocks - 1) if self.block is None else (self.block,)
        return lambda wired: self.everything or wired.block in shown

    def token_of(self, num_tokens: int, num_train: int) -> int:
        """The text token to show: as asked for, or the last one that predicts a training target."""
        if self.token is not None and self.token >= num_tokens:
            raise InputError(f"--token {self.token}: the text has the tokens 0 to {num_tokens - 1}")
        return num_train - 2 if self.token is None else self.token


@with_construction_options
@with_rule_options
def inspect(
    model: Annotated[
        str, typer.Argument(help="A directory, a bundled name or a hub id such as gpt2.", show_default=False)
    ],
    text: Text = None,
    *,
    rule: RuleOptions,
    knobs: dict[str, Any],
    file: Annotated[Path | None, typer.Option(help="Read the text from a file; - is standard input.")] = None,
    engine: Annotated[
        str,
        typer.Option(help="simulator: its modules and their regions. network: the compiled layers and their slots."),
    ] = "simulator",
    values: Annotated[bool, typer.Option("--values", help="Run the pass, on a short text if none is given.")] = False,
    block: Annotated[
        int | None, typer.Option(help="Show this block alone; default: the last, and what is outside of the blocks.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all blocks.")] = False,
    token: Annotated[
        int | None, typer.Option(min=0, help="The text token to show; default: the last that predicts a target.")
    ] = None,
    prefix_token: Annotated[int, typer.Option(min=0, help="The prefix token to show.")] = 0,
    first: Annotated[int, typer.Option(min=0, help="How many coordinates of each quantity to show.")] = 4,
    tokens: Annotated[int, typer.Option(min=4, help="Use at most so many tokens of the text.")] = TOKENS,
    train_fraction: Annotated[
        float | None, typer.Option(help=f"Share of the tokens that is trained on; {TRAIN_FRACTION} by default.")
    ] = None,
    train_tokens: Annotated[int | None, typer.Option(help="Number of tokens that are trained on, instead.")] = None,
    dtype: Dtype = "float32",
    device: Device = None,
    json: Json = False,
) -> None:
    """Show how a model's simulator is laid out: modules, regions, heads, prefix tokens, parameters.

    With a text, or --values, the pass runs, and the values that stand in the declared regions of each module when it
    runs are shown: what it is given, what it makes on the way, what it returns. With --engine network they are read
    from the one stream, layer by layer: which slot holds what, what is written, what is no longer needed.
    """
    view = View(block=block, everything=everything, token=token, prefix_token=prefix_token, first=first)
    split = Split(train_fraction=train_fraction, train_tokens=train_tokens)
    require_built(rule.build(), "a network" if engine == "network" else "a simulator")
    if engine == "network":
        # Without a text nothing runs, unless values are asked for: then it is the text of `tint verify`.
        content = read(text, file) if values or text is not None or file is not None else None
        inspect_network(model, content, rule, knobs, view, split, tokens=tokens, dtype=dtype, device=device, json=json)
        return
    if engine != "simulator":
        raise InputError(f"--engine {engine} cannot be inspected; choose simulator or network")
    subject = Subject(model=model, dtype=dtype, device=device, rule=rule, knobs=knobs)
    if text is None and file is None and not values:
        record = plan_record(subject.shapes(), view, None)
    else:
        with warnings_as_lines():
            record = run_and_observe(subject, read(text, file), tokens, split, view)
    if json:
        print_json(record)
    else:
        print_record(record)


def read(text: str | None, file: Path | None) -> str:
    """The text to run on: what was given, or the one that `tint verify` reads too."""
    from tintformer.learning.text import read_text
    from tintlab.checks.verify.verify_settings import TEXT

    return TEXT if text is None and file is None else read_text(text, file)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is inspected: a model and the knobs of its simulator, or a simulator that `tint build` has written."""

    model: str
    dtype: str
    device: str | None
    rule: RuleOptions
    knobs: Record

    def __post_init__(self) -> None:
        given = given_names({**self.rule, **self.knobs}, device=self.device)
        if self.is_built and given:
            raise InputError(f"{self.model} is a simulator already, so leave out {', '.join(given)}")

    @property
    def is_built(self) -> bool:
        from tintformer.storage.loading import is_simulator

        return is_simulator(user_path(self.model))

    def shapes(self) -> Simulator:
        """The simulator; of a model only the shapes, where its configuration is enough."""
        if self.is_built:
            return self._stored()
        return self._build(open_for_plan(self.model, self.dtype), self.rule.build())

    def load(self) -> Simulator | Auxiliary:
        """The simulator that was written, or the model, with its weights."""
        return self._stored() if self.is_built else open_model(self.model, self.dtype, self.device)

    def settle(
        self, loaded: Simulator | Auxiliary, input_ids: torch.Tensor, train_mask: torch.Tensor
    ) -> tuple[Simulator, RateChoice | None]:
        """The simulator of what was loaded, and what its learning rate was chosen from, if it was to be found."""
        from tintformer.auxiliary.description import Auxiliary

        if not isinstance(loaded, Auxiliary):
            return loaded, None
        rule, choice = choose_rule(self.rule, loaded, input_ids, train_mask)
        return self._build(loaded, rule), choice

    def _stored(self) -> Simulator:
        import transformers

        from tintformer.simulator.simulator import Simulator

        transformers.logging.set_verbosity_error()
        return Simulator.from_pretrained(user_path(self.model))

    def _build(self, auxiliary: Auxiliary, rule: LearningRule) -> Simulator:
        from tintformer.simulator.simulator import build

        with auxiliary.device if auxiliary.device.type == "meta" else nullcontext():  # without weights: shapes alone
            return build(auxiliary, rule, **self.knobs)


def open_for_plan(model: str, dtype: str) -> Auxiliary:
    """A model without its weights, from its configuration; with them where there is no configuration to be had."""
    from tintformer.storage.configs import meta_auxiliary, read_config

    try:
        config = read_config(model)
    except LoadError:
        return open_model(model, dtype)
    return meta_auxiliary(config, model)


def plan_record(simulator: Simulator, view: View, choice: RateChoice | None) -> Record:
    """The identity of a simulator, its sizes and the plan of what is shown."""
    from tintlab.checks.inspect.inspection import plan

    g = simulator.geometry
    sizes = ("dim_aux", "dim_slot", "slots", "dim_sim", "stack", "shards", "num_prefix", "num_heads", "head_dim")
    keep = view.keep(simulator.auxiliary)
    return {
        **provenance(simulator.auxiliary, simulator.rule, choice),
        "construction": asdict(simulator.construction),
        "geometry": {name: getattr(g, name) for name in sizes},
        "blocks": len(simulator.auxiliary.blocks),
        "parameters": {"structural": simulator.num_structural, "auxiliary": simulator.num_auxiliary},
        "ops": [asdict(op) for op in plan(simulator, keep, prefix_token=view.prefix_token)],
    }


def run_and_observe(subject: Subject, content: str, tokens: int, split: Split, view: View) -> Record:
    """The plan, and what stood in the regions of every module while the pass ran on a text."""
    import torch

    from tintformer.learning.text import encode, find_tokenizer
    from tintlab.checks.inspect.inspection import observe

    loaded = subject.load()
    encoded = encode(find_tokenizer(subject.model), content)
    input_ids = torch.tensor([encoded.input_ids[:tokens]])
    num_tokens = input_ids.shape[1]
    num_train = split.of(num_tokens)
    shown = view.token_of(num_tokens, num_train)
    train_mask = torch.arange(num_tokens)[None] < num_train
    simulator, choice = subject.settle(loaded, input_ids, train_mask)
    plan = plan_record(simulator, view, choice)
    observations, moved = observe(simulator, input_ids, view.keep(simulator.auxiliary), train_mask=train_mask)
    return {
        **plan,
        "text": {"tokens": num_tokens, "train_tokens": num_train, "token": shown, "token_text": encoded.tokens[shown]},
        "observations": [observation_record(each, shown, view.first) for each in observations],
        "moved": {name: finite(_rms(change)) for name, change in moved.items()},
    }


def observation_record(observation: Observation, token: int, first: int) -> Record:
    """What one module had in its regions; numbers of the token alone, none where it took no part."""
    rows: list[Record] = []
    for region in observation.regions:
        row = asdict(region) | {"shape": None, "rms": None, "first": []}
        if region.name in observation.values:
            value = observation.values[region.name]
            row["shape"] = list(value.shape[1:])
            if token < value.shape[1]:
                here = value[0, token]
                row |= {"rms": finite(_rms(here)), "first": list(map(finite, here[:first].tolist()))}
        rows.append(row)
    return {"op": observation.op, "stage": observation.stage, "step": observation.step, "regions": rows}


def _rms(value: torch.Tensor) -> float:
    return float(value.double().square().mean().sqrt())


# What people read, from the record that programs get.


def print_record(record: Record) -> None:
    """The plan, or the plan with what was seen."""
    _print_title(record)
    if "observations" in record:
        _print_observations(record)
    else:
        for op in record["ops"]:
            _print_op(op)
    sizes = record["parameters"]
    say(f"\nin all {sizes['structural']:,} constructed parameters, and {sizes['auxiliary']:,} that hold the auxiliary")


def _print_title(record: Record) -> None:
    made, g = record["construction"], record["geometry"]
    tied = "one set of modules for all blocks" if made["tie_blocks"] else "modules of its own for every block"
    say(f"{record['model']}: {record['blocks']} blocks, layout {made['layout']}, {tied}")
    say(
        f"embedding: {g['slots']} slots of {g['dim_slot']} coordinates, {g['dim_sim']} in all; a slot holds "
        f"{g['dim_aux']}, then the homogeneous 1"
    )
    say(
        f"linear modules: {g['num_heads']} heads = {g['stack']} slots x {g['shards']} parts of {g['head_dim']} "
        f"coordinates; {g['num_prefix']} prefix tokens a piece"
    )


def _print_op(op: Record) -> None:
    into, out = op["widths"]
    say(f"\n{op['op']}: {op['kind']}, {into} -> {out}; module {op['module']}")
    if op["prefix"] is not None:
        say(f"  {_prefix_line(op['prefix'])}")
    for module in op["modules"]:
        say(f"  {module['phase']}, {module['parameters']:,} parameters")
        for exchange in module["exchanges"]:
            say(f"    {_exchange_line(exchange)}")
        for region in module["regions"]:
            say(f"    {_region_line(region)}")


def _print_observations(record: Record) -> None:
    text = record["text"]
    say(
        f"{text['tokens']} tokens, {text['train_tokens']} of them trained on with rate "
        f"{record['rule']['learning_rate']:.3g}; values are those of token {text['token']}, {text['token_text']!r}"
    )
    ops = {op["op"]: op for op in record["ops"]}
    for seen in record["observations"]:
        op, step = ops[seen["op"]], "" if seen["step"] is None else f"step {seen['step']}, "
        phase = "forward" if seen["stage"] == "updated" else seen["stage"]
        title = "forward, updated weights" if seen["stage"] == "updated" else phase
        say(f"\n{step}{title}: {op['op']}, {op['kind']}")
        module = next(module for module in op["modules"] if module["phase"] == phase)
        for exchange in module["exchanges"]:
            say(f"  {_exchange_line(exchange)}")
        if op["prefix"] is not None and phase == "forward":
            say(f"  {_prefix_line(op['prefix'])}")
        for region in seen["regions"]:
            say(f"  {_region_line(region)}{_value_text(region, text['token'])}")
    moved = {name: change for name, change in record["moved"].items() if change != 0}
    say(f"\n{len(moved)} parameters have moved; the rms of the change:")
    for name, change in moved.items():
        say(f"  {name}  {_shown(change)}")


def _prefix_line(prefix: Record) -> str:
    rows, columns = prefix["pieces"]
    pieces = "" if rows * columns == 1 else f"{rows} x {columns} pieces of "
    place = "token" if prefix["token"] is None else "slot"
    holds = ", ".join(f"{place} {number} = {what}" for number, what in enumerate(prefix["holds"]))
    here = "" if prefix["token"] is None else f"prefix token {prefix['token']}: "
    bias = "" if prefix["bias"] is None else f"; coordinate {prefix['bias']} of a row is its bias"
    tokens = "1 token" if prefix["tokens"] == 1 else f"{prefix['tokens']} tokens"
    return f"prefix: {pieces}{tokens}; {here}{holds}{bias}"


def _exchange_line(exchange: Record) -> str:
    heads = "1 head" if exchange["heads"] == 1 else f"{exchange['heads']} heads"
    verb = "collects" if exchange["transposed"] else "answers with"
    return (
        f"{heads}: {exchange['asks']} asks with {exchange['query']}; "
        f"{exchange['answers']}, by {exchange['key']}, {verb} {exchange['value']}"
    )


def _region_line(region: Record) -> str:
    last = region["start"] + region["width"] - 1
    pieces = "" if region["pieces"] == 1 else f" of {region['pieces']} pieces"
    coordinates = f"{region['start']}..{last}{pieces}"
    return f"slot {region['slot']}  {coordinates:<24} {region['name']}"


def _value_text(region: Record, token: int) -> str:
    if region["shape"] is None:
        return ": not in use"
    num_tokens, width = region["shape"]
    start = f": {num_tokens} tokens x {width}, "
    if token >= num_tokens:
        return f"{start}the token is not among them"
    numbers = " ".join(map(_shown, region["first"]))
    return f"{start}rms {_shown(region['rms'])}" + (f", {numbers} ..." if numbers else "")


def _shown(number: float | None) -> str:
    return "non-finite" if number is None else f"{number:.4g}"
