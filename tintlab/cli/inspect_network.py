"""`tint inspect --engine network`: the layers of the compiled network, and what each leaves in the stream."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tintformer.cli.options import flag_of
from tintformer.cli.rule_setup import choose_rule, finite, open_model, provenance, warnings_as_lines
from tintformer.console import print_json, say
from tintformer.errors import InputError

if TYPE_CHECKING:
    from tintformer.cli.options import RuleOptions
    from tintformer.learning.split import Split
    from tintformer.network.network import Network
    from tintlab.checks.inspect.layer_listing import LayerRow, LayerValues
    from tintlab.cli.inspect import View

Record = dict[str, Any]


def inspect_network(
    model: str,
    content: str | None,
    rule: RuleOptions,
    knobs: Record,
    view: View,
    split: Split,
    *,
    tokens: int,
    dtype: str,
    device: str | None,
    json: bool,
) -> None:
    """Print the layers of a network; with a text, also what they write at one token."""
    if foreign := sorted(set(knobs) - {"stack"}):
        raise InputError(
            f"{flag_of(foreign[0])} is a knob of the simulator's modules; leave it out with --engine network"
        )
    with warnings_as_lines():
        if content is None:
            record = _layers_alone(model, rule, knobs, view, tokens)
        else:
            record = _with_values(model, content, rule, knobs, view, split, tokens, dtype, device)
    if json:
        print_json(record)
    else:
        _print(record)


def _layers_alone(model: str, rule: RuleOptions, knobs: Record, view: View, tokens: int) -> Record:
    from tintformer.network.network import Network
    from tintlab.checks.inspect.layer_listing import list_layers
    from tintlab.cli.inspect import open_for_plan

    auxiliary, learn = open_for_plan(model, "float32"), rule.build()
    with auxiliary.device:  # without weights it is made of shapes alone
        network = Network(auxiliary, learn, max_tokens=tokens, **knobs)
    rows = [asdict(row) for row in list_layers(network) if _shown(row, network, view)]
    return {**provenance(auxiliary, learn, None), **_sizes(network), "layers": rows}


def _with_values(
    model: str,
    content: str,
    rule: RuleOptions,
    knobs: Record,
    view: View,
    split: Split,
    tokens: int,
    dtype: str,
    device: str | None,
) -> Record:
    import torch

    from tintformer.execution.batch import Batch
    from tintformer.learning.text import encode, find_tokenizer
    from tintformer.network.network import Network
    from tintlab.checks.inspect.layer_listing import watch

    auxiliary = open_model(model, dtype, device)
    encoded = encode(find_tokenizer(model), content)
    input_ids = torch.tensor([encoded.input_ids[:tokens]])
    num_tokens = input_ids.shape[1]
    num_train = split.of(num_tokens)
    token = view.token_of(num_tokens, num_train)
    train_mask = torch.arange(num_tokens)[None] < num_train
    learn, choice = choose_rule(rule, auxiliary, input_ids, train_mask)
    network = Network(auxiliary, learn, max_tokens=num_tokens, **knobs)
    batch = Batch.of(auxiliary, input_ids, train_mask=train_mask)
    seen = watch(network, batch)
    rows = [_values_record(each, token, view.first) for each in seen if _shown(each.row, network, view)]
    return {
        **provenance(auxiliary, learn, choice),
        **_sizes(network),
        "text": {"tokens": num_tokens, "train_tokens": num_train, "token": token, "token_text": encoded.tokens[token]},
        "layers": rows,
    }


def _shown(row: LayerRow, network: Network, view: View) -> bool:
    """Layers of the blocks that were asked for, and what stands outside of the blocks."""
    last = len(network.auxiliary.blocks) - 1
    if view.everything:
        return True
    if view.block is not None:
        return row.op.startswith(f"blocks.{view.block}.")
    return not row.op.startswith("blocks.") or row.op.startswith(f"blocks.{last}.")


def _sizes(network: Network) -> Record:
    frame = network.frame
    return {
        "network": {
            "layers": len(network.layers),
            "slots": frame.num_slots,
            "weight_slots": frame.weight_slots,
            "slot_width": frame.width,
            "width": frame.dim,
            "prefix_tokens": frame.num_prefix,
            "text_tokens": frame.num_tokens,
        }
    }


def _values_record(each: LayerValues, token: int, first: int) -> Record:
    def rms(value: Any) -> float | None:
        return finite(float(value.double().square().mean().sqrt()))

    values = [
        {
            "slot": slot,
            "name": name,
            "rms": rms(value[0, token]),
            "first": list(map(finite, value[0, token, :first].tolist())),
        }
        for (slot, name), value in each.written.items()
    ]
    changes = {"moved": each.moved, "sped_up": each.sped_up}
    return (
        asdict(each.row)
        | {"values": values}
        | {kind: {op: rms(change[0]) for op, change in by_op.items()} for kind, by_op in changes.items()}
    )


def _print(record: Record) -> None:
    size = record["network"]
    say(
        f"{record['model']}: {size['layers']} layers; {size['prefix_tokens']} prefix tokens and {size['text_tokens']} "
        f"text tokens, {size['width']} coordinates: {size['weight_slots']} weight slots and {size['slots']} text slots "
        f"of {size['slot_width']}"
    )
    if text := record.get("text"):
        say(
            f"{text['tokens']} tokens, {text['train_tokens']} of them trained on with rate "
            f"{record['rule']['learning_rate']:.3g}; values are those of token {text['token']}, {text['token_text']!r}"
        )
    for row in record["layers"]:
        step = "" if row["step"] is None else f", step {row['step']}"
        say(f"\nlayer {row['number']}: {row['kind']}, {row['op']} ({row['phase']}{step})")
        for op in row["blocks"]:
            say(f"  prefix tokens of {op}{_moved(row, op)}")
        _print_places("reads", row["reads"])
        if "values" in row:
            for value in row["values"]:
                numbers = " ".join(f"{number:.4g}" for number in value["first"] if number is not None)
                say(f"  writes slot {value['slot']:<4} {value['name']}: rms {_number(value['rms'])}, {numbers} ...")
        else:
            _print_places("writes", row["writes"])
        _print_places("frees", row["freed"])
        _print_places("clears", row["cleared"])


def _moved(row: Record, op: str) -> str:
    if not row["changes_prefix"]:
        return ""
    if "moved" not in row:
        return " change"
    faster = f", their velocity by {_number(row['sped_up'][op])}" if op in row["sped_up"] else ""
    return f" change by rms {_number(row['moved'][op])}{faster}"


def _print_places(verb: str, places: list[Any]) -> None:
    for slot, name in places:
        say(f"  {verb} slot {slot:<4} {name}")


def _number(value: float | None) -> str:
    return "non-finite" if value is None else f"{value:.4g}"
