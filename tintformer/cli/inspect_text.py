"""What `tint inspect` says to people, from the record that it gives to programs."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]


def print_record(record: Record) -> None:
    """Figures, the plan, or the plan with what was seen."""
    if "figures" in record:
        for path in record["figures"]:
            print(f"wrote {path}")
        return
    _print_title(record)
    if "observations" in record:
        _print_observations(record)
    else:
        for op in record["ops"]:
            _print_op(op)
    sizes = record["parameters"]
    print(
        f"\nin all {sizes['structural']:,} constructed parameters, and {sizes['auxiliary']:,} that hold the auxiliary"
    )


def _print_title(record: Record) -> None:
    made, g = record["construction"], record["geometry"]
    tied = "one set of modules for all blocks" if made["tie_blocks"] else "modules of its own for every block"
    print(f"{record['model']}: {record['blocks']} blocks, layout {made['layout']}, {tied}")
    print(
        f"embedding: {g['slots']} slots of {g['dim_slot']} coordinates, {g['dim_sim']} in all; a slot holds "
        f"{g['dim_aux']}, then the homogeneous 1"
    )
    print(
        f"linear modules: {g['num_heads']} heads = {g['stack']} slots x {g['shards']} parts of {g['head_dim']} "
        f"coordinates; {g['num_prefix']} prefix tokens a piece"
    )


def _print_op(op: Record) -> None:
    into, out = op["widths"]
    print(f"\n{op['op']}: {op['kind']}, {into} -> {out}; module {op['module']}")
    if op["prefix"] is not None:
        print(f"  {_prefix_line(op['prefix'])}")
    for module in op["modules"]:
        print(f"  {module['phase']}, {module['parameters']:,} parameters")
        for exchange in module["exchanges"]:
            print(f"    {_exchange_line(exchange)}")
        for region in module["regions"]:
            print(f"    {_region_line(region)}")


def _print_observations(record: Record) -> None:
    text = record["text"]
    print(
        f"{text['tokens']} tokens, {text['train_tokens']} of them trained on with rate "
        f"{record['rule']['learning_rate']:.3g}; values are those of token {text['token']}, {text['token_text']!r}"
    )
    ops = {op["op"]: op for op in record["ops"]}
    for seen in record["observations"]:
        op, step = ops[seen["op"]], "" if seen["step"] is None else f"step {seen['step']}, "
        phase = "forward" if seen["stage"] == "updated" else seen["stage"]
        print(
            f"\n{step}{'forward, updated weights' if seen['stage'] == 'updated' else phase}: {op['op']}, {op['kind']}"
        )
        module = next(module for module in op["modules"] if module["phase"] == phase)
        for exchange in module["exchanges"]:
            print(f"  {_exchange_line(exchange)}")
        if op["prefix"] is not None and phase == "forward":
            print(f"  {_prefix_line(op['prefix'])}")
        for region in seen["regions"]:
            print(f"  {_region_line(region)}{_value_text(region, text['token'])}")
    moved = {name: change for name, change in record["moved"].items() if change != 0}
    print(f"\n{len(moved)} parameters have moved; the rms of the change:")
    for name, change in moved.items():
        print(f"  {name}  {_shown(change)}")


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
    return "not finite" if number is None else f"{number:.4g}"
