"""`tint run`: train a model inside the pass on the first part of a text, and predict the rest with it."""

from __future__ import annotations

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
    given_names,
    with_construction_options,
    with_rule_options,
)
from tintformer.cli.rule_setup import (
    choose_rule,
    losses_record,
    open_model,
    print_losses,
    print_rate,
    provenance,
    shown,
    warnings_as_lines,
)
from tintformer.console import print_json, print_table, say
from tintformer.errors import InputError
from tintformer.learning.split import TRAIN_FRACTION, Split

if TYPE_CHECKING:
    from tintformer.study.learn_result import LearnResult


@with_construction_options
@with_rule_options
def run(
    model: Model,
    text: Text = None,
    *,
    rule: RuleOptions,
    knobs: dict[str, Any],
    statistics: Statistics = None,
    file: Annotated[Path | None, typer.Option(help="Read the text from a file; - is standard input.")] = None,
    train_fraction: Annotated[
        float | None, typer.Option(help=f"Share of the text that is trained on; {TRAIN_FRACTION} by default.")
    ] = None,
    train_tokens: Annotated[int | None, typer.Option(help="Number of tokens that are trained on, instead.")] = None,
    tokens: TokensOption = None,
    adapted: Annotated[
        Path | None, typer.Option(help="Use an update of `tint adapt` and train no further: all of the text is scored.")
    ] = None,
    engine: Annotated[str, typer.Option(help="fast, simulator, reference or oracle; they agree.")] = "fast",
    dtype: Dtype = "float32",
    device: Device = None,
    generate: Annotated[
        int, typer.Option(min=0, help="Continue the text by so many tokens, greedily, before and after.")
    ] = 0,
    top: Annotated[int, typer.Option(min=0, help="How many of the most changed tokens to show.")] = 8,
    beyond_context: BeyondContext = False,
    json: Json = False,
) -> None:
    """Train a model inside the pass on the first part of a text, and predict the rest with the updated weights."""
    from tintformer.learning.text import read_text

    split = Split(train_fraction=train_fraction, train_tokens=train_tokens)
    rule.build()
    if statistics is not None:
        knobs = {**knobs, "statistics": statistics}
    if adapted is None:
        _check_knobs(engine, knobs, rule)
    else:
        training = given_names({**knobs, **rule}, train_fraction=train_fraction, train_tokens=train_tokens)
        _check_adapted(adapted, training)
    content = read_text(text, file)
    with warnings_as_lines():
        auxiliary = open_model(model, dtype, device)
        from tintformer.learning.tuned import Tuned
        from tintformer.study.learn import learn_text, score_text

        if adapted is None:
            result = learn_text(
                auxiliary,
                content,
                split=split,
                settle=lambda ids, train: choose_rule(rule, auxiliary, ids, train, engine=engine),
                engine=engine,
                options=knobs,
                tokens=tokens,
                generate=generate,
                beyond_context=beyond_context,
            )
        else:
            update = Tuned.load(adapted, auxiliary)
            result = score_text(
                auxiliary, content, update, tokens=tokens, generate=generate, beyond_context=beyond_context
            )
    record = run_record(result, adapted, top)
    if json:
        print_json(record)
    else:
        print_run(record)


def run_record(result: LearnResult, adapted: Path | None, top: int) -> dict[str, Any]:
    """What became of the text, for programs."""
    return {
        **provenance(result.auxiliary, result.rule, result.choice),
        "engine": result.engine,
        "construction": result.construction,
        "adapted": None if adapted is None else str(adapted),
        "train_tokens": result.train_tokens,
        "evaluation_tokens": result.evaluation_tokens,
        **losses_record(result.loss_before, result.loss),
        "tokens": most_changed(result, top),
        "continuation_before": None if result.continuation is None else result.continuation.before,
        "continuation": None if result.continuation is None else result.continuation.after,
    }


def _check_adapted(adapted: Path, training: list[str]) -> None:
    if training:
        raise InputError(f"--adapted trains no further, so leave out {', '.join(training)}")
    if not adapted.is_file():
        raise InputError(f"there is no file {adapted}; write one with `tint adapt`")


def _check_knobs(engine: str, knobs: dict[str, Any], rule: RuleOptions) -> None:
    """Refuse an unknown engine, and knobs and rules that it does not have, before a rate is looked for."""
    from tintformer.learning.engine_registry import check_options, check_rule

    check_options(engine, knobs)
    check_rule(engine, rule.build())


def most_changed(result: LearnResult, top: int) -> list[dict[str, Any]]:
    """The tokens whose loss changed most, the largest change first."""
    from tintformer.learning.words import Passage

    before, after = result.token_loss_before, result.token_loss
    order = (after - before).abs().argsort(descending=True)[:top].tolist()
    positions, passage = result.positions.tolist(), Passage(result.encoded.tokens)
    return [
        {
            "position": positions[index],
            "token": result.encoded.tokens[positions[index]],
            "in_context": str(passage.at(positions[index])),
            "token_loss_before": float(before[index]),
            "token_loss": float(after[index]),
        }
        for index in order
    ]


def print_run(record: dict[str, Any]) -> None:
    """The record for people."""
    adapted = record["adapted"]
    how = f"trained on {record['train_tokens']} tokens" if adapted is None else f"with {adapted}"
    print_losses(record, f"{record['model']}, {how}, evaluated on {record['evaluation_tokens']} tokens")
    if adapted is None:
        print_rate(record)
    if (made := record["construction"]) is not None:
        say(f"simulator: layout {made['layout']}, attention {made['attention']}, transposition {made['transposition']}")
    if record["tokens"]:
        rows = [
            {
                "position": token["position"],
                "token": repr(token["token"]),
                "in context": token["in_context"],
                "nats before": shown(token["token_loss_before"]),
                "after": shown(token["token_loss"]),
                "change": f"{token['token_loss'] - token['token_loss_before']:+.4f}",
            }
            for token in record["tokens"]
        ]
        say("tokens with the largest change of loss")
        print_table(rows)
    if record["continuation"] is not None:
        say(f"continuation before: {record['continuation_before']}")
        say(f"continuation after: {record['continuation']}")
