"""`tint verify`: how far the constructed simulator is from the truth, module by module, and what the theorems say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import (
    MAX_STEPS,
    Device,
    Dtype,
    Json,
    Model,
    Text,
    with_construction_options,
)
from tintformer.cli.rule_setup import open_model, warnings_as_lines
from tintformer.console import doing, print_json, print_table, say
from tintformer.learning.split import TRAIN_FRACTION, Split

if TYPE_CHECKING:
    import torch

    from tintformer.auxiliary.description import Auxiliary
    from tintlab.checks.verify.verification_tables import Verification

TOKENS = 128


@with_construction_options
def verify(
    model: Model,
    text: Text = None,
    *,
    knobs: dict[str, Any],
    file: Annotated[Path | None, typer.Option(help="Read the text from a file; - is standard input.")] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=4, help=f"Use at most so many tokens of the text; {TOKENS} by default."),
    ] = None,
    train_fraction: Annotated[
        float | None, typer.Option(help=f"Share of the tokens that is trained on; {TRAIN_FRACTION} by default.")
    ] = None,
    train_tokens: Annotated[int | None, typer.Option(help="Number of tokens that are trained on, instead.")] = None,
    layers: Annotated[
        int | None,
        typer.Option(help="Keep the first blocks of the model only; default: all of a small model, a few of a large."),
    ] = None,
    preset: Annotated[
        list[str] | None, typer.Option(help="Verify this rule only; repeat it for several. Default: all three.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Rate of the pass; default: one that moves the weights by a small share.")
    ] = None,
    steps: Annotated[int, typer.Option(max=MAX_STEPS, help="Gradient steps inside the pass.")] = 1,
    engine: Annotated[str, typer.Option(help="What is verified: simulator, network, fast or reference.")] = "simulator",
    theorems: Annotated[bool, typer.Option("--theorems/--no-theorems", help="Also check the theorems.")] = True,
    tolerance: Annotated[
        float | None, typer.Option(help="Replaces every tolerance; default: by dtype and rule.")
    ] = None,
    dtype: Dtype = "float32",
    device: Device = None,
    json: Json = False,
) -> None:
    """Check the simulator of a model: each module, the whole pass, the gradients of each preset, and the theorems.

    Modules are compared with the reference, the whole pass with the oracle (the model itself under autograd), gradients
    with the true one. Softmax attentions are reported and not judged. Without a text a short one is read. The exit code
    is 1 if anything is outside of its tolerance.
    """
    from tintformer.learning.text import read_text
    from tintformer.rule.learning_rule import PRESETS
    from tintlab.checks.verify.verification import verify as run_verify
    from tintlab.checks.verify.verified_engine import find_verified_engine
    from tintlab.checks.verify.verify_settings import TEXT, VerifySettings

    split = Split(train_fraction=train_fraction, train_tokens=train_tokens)
    subject = find_verified_engine(engine, **knobs)
    settings = VerifySettings(
        presets=tuple(preset or PRESETS),
        learning_rate=learning_rate,
        steps=steps,
        tolerance=tolerance,
        theorems=theorems,
    )
    content = TEXT if text is None and file is None else read_text(text, file)
    with warnings_as_lines():
        auxiliary = open_model(model, dtype, device)
        input_ids = encode_for(auxiliary, model, content, tokens)
        train_mask = _first(input_ids, split)
        report = run_verify(auxiliary, input_ids, train_mask, subject, settings, layers=layers, progress=doing)
    if json:
        print_json(report.record())
    else:
        print_report(report)
    if report.failures():
        raise typer.Exit(1)


def encode_for(auxiliary: Auxiliary, model: str, content: str, tokens: int | None) -> torch.Tensor:
    """The first tokens of the text, as many as were asked for or as fit the model's context."""
    import torch

    from tintformer.learning.text import encode, find_tokenizer

    ids = encode(find_tokenizer(model), content).input_ids
    longest = auxiliary.max_positions or TOKENS
    return torch.tensor([ids[: min(TOKENS, longest) if tokens is None else tokens]])


def _first(input_ids: torch.Tensor, split: Split) -> torch.Tensor:
    import torch

    num_tokens = input_ids.shape[1]
    return torch.arange(num_tokens)[None] < split.of(num_tokens)


def print_report(report: Verification) -> None:
    """The report for people: a table for each question, and the verdict."""
    from tintlab.checks.verify import verification_tables as tables

    say(_title(report.identity))
    print_table(tables.module_rows(report), title="modules: largest error relative to the reference, worst preset")
    say("updated: the forward pass with the weights that descent has left")
    print_table(tables.pass_rows(report), title="whole pass: largest difference from the oracle in float64")
    print_table(tables.gradient_rows(report), title="update against the true gradient: cosine, norm ratio")
    print_table(tables.overall_gradient_rows(report), title="the same over everything")
    if report.theorems:
        print_table(tables.theorem_rows(report), title="theorems: at the module that comes nearest to its bound")
        for note in tables.theorem_notes(report):
            say(note)
    if report.softmax:
        print_table(tables.softmax_rows(report), title="linear attention as softmax attention, at the best eps")
    _print_verdict(report.failures())


def _title(identity: dict[str, Any]) -> str:
    kept, total = identity["layers"], identity["layers_of_model"]
    blocks = f"all {total} blocks" if kept == total else f"the first {kept} of {total} blocks"
    tokens = f"{identity['tokens']} tokens, {identity['train_tokens']} of them trained on"
    what = f"{identity['model']} in {identity['dtype']} on {identity['device']}, {blocks}, engine {identity['engine']}"
    return f"{what}; {tokens}, learning rate {identity['learning_rate']:.2g}"


def _print_verdict(failures: list[str]) -> None:
    if not failures:
        say("everything is within tolerance")
        return
    say(f"{len(failures)} outside of tolerance:")
    for line in failures:
        say(f"  {line}")
