"""`tint report`: what a pass changed, as a page for the browser and as figures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import BeyondContext, Device, Dtype, Json, Model, RuleOptions, Text, with_rule_options
from tintformer.cli.rule_setup import (
    check_context_length,
    choose_rule,
    losses_record,
    open_model,
    print_losses,
    print_rate,
    provenance,
    warnings_as_lines,
)
from tintformer.cli.run import TRAIN_FRACTION, Split
from tintformer.console import print_json, say

if TYPE_CHECKING:
    from tintformer.report import Report


@with_rule_options
def report(
    model: Model,
    text: Text = None,
    *,
    rule: RuleOptions,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory for report.html and the figures (PNG).")],
    file: Annotated[Path | None, typer.Option(help="Read the text from a file; - is standard input.")] = None,
    train_fraction: Annotated[
        float | None, typer.Option(help=f"Share of the text that is trained on; {TRAIN_FRACTION} by default.")
    ] = None,
    train_tokens: Annotated[int | None, typer.Option(help="Number of tokens that are trained on, instead.")] = None,
    engine: Annotated[str, typer.Option(help="fast, simulator, reference or oracle; they agree.")] = "fast",
    dtype: Dtype = "float32",
    device: Device = None,
    cosine: Annotated[
        bool | None,
        typer.Option(
            "--cosine/--no-cosine",
            help="Compare the rule's gradient with the exact one; by default unless the model is large.",
            show_default=False,
        ),
    ] = None,
    beyond_context: BeyondContext = False,
    json: Json = False,
) -> None:
    """Do what `tint run` does, and write a page that shows what changed, token by token and inside of the model."""
    from rich.console import Console

    from tintformer.learning.text import encode, find_tokenizer, read_text
    from tintformer.report import check_directory, collect, write

    split = Split(train_fraction=train_fraction, train_tokens=train_tokens)
    rule.build()
    check_directory(output)
    content = read_text(text, file)
    with warnings_as_lines():
        import torch

        auxiliary, tokenizer = open_model(model, dtype, device), find_tokenizer(model)
        encoded = encode(tokenizer, content)
        check_context_length(auxiliary, len(encoded.input_ids), beyond_context)
        input_ids = torch.tensor([encoded.input_ids])
        num_train = split.of(len(encoded.input_ids))
        train_mask = torch.arange(len(encoded.input_ids))[None] < num_train
        settled, choice = choose_rule(rule, auxiliary, input_ids, train_mask, engine=engine)
        # Silent where nobody watches: bad input that is found out here must stay one line.
        with Console(stderr=True).status("") as status:
            found = collect(
                auxiliary,
                settled,
                content,
                encoded,
                tokenizer,
                train_tokens=num_train,
                engine=engine,
                choice=choice,
                cosine=cosine,
                progress=lambda doing, _: status.update(doing),
            )
            status.update("drawing")
            path = write(found, output)
    record = {**report_record(found), "output": str(path), "figures": _figures(output)}
    if json:
        print_json(record)
        return
    title = f"{record['model']}, trained on {record['train_tokens']} tokens, evaluated on {record['evaluation_tokens']}"
    print_losses(record, f"{title} tokens")
    print_rate(record)
    say(f"wrote {path} {_beside(_figures(output))}")


def report_record(found: Report) -> dict[str, Any]:
    """The numbers of a report."""
    tokens = [
        {
            "position": token.position,
            "token": found.pieces[token.position].text,
            "token_loss_before": token.loss_before,
            "token_loss": token.loss,
            "top_before": [asdict(each) for each in token.top_before],
            "top": [asdict(each) for each in token.top],
        }
        for token in found.scored
    ]
    return {
        **provenance(found.auxiliary, found.rule, found.choice),
        "engine": found.engine,
        "train_tokens": found.train_tokens,
        "evaluation_tokens": len(found.scored),
        **losses_record(found.loss_before, found.loss),
        "standard_error_of_change": found.standard_error,
        "tokens": tokens,
        "updates": [asdict(update) for update in found.updates],
        "cosines": [asdict(cosine) for cosine in found.cosines],
        "cosines_left_out": found.no_cosines or None,
    }


def _figures(directory: Path) -> list[str]:
    from tintformer.report.drawing import NAMES

    return [str(path) for name in NAMES if (path := directory / f"{name}.png").is_file()]


def _beside(figures: list[str]) -> str:
    from tintformer.analysis.plot_style import WITHOUT_FIGURES, has_matplotlib

    return f"and {len(figures)} figures beside it" if has_matplotlib() else WITHOUT_FIGURES
