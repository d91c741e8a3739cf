"""`tint export`: write a pass that learns as one ONNX graph, for runtimes that know nothing of gradients."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import Device, Dtype, Json, Model, RuleOptions, StackOption, Text, with_built_rule_options
from tintformer.cli.rule_setup import (
    check_dtype,
    choose_rule,
    finite,
    open_model,
    print_rate,
    provenance,
    warnings_as_lines,
)
from tintformer.console import doing, print_json, print_table, say
from tintformer.errors import InputError
from tintformer.learning.split import TRAIN_FRACTION, Split
from tintformer.rule.learning_rule import require_built

if TYPE_CHECKING:
    import torch

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.learning.text import Encoded
    from tintformer.network.export import Exported, PortablePass
    from tintformer.rule.learning_rule import LearningRule

TOKENS = 64
ENGINES = ("network", "fast")


@with_built_rule_options
def export(
    model: Model,
    text: Text = None,
    *,
    rule: RuleOptions,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, *.onnx.")],
    tokens: Annotated[
        int | None, typer.Option(help=f"Tokens of a sequence; those of the text, or {TOKENS} without one.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="network (one transformer), or fast (the fast engine's pass).")
    ] = "network",
    stack: StackOption = None,
    loop: Annotated[
        bool, typer.Option("--loop", help="Of the network: the layers of one step, again for every further step.")
    ] = False,
    dynamic_batch: Annotated[
        bool, typer.Option("--dynamic-batch", help="Take any number of sequences at once, not one.")
    ] = False,
    updates: Annotated[
        bool, typer.Option("--updates", help="Put out the updated weights as well, by Hugging Face name.")
    ] = False,
    file: Annotated[Path | None, typer.Option(help="Read the text from a file; - is standard input.")] = None,
    train_fraction: Annotated[
        float | None, typer.Option(help=f"Share of the text that is trained on; {TRAIN_FRACTION} by default.")
    ] = None,
    train_tokens: Annotated[int | None, typer.Option(help="Number of tokens that are trained on, instead.")] = None,
    dtype: Dtype = "float32",
    device: Device = None,
    json: Json = False,
) -> None:
    """Write the pass that trains MODEL and predicts with it as an ONNX graph: ids and two masks in, logits out.

    The learning rate is part of the graph: give it, or a TEXT on which it is found. The ids and masks of a text are
    written beside the graph, with the ending .json.
    """
    from tintformer.network.export import export as export_pass
    from tintformer.network.export import require_onnx

    split = Split(train_fraction=train_fraction, train_tokens=train_tokens)
    _check_request(rule, text, file, output=output, engine=engine, dtype=dtype, only_network=(stack, loop))
    require_onnx()
    with warnings_as_lines():
        auxiliary, encoded = open_model(model, dtype, device), _encoded(model, text, file)
        num_tokens = tokens if tokens is not None else TOKENS if encoded is None else len(encoded.input_ids)
        ids, attended, trains = _example(auxiliary, encoded, num_tokens, split)
        settled, choice = choose_rule(rule, auxiliary, ids, trains.bool(), attention_mask=attended)
        doing("tracing the pass")
        portable = _portable(auxiliary, settled, num_tokens, engine, updates=updates, loop=loop, stack=stack)
        exported = export_pass(portable, num_tokens, dynamic_batch=dynamic_batch)
        doing("running the graph")
        difference = _difference(portable, exported, (ids, attended, trains))
        written = _write(exported, output, None if encoded is None else (encoded, ids, attended, trains))
    record = {
        **provenance(auxiliary, settled, choice),
        "engine": engine,
        "tokens": num_tokens,
        "inputs": [value.name for value in exported.model.graph.input],
        "outputs": [value.name for value in exported.model.graph.output],
        "nodes": len(exported.model.graph.node),
        "operators": [asdict(count) for count in exported.operators],
        "difference": difference,
        "bytes": output.stat().st_size,
        "files": [str(path) for path in written],
    }
    if json:
        print_json(record)
    else:
        _print(record)


def _check_request(
    rule: RuleOptions,
    text: str | None,
    file: Path | None,
    *,
    output: Path,
    engine: str,
    dtype: str,
    only_network: tuple[int | None, bool],
) -> None:
    """Refuse before the work what could not be written after it."""
    from tintformer.storage.whole_files import check_directory

    if rule.auto and text is None and file is None:
        raise InputError("the learning rate is built in: give --learning-rate, or a text to find it on")
    require_built(rule.build(), "an export")
    if engine not in ENGINES:
        raise InputError(f"engine={engine!r} cannot be exported; choose one of {', '.join(ENGINES)}")
    if engine != "network" and any(only_network):
        raise InputError(f"--stack and --loop are of the network; leave them out with --engine {engine}")
    check_dtype(dtype)
    if dtype == "bfloat16":
        raise InputError("an export computes in float32 or float64; choose one of them with --dtype")
    if output.suffix != ".onnx":
        raise InputError(f"cannot write {output}: the name of an exported graph ends in .onnx")
    check_directory(output.absolute().parent, [output.name, output.with_suffix(".json").name])


def _encoded(model: str, text: str | None, file: Path | None) -> Encoded | None:
    if text is None and file is None:
        return None
    from tintformer.learning.text import encode, find_tokenizer, read_text

    return encode(find_tokenizer(model), read_text(text, file))


def _example(auxiliary: Auxiliary, encoded: Encoded | None, num_tokens: int, split: Split) -> tuple[torch.Tensor, ...]:
    """Ids, attention mask and train mask of one sequence: the text, cut or padded, and the part to train on."""
    import torch

    from tintformer.network.export import check_tokens

    check_tokens(auxiliary, num_tokens)
    known = (
        [number % auxiliary.vocabulary_size for number in range(num_tokens)] if encoded is None else encoded.input_ids
    )
    length = min(len(known), num_tokens)
    ids, attended, trains = (torch.zeros(1, num_tokens, dtype=torch.long) for _ in range(3))
    ids[0, :length] = torch.tensor(known[:length])
    attended[0, :length] = 1
    trains[0, : split.of(length)] = 1
    return ids, attended, trains


def _portable(
    auxiliary: Auxiliary,
    rule: LearningRule,
    num_tokens: int,
    engine: str,
    *,
    updates: bool,
    loop: bool,
    stack: int | None,
) -> PortablePass:
    from tintformer.network.export import PortableFast, PortableNetwork
    from tintformer.network.network import compile

    if engine == "fast":
        return PortableFast(auxiliary, rule, updates=updates)
    knobs: dict[str, Any] = {} if stack is None else {"stack": stack}
    return PortableNetwork(compile(auxiliary, rule, max_tokens=num_tokens, loop=loop, **knobs), updates=updates)


def _difference(portable: PortablePass, exported: Exported, inputs: tuple[torch.Tensor, ...]) -> float | None:
    """How far onnxruntime's logits lie from those of the traced pass; None where they are not finite."""
    import torch

    from tintformer.network.export import run_exported

    with torch.no_grad():
        expected = portable(*inputs)[0]
    found = torch.from_numpy(run_exported(exported.model, inputs)[0])
    return finite(float((found - expected.cpu()).abs().max()))


