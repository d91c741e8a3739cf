"""`learn`: train a model inside the pass on the first part of a text, and predict the rest with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.text import check_context_length, encode
from tintformer.errors import InputError
from tintformer.execution.engine import Engine
from tintformer.learning.rate_selection import RateChoice, RatePoint
from tintformer.learning.rule_making import make_rule, settle_rate, sort_knobs
from tintformer.learning.split import Split
from tintformer.learning.text import given_text
from tintformer.learning.text_model import encode_for_split, open_text_model
from tintformer.learning.tint import Tint
from tintformer.learning.tuned import Tuned
from tintformer.rule.learning_rule import LearningRule
from tintformer.study.learn_result import LearnResult
from tintformer.typed_fields import Range, checked

Settle = Callable[[Tensor, Tensor], tuple[LearningRule, RateChoice | None]]
"""Given the ids and which of them train, the rule to learn by and, if its rate was chosen, from what."""


def learn(
    model: Any,
    text: str | os.PathLike[str],
    *,
    tokenizer: Any = None,
    evaluate: str | os.PathLike[str] | None = None,
    train_fraction: float | None = None,
    train_tokens: int | None = None,
    learning_rate: float | Literal["auto"] | None = None,
    rule: str | LearningRule = "default",
    steps: int | None = None,
    layers: int | None = None,
    engine: str = "fast",
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    tokens: int | None = None,
    generate: int = 0,
    seed: int = 0,
    beyond_context: bool = False,
    on_rate: Callable[[RatePoint], None] | None = None,
    **knobs: Any,
) -> LearnResult:
    """Train a model inside the pass on the first part of a text, and predict the rest with the updated weights.

    Args:
        model: A name, a directory, a model that `load` has opened, or a transformers object with its `tokenizer`.
        text: The text itself, or the path of a file as a `Path`.
        tokenizer: That of a transformers object; others bring their own.
        evaluate: A second text, or its path: then all of `text` trains, and this follows it and is scored.
        train_fraction: Share of the tokens that train, between 0 and 1; half of them by default, as in `tint run`.
        train_tokens: How many train, instead.
        learning_rate: A number, or "auto": chosen inside the training part, which is the default unless `rule` has a
            rate of its own.
        rule: "default", "paper", "full" or a `LearningRule`.
        steps: Gradient steps inside the pass, on top of the rule.
        layers: How many of the top blocks learn, on top of the rule.
        engine: "fast", "simulator", "reference", "oracle" or "network".
        device: For names and directories: "cpu", "cuda", "auto", ...
        dtype: For names and directories: "float32" unless you say otherwise.
        tokens: Cut a long text to so many tokens.
        generate: Continue the text by so many tokens, before and after, into `result.continuation`.
        seed: Of sampling, in `result.generate`.
        beyond_context: Let the text be longer than the model was built for, with rotary positions.
        on_rate: Called with every rate as it is tried.
        **knobs: Other fields of a `LearningRule`, and options of the engine, by name.
    """
    of_rule, options = sort_knobs(engine, knobs)
    split = Split(train_fraction=train_fraction, train_tokens=train_tokens)
    if evaluate is not None and split != Split():
        raise InputError("evaluate says where the training part ends; leave out train_fraction and train_tokens")
    of_rule |= {name: value for name, value in (("steps", steps), ("layers", layers)) if value is not None}
    made, auto = make_rule(rule, learning_rate, of_rule)
    checked("seed", seed, int, InputError)
    checked("tokens", tokens, Annotated[int | None, Range(at_least=1)], InputError)
    content, rest = given_text(text, goes_on=evaluate is not None), None if evaluate is None else given_text(evaluate)
    auxiliary = open_text_model(model, tokenizer, device, dtype)

    def settle(input_ids: Tensor, train_mask: Tensor) -> tuple[LearningRule, RateChoice | None]:
        if not auto:
            return made, None
        return settle_rate(made, auxiliary, input_ids, train_mask, engine=engine, on_point=on_rate)

    return learn_text(
        auxiliary,
        content,
        rest,
        split=split,
        settle=settle,
        engine=engine,
        options=options,
        tokens=tokens,
        generate=generate,
        seed=seed,
        beyond_context=beyond_context,
    )


def learn_text(
    auxiliary: Auxiliary,
    text: str,
    rest: str | None = None,
    *,
    split: Split,
    settle: Settle,
    engine: str = "fast",
    options: Mapping[str, Any] | None = None,
    tokens: int | None = None,
    generate: int = 0,
    seed: int = 0,
    beyond_context: bool = False,
) -> LearnResult:
    """Train on the first part of a text within the pass and score the second, before and after.

    Behind `learn` and `tint run`. All of `text` trains where a `rest` follows it.
    """
    checked("generate", generate, Annotated[int, Range(at_least=0)], InputError)
    encoded, num_train = encode_for_split(
        auxiliary, text, split, rest, tokens=tokens, beyond_context=beyond_context, generate=generate
    )
    text = text if tokens is None else encoded.of(text)
    input_ids = torch.tensor([encoded.input_ids])
    train_mask = torch.arange(input_ids.shape[1])[None] < num_train
    rule, choice = settle(input_ids, train_mask)
    options = options or {}
    tint = Tint(auxiliary, rule, engine=engine, **options)
    tint.rate_is_chosen = choice is not None
    divided_by = {name: value for name, value in options.items() if name == "statistics"}
    out = tint(input_ids, train_mask=train_mask, before=True, logits="none")
    assert out.token_loss_before is not None
    evaluated = out.evaluation_mask[0]
    result = LearnResult(
        auxiliary=auxiliary,
        text=text + (rest or ""),
        encoded=encoded,
        rule=rule,
        choice=choice,
        engine=engine,
        statistics=options.get("statistics"),
        construction=_construction(tint.engine, num_train) if engine == "simulator" else None,
        train_tokens=num_train,
        positions=evaluated.nonzero().flatten(),
        token_loss_before=out.token_loss_before[0][evaluated],
        token_loss=out.token_loss[0][evaluated],
        form_updates=out.updates,
        make_tuned=cache(lambda: Tint(auxiliary, rule, **divided_by).adapt(input_ids[:, :num_train])),
        seed=seed,
    )
    return result.continued(generate)


def _construction(engine: Engine, num_train: int) -> dict[str, Any]:
    """How the simulator was built, with the transposition that this training part was given."""
    from tintformer.simulator.simulator import Simulator

    assert isinstance(engine, Simulator)
    return {**asdict(engine.construction), "transposition": engine.transposition_of(num_train)}


def score_text(
    auxiliary: Auxiliary,
    text: str,
    tuned: Tuned,
    *,
    tokens: int | None = None,
    generate: int = 0,
    beyond_context: bool = False,
) -> LearnResult:
    """Score a whole text with an update that was learnt earlier, and without it; nothing is learnt from it."""
    encoded = encode(auxiliary.tokenizer, text).first(tokens)
    text = text if tokens is None else encoded.of(text)
    check_context_length(auxiliary, len(encoded.input_ids), beyond_context, generate)
    input_ids = torch.tensor([encoded.input_ids])
    before, after = Tuned.untrained(auxiliary).score(input_ids), tuned.score(input_ids)
    evaluated = after.evaluation_mask[0]
    result = LearnResult(
        auxiliary=auxiliary,
        text=text,
        encoded=encoded,
        rule=tuned.rule,
        choice=None,
        engine="fast",
        train_tokens=0,
        positions=evaluated.nonzero().flatten(),
        token_loss_before=before.token_loss[0][evaluated],
        token_loss=after.token_loss[0][evaluated],
        form_updates=tuned.updates,
        make_tuned=lambda: tuned,
    )
    return result.continued(generate)
