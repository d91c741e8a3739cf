"""`tint report`: what a pass changed, as a page for the browser and as figures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import (
    BeyondContext,
    Device,
    Dtype,
    Json,
    Model,
    RuleOptions,
    Statistics,
    Text,
    TokensOption,
    with_rule_options,
)
from tintformer.cli.rule_setup import (
    choose_rule,
    finite,
    losses_record,
    open_model,
    print_losses,
    print_rate,
    provenance,
    shown,
    warnings_as_lines,
)
from tintformer.console import doing, print_json, say
from tintformer.learning.split import TRAIN_FRACTION, Split

if TYPE_CHECKING:
    from tintlab.methods.fine_tuning import FineTuned
    from tintlab.reports import Report


@with_rule_options
def report(
    model: Model,
    text: Text = None,
    *,
    rule: RuleOptions,
    statistics: Statistics = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory for report.html and the figures (PNG).")],
    file: Annotated[Path | None, typer.Option(help="Read the text from a file; - is standard input.")] = None,
    train_fraction: Annotated[
        float | None, typer.Option(help=f"Share of the text that is trained on; {TRAIN_FRACTION} by default.")
    ] = None,
    train_tokens: Annotated[int | None, typer.Option(help="Number of tokens that are trained on, instead.")] = None,
    tokens: TokensOption = None,
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
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also fine-tune the model itself by autograd, at its own rate.")
    ] = False,
    generate: Annotated[
        int, typer.Option(min=0, help="Continue the text by so many tokens, greedily, before and after.")
    ] = 0,
    beyond_context: BeyondContext = False,
    json: Json = False,
) -> None:
    """Do what `tint run` does, and write a page that shows what changed, token by token and inside of the model."""
    from tintformer.auxiliary.text import check_context_length
    from tintformer.learning.text import encode, find_tokenizer, read_text
    from tintlab.reports import check_directory, collect, write

    split = Split(train_fraction=train_fraction, train_tokens=train_tokens)
    rule.build()
    check_directory(output)
    content = read_text(text, file)
    with warnings_as_lines():
        import torch

        auxiliary, tokenizer = open_model(model, dtype, device), find_tokenizer(model)
        encoded = encode(tokenizer, content).first(tokens)
        check_context_length(auxiliary, len(encoded.input_ids), beyond_context, generate)
        input_ids = torch.tensor([encoded.input_ids])
        num_train = split.of(len(encoded.input_ids))
        train_mask = torch.arange(len(encoded.input_ids))[None] < num_train
        settled, choice = choose_rule(rule, auxiliary, input_ids, train_mask, engine=engine)
        found = collect(
            auxiliary,
            settled,
            content if tokens is None else encoded.of(content),
            encoded,
            tokenizer,
            train_tokens=num_train,
            name=text_name(text, file),
            engine=engine,
            choice=choice,
            statistics=statistics,
            cosine=cosine,
            baseline=baseline,
            generate=generate,
            progress=lambda text, _: doing(text),
        )
        doing("drawing")
        path = write(found, output)
    record: dict[str, Any] = {**report_record(found), "output": str(path), "figures": _figures(output)}
    if json:
        print_json(record)
    else:
        _print(record)


def _print(record: dict[str, Any]) -> None:
    title = f"{record['model']}, trained on {record['train_tokens']} tokens, evaluated on {record['evaluation_tokens']}"
    print_losses(record, f"{title} tokens")
    print_rate(record)
    if (tuned := record["baseline"]) is not None:
        losses = f"{shown(tuned['loss'])} nats per token, perplexity {shown(tuned['perplexity'])}"
        say(f"explicit fine-tuning at its own rate, {tuned['learning_rate']:.3g}: {losses}")
    say(f"wrote {record['output']} {_beside(record['figures'])}")


def text_name(text: str | None, file: Path | None) -> str | None:
    """What the text is called; None if it was given as such."""
    if "-" in (text, str(file)):
        return "standard input"
    return None if file is None else file.name


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
        "text": found.name,
        "engine": found.engine,
        "train_tokens": found.train_tokens,
        "evaluation_tokens": len(found.scored),
        **losses_record(found.loss_before, found.loss),
        "standard_error_of_change": found.standard_error,
        "tokens": tokens,
        "updates": [asdict(update) for update in found.updates],
        "cosines": [asdict(cosine) for cosine in found.cosines],
        "cosines_left_out": found.no_cosines or None,
        "baseline": None if found.baseline is None else baseline_record(found.baseline),
        "continuations": None if found.continuations is None else asdict(found.continuations),
    }


def baseline_record(tuned: FineTuned) -> dict[str, Any]:
    """The numbers of explicit fine-tuning; what has diverged is null."""
    loss = finite(tuned.loss)
    return {
        "learning_rate": tuned.choice.rate,
        "steps": tuned.steps,
        "loss": loss,
        "perplexity": None if loss is None else losses_record(loss, loss)["perplexity"],
        "token_loss": [finite(each) for each in tuned.losses],
    }


def _figures(directory: Path) -> list[str]:
    from tintlab.reports.drawing import NAMES

    return [str(path) for name in NAMES if (path := directory / f"{name}.png").is_file()]


def _beside(figures: list[str]) -> str:
    from tintlab.show.plot_style import WITHOUT_FIGURES, has_matplotlib

    return f"and {len(figures)} figures beside it" if has_matplotlib() else WITHOUT_FIGURES