def _write(exported: Exported, output: Path, example: tuple[Any, ...] | None) -> list[Path]:
    """The graph, and beside it the text as the graph takes it."""
    from tintformer.network.export import INPUTS
    from tintformer.storage.whole_files import whole_files

    beside = output.with_suffix(".json")
    names = [output.name] if example is None else [beside.name, output.name]
    with whole_files(output.absolute().parent, names) as directory:
        (directory / output.name).write_bytes(exported.model.SerializeToString())
        if example is not None:
            encoded, *tensors = example
            content: dict[str, Any] = {name: each.tolist() for name, each in zip(INPUTS, tensors, strict=True)}
            content["tokens"] = [encoded.tokens]
            (directory / beside.name).write_text(json_format.dumps(content, ensure_ascii=False), encoding="utf-8")
    return [output.with_name(name) for name in reversed(names)]


def _print(record: dict[str, Any]) -> None:
    is_network = record["engine"] == "network"
    rows = [
        {
            "operator": count["operator"],
            **({"embed": count["embed"], "layers and head": count["layers"]} if is_network else {"": count["layers"]}),
            "kind": count["group"] or "other",
        }
        for count in record["operators"]
    ]
    print_table(rows, title=f"{record['model']}, {record['engine']}: {record['nodes']:,} nodes")
    if is_network:
        say("every operator is one that a transformer is made of")
    say(f"inputs {', '.join(record['inputs'])} [batch, {record['tokens']}]; outputs {_listed(record['outputs'])}")
    if record["difference"] is not None:
        say(f"onnxruntime's logits differ from torch's by {record['difference']:.1e} at most")
    print_rate(record)
    say(f"wrote {', '.join(record['files'])} ({record['bytes'] / 1e6:.1f} MB)")


def _listed(outputs: list[str]) -> str:
    return outputs[0] if len(outputs) == 1 else f"{outputs[0]} and {len(outputs) - 1} updated weights"
