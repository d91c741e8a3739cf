"""`tint run`: train a model inside the pass on the first part of a text, and predict the rest with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
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
    Text,
    given_names,
    with_construction_options,
    with_rule_options,
)
from tintformer.cli.rule_setup import (
    check_context_length,
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

if TYPE_CHECKING:
    import torch

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.execution.engine import Engine
    from tintformer.learning.rate_selection import RateChoice
    from tintformer.learning.text import Encoded
    from tintformer.learning.tuned import Tuned
    from tintformer.rule.learning_rule import LearningRule

TRAIN_FRACTION = 0.5


@dataclass(frozen=True, kw_only=True)
class Split:
    """How much of a text is trained on: a number of tokens, or a fraction of them."""

    train_fraction: float | None = None
    train_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.train_fraction is not None and self.train_tokens is not None:
            raise InputError("--train-fraction and --train-tokens say the same thing; give one of them")
        if self.train_fraction is not None and not 0 < self.train_fraction < 1:
            raise InputError(f"--train-fraction {self.train_fraction:g} must lie between 0 and 1")
        if self.train_tokens is not None and self.train_tokens < 2:
            raise InputError(f"--train-tokens {self.train_tokens} must be at least 2: a token and the next one")

    def of(self, num_tokens: int) -> int:
        """The number of training tokens; a target to train on and a token to evaluate must be left."""
        fraction = TRAIN_FRACTION if self.train_fraction is None else self.train_fraction
        train = round(fraction * num_tokens) if self.train_tokens is None else self.train_tokens
        if not 2 <= train < num_tokens:
            raise InputError(
                f"the training part would be {train} of {num_tokens} tokens; it needs at least 2, "
                "and 1 must be left to evaluate"
            )
        return train


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """What became of one text."""

    rule: LearningRule
    choice: RateChoice | None
    train_tokens: int
    positions: torch.Tensor
    """Where the evaluated tokens stand, `[evaluated]`; their losses below."""
    before: torch.Tensor
    after: torch.Tensor
    tuned: Callable[[], Tuned]
    """The updated model, made when something is to be generated."""
    construction: dict[str, Any] | None = None
    """How the simulator was built, if it ran, with the transposition that this training part was given."""


@with_construction_options
@with_rule_options
def run(
    model: Model,
    text: Text = None,
    *,
    rule: RuleOptions,
    knobs: dict[str, Any],
    file: Annotated[Path | None, typer.Option(help="Read the text from a file; - is standard input.")] = None,
    train_fraction: Annotated[
        float | None, typer.Option(help=f"Share of the text that is trained on; {TRAIN_FRACTION} by default.")
    ] = None,
    train_tokens: Annotated[int | None, typer.Option(help="Number of tokens that are trained on, instead.")] = None,
    adapted: Annotated[
        Path | None, typer.Option(help="Use an update of `tint adapt` and train no further: all of the text is scored.")
    ] = None,
    engine: Annotated[str, typer.Option(help="fast, simulator, reference or oracle; they agree.")] = "fast",
    dtype: Dtype = "float32",
    device: Device = None,
    generate: Annotated[int, typer.Option(min=0, help="Continue the text by so many tokens, greedily.")] = 0,
    top: Annotated[int, typer.Option(min=0, help="How many of the most changed tokens to show.")] = 8,
    beyond_context: BeyondContext = False,
    json: Json = False,
) -> None:
    """Train a model inside the pass on the first part of a text, and predict the rest with the updated weights."""
    from tintformer.learning.text import encode, find_tokenizer, read_text

    split = Split(train_fraction=train_fraction, train_tokens=train_tokens)
    rule.build()
    if adapted is None:
        _check_knobs(engine, knobs)
    else:
        training = given_names({**knobs, **rule}, train_fraction=train_fraction, train_tokens=train_tokens)
        _check_adapted(adapted, training)
    content = read_text(text, file)
    with warnings_as_lines():
        auxiliary, tokenizer = open_model(model, dtype, device), find_tokenizer(model)
        encoded = encode(tokenizer, content)
        check_context_length(auxiliary, len(encoded.input_ids), beyond_context, generate)
        if adapted is None:
            result = train_inside(auxiliary, encoded, split, rule, engine, knobs)
        else:
            engine, result = "fast", use_update(auxiliary, encoded, adapted)
        record = {
            **provenance(auxiliary, result.rule, result.choice),
            "engine": engine,
            "construction": result.construction,
            "adapted": None if adapted is None else str(adapted),
            "train_tokens": result.train_tokens,
            "evaluation_tokens": len(result.positions),
            **losses_record(float(result.before.mean()), float(result.after.mean())),
            "tokens": most_changed(result, encoded, top),
            "continuation": continuation(result, encoded, tokenizer, generate) if generate else None,
        }
    if json:
        print_json(record)
    else:
        print_run(record)


def _check_adapted(adapted: Path, training: list[str]) -> None:
    if training:
        raise InputError(f"--adapted trains no further, so leave out {', '.join(training)}")
    if not adapted.is_file():
        raise InputError(f"there is no file {adapted}; write one with `tint adapt`")


def _check_knobs(engine: str, knobs: dict[str, Any]) -> None:
    """Refuse an unknown engine and knobs that it does not have, before a rate is looked for."""
    from tintformer.learning.engine_registry import check_options

    check_options(engine, knobs)


def train_inside(
    auxiliary: Auxiliary, encoded: Encoded, split: Split, options: RuleOptions, engine: str, knobs: dict[str, Any]
) -> Result:
    """Train on the first part within the pass and score the second, before and after."""
    import torch

    from tintformer.learning.tint import Tint

    input_ids = torch.tensor([encoded.input_ids])
    num_train = split.of(input_ids.shape[1])
    train_mask = torch.arange(input_ids.shape[1])[None] < num_train
    rule, choice = choose_rule(options, auxiliary, input_ids, train_mask, engine=engine)
    tint = Tint(auxiliary, rule, engine=engine, **knobs)
    out = tint(input_ids, train_mask=train_mask, before=True, logits="none")
    assert out.token_loss_before is not None
    evaluated = out.evaluation_mask[0]
    return Result(
        rule=rule,
        choice=choice,
        train_tokens=num_train,
        positions=evaluated.nonzero().flatten(),
        before=out.token_loss_before[0][evaluated],
        after=out.token_loss[0][evaluated],
        tuned=lambda: Tint(auxiliary, rule).adapt(input_ids[:, :num_train]),
        construction=_construction(tint.engine, num_train) if engine == "simulator" else None,
    )


def _construction(engine: Engine, num_train: int) -> dict[str, Any]:
    from tintformer.simulator.simulator import Simulator

    assert isinstance(engine, Simulator)
    return {**asdict(engine.construction), "transposition": engine.transposition_of(num_train)}


def use_update(auxiliary: Auxiliary, encoded: Encoded, path: Path) -> Result:
    """Score the whole text with an update that was learnt earlier, and without it."""
    import torch

    from tintformer.learning.tuned import Tuned

    input_ids = torch.tensor([encoded.input_ids])
    tuned = Tuned.load(path, auxiliary)
    before, after = Tuned.untrained(auxiliary).score(input_ids), tuned.score(input_ids)
    evaluated = after.evaluation_mask[0]
    return Result(
        rule=tuned.rule,
        choice=None,
        train_tokens=0,
        positions=evaluated.nonzero().flatten(),
        before=before.token_loss[0][evaluated],
        after=after.token_loss[0][evaluated],
        tuned=lambda: tuned,
    )


def most_changed(result: Result, encoded: Encoded, top: int) -> list[dict[str, Any]]:
    """The tokens whose loss changed most, the largest change first."""
    order = (result.after - result.before).abs().argsort(descending=True)[:top].tolist()
    positions = result.positions.tolist()
    return [
        {
            "position": positions[index],
            "token": encoded.tokens[positions[index]],
            "token_loss_before": float(result.before[index]),
            "token_loss": float(result.after[index]),
        }
        for index in order
    ]


def continuation(result: Result, encoded: Encoded, tokenizer: Any, num_tokens: int) -> str:
    """The most likely next tokens after the whole text, one by one, with the updated weights."""
    import torch

    from tintformer.learning.text import decode_continuation

    input_ids = torch.tensor([encoded.input_ids])
    ids = result.tuned().generate(input_ids, max_new_tokens=num_tokens, do_sample=False)
    return decode_continuation(tokenizer, ids[0].tolist(), input_ids.shape[1])


def print_run(record: dict[str, Any]) -> None:
    """The record for people."""
    adapted = record["adapted"]
    how = f"trained on {record['train_tokens']} tokens" if adapted is None else f"with {adapted}"
    print_losses(record, f"{record['model']}, {how}, evaluated on {record['evaluation_tokens']} tokens")
    if adapted is None:
        print_rate(record)
    if (made := record["construction"]) is not None:
        print(
            f"simulator: layout {made['layout']}, attention {made['attention']}, transposition {made['transposition']}"
        )
    if record["tokens"]:
        rows = [
            {
                "position": token["position"],
                "token": repr(token["token"]),
                "nats before": shown(token["token_loss_before"]),
                "after": shown(token["token_loss"]),
                "change": f"{token['token_loss'] - token['token_loss_before']:+.4f}",
            }
            for token in record["tokens"]
        ]
        say("tokens with the largest change of loss")
        print_table(rows)
    if record["continuation"] is not None:
        say(f"continuation: {record['continuation']}")
