"""`collect`: run a text and gather what a report shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.console import Progress
from tintformer.engines.fast import FastEngine
from tintformer.engines.oracle import OracleEngine
from tintformer.errors import InputError
from tintformer.execution.batch import Batch
from tintformer.execution.output import TintOutput
from tintformer.learning.gradient_statistics import settle_statistics
from tintformer.learning.rate_selection import RateChoice
from tintformer.learning.text import Encoded, decode, decode_continuation
from tintformer.learning.tint import Tint
from tintformer.learning.tuned import Tuned
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import trainable_weights
from tintformer.study.coloured import Piece, cut
from tintlab.checks.verify.first_blocks import in_float64
from tintlab.checks.verify.gradients import Gradients, compare, parameters, rate_of_share, simulated_gradient
from tintlab.checks.verify.lockstep import split_name
from tintlab.checks.verify.verify_settings import SHARE
from tintlab.methods.fine_tuning import FineTuned, fine_tune
from tintlab.show.intervals import standard_error

ALTERNATIVES = 5
"""The most likely tokens that are kept of each prediction."""
LIMIT = 150_000_000
"""Parameters up to which cosines are computed unasked: they take a copy of the model and two gradients in float64."""


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A token that could have come next."""

    word: str
    probability: float
    actual: bool
    """Whether it is the token that did come."""


@dataclass(frozen=True, kw_only=True)
class ScoredToken:
    """One token of the evaluation part, and what was predicted in its place."""

    position: int
    loss_before: float
    """In nats."""
    loss: float
    top_before: tuple[Alternative, ...]
    """The most likely tokens, best first."""
    top: tuple[Alternative, ...]

    @property
    def change(self) -> float:
        return self.loss - self.loss_before


@dataclass(frozen=True, kw_only=True)
class UpdateNorm:
    """How far the parameters of one op have moved."""

    layer: int | None
    """Its block; None outside of them."""
    matrix: str
    """The op: `value`, `up`, `final.norm`; a bias belongs to its matrix."""
    norm: float
    """Root of the summed squares of the change."""
    relative: float | None
    """The same, relative to the parameters that moved; None where those were zero."""


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """How a gradient lies to the exact one; None where one of them is zero."""

    layer: int | None
    """The block; None for all of them and the final norm together."""
    moved: float | None
    """Over the parameters that the rule moves."""
    everything: float | None
    """Over all parameters, with zeros for those that stand still."""


@dataclass(frozen=True, kw_only=True)
class Continuations:
    """How the text goes on by the model's own choice, greedily."""

    num_tokens: int
    """As many as were asked for; a model may end earlier."""
    before: str
    after: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Report:
    """What a report shows."""

    name: str
    """Of the text."""
    auxiliary: Auxiliary
    rule: LearningRule
    engine: str
    choice: RateChoice | None
    """What the rate was chosen from; None if it was given."""
    train_tokens: int
    pieces: tuple[Piece, ...]
    """The whole text, token by token."""
    scored: tuple[ScoredToken, ...]
    """The evaluation part."""
    updates: tuple[UpdateNorm, ...]
    cosines: tuple[Cosine, ...]
    """The whole first, then the blocks; empty if they were left out."""
    no_cosines: str
    """Why they were left out."""
    baseline: FineTuned | None = None
    """Explicit fine-tuning on the same training part, if it was asked for."""
    continuations: Continuations | None = None
    """If they were asked for."""

    @property
    def loss_before(self) -> float:
        """Mean over the evaluation part, in nats per token."""
        return math.fsum(token.loss_before for token in self.scored) / len(self.scored)

    @property
    def loss(self) -> float:
        return math.fsum(token.loss for token in self.scored) / len(self.scored)

    @property
    def change(self) -> float:
        """Negative where the pass has helped."""
        return self.loss - self.loss_before

    @property
    def standard_error(self) -> float | None:
        """Of the mean change of loss, over tokens; None for a single one."""
        changes = [token.change for token in self.scored]
        return standard_error(changes) if len(changes) > 1 else None


def collect(
    auxiliary: Auxiliary,
    rule: LearningRule,
    text: str,
    encoded: Encoded,
    tokenizer: Any,
    *,
    train_tokens: int,
    name: str | None = None,
    engine: str = "fast",
    choice: RateChoice | None = None,
    statistics: Any = None,
    cosine: bool | None = None,
    baseline: bool = False,
    generate: int = 0,
    progress: Progress = lambda text, share: None,
) -> Report:
    """Train on the first `train_tokens` of a text inside the pass, score the rest before and after, and look inside.

    `name` is what the text is called; without one it goes by its first words. `statistics` are what
    `optimizer="rms"` divides by. `cosine` says whether the rule's gradient is compared with the exact one; None leaves
    that out for a large model. `baseline` also fine-tunes the model itself
    by autograd, at its own rate, and `generate` continues the text by so many tokens, before and after.
    """
    progress("running the text", 0.0)
    input_ids = torch.tensor([encoded.input_ids])
    train_mask = torch.arange(input_ids.shape[1])[None] < train_tokens
    statistics = settle_statistics(statistics, auxiliary, rule)
    divided_by: dict[str, Any] = {} if statistics is None else {"statistics": statistics}
    tint = Tint(auxiliary, rule, engine=engine, **divided_by)
    tint.rate_is_chosen = choice is not None
    out = tint(input_ids, train_mask=train_mask, before=True, logits="evaluation")
    if not bool(out.evaluation_mask.any()):
        raise InputError(f"all {input_ids.shape[1]} tokens are trained on; leave at least 1 to evaluate")
    scored = tuple(_scored(out, input_ids, Words(tokenizer)))
    progress("measuring the update", 0.4)
    updates = tuple(update_norms(auxiliary, rule, out.updates()))
    reason = _no_cosines(auxiliary, cosine)
    progress("comparing with the exact gradient", 0.5)
    batch = Batch.of(auxiliary, input_ids, train_mask=train_mask)
    measured = () if reason else cosines(auxiliary, rule, batch, statistics)
    progress("fine-tuning the model itself", 0.7)
    tuned = fine_tune(auxiliary, input_ids, train_tokens, steps=rule.steps) if baseline else None
    progress("continuing the text", 0.9)
    continued = None
    if generate:
        tuned_inside = Tint(auxiliary, rule, **divided_by).adapt(input_ids[:, :train_tokens])
        continued = continuations(tuned_inside, input_ids, tokenizer, generate)
    return Report(
        name=name_of(text) if name is None else name,
        auxiliary=auxiliary,
        rule=rule,
        engine=engine,
        choice=choice,
        train_tokens=train_tokens,
        pieces=cut(text, encoded.tokens),
        scored=scored,
        updates=updates,
        cosines=measured,
        no_cosines=reason,
        baseline=tuned,
        continuations=continued,
    )


def continuations(tuned: Tuned, input_ids: Tensor, tokenizer: Any, num_tokens: int) -> Continuations:
    """The most likely next tokens after the whole text, by the model as it is and with what the pass has learnt."""
    models = Tuned.untrained(tuned.auxiliary), tuned
    before, after = (
        decode_continuation(tokenizer, ids[0].tolist(), input_ids.shape[1])
        for ids in (model.generate(input_ids, max_new_tokens=num_tokens, do_sample=False) for model in models)
    )
    return Continuations(num_tokens=num_tokens, before=before, after=after)


def _scored(out: TintOutput, input_ids: Tensor, words: Words) -> Iterator[ScoredToken]:
    assert out.token_loss_before is not None
    evaluated = out.evaluation_mask
    targets: list[int] = input_ids.to(evaluated.device)[evaluated].tolist()
    positions: list[int] = evaluated[0].nonzero().flatten().tolist()
    tops = [_top(logits, targets, words) for logits in (out.logits_before, out.logits)]
    before: list[float] = out.token_loss_before[evaluated].tolist()
    after: list[float] = out.token_loss[evaluated].tolist()
    for row, position in enumerate(positions):
        yield ScoredToken(
            position=position,
            loss_before=before[row],
            loss=after[row],
            top_before=tops[0][row],
            top=tops[1][row],
        )


def _top(logits: Tensor | None, targets: list[int], words: Words) -> list[tuple[Alternative, ...]]:
    """The most likely tokens of each prediction; a row at a time, so that no second copy of all logits is made."""
    assert logits is not None
    found: list[tuple[Alternative, ...]] = []
    for row, target in zip(logits, targets, strict=True):
        best = row.float().softmax(-1).topk(min(ALTERNATIVES, row.shape[0]))
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        found.append(
            tuple(
                Alternative(word=words.of(token), probability=value, actual=token == target) for value, token in pairs
            )
        )
    return found


def update_norms(auxiliary: Auxiliary, rule: LearningRule, updates: dict[str, Tensor]) -> Iterator[UpdateNorm]:
    """The norm of every op's update, in the order of the forward pass; `updates` by Hugging Face's names."""
    moving = set(trainable_weights(rule, auxiliary))
    squares: dict[str, tuple[float, float]] = {}
    for name, weight in parameters(auxiliary):
        if weight in moving:
            op = name.rpartition(".")[0]
            change, size = squares.get(op, (0.0, 0.0))
            moved = replace(weight, source=updates[weight.name]).read()
            squares[op] = change + _square(moved), size + _square(weight.read())
    for op, (change, size) in squares.items():
        layer, matrix = split_name(op)
        norm = math.sqrt(change)
        relative = norm / math.sqrt(size) if size > 0 else None
        yield UpdateNorm(layer=layer, matrix=matrix, norm=norm, relative=relative)


def _square(tensor: Tensor) -> float:
    return float(tensor.double().square().sum())


def _no_cosines(auxiliary: Auxiliary, cosine: bool | None) -> str:
    """Why the cosines are left out; empty if they are not."""
    if cosine is False:
        return "It was not asked for (--no-cosine)."
    size = auxiliary.model.num_parameters()
    if cosine is None and size > LIMIT:
        return (
            f"The model has {size / 1e6:.0f} million parameters; above {LIMIT // 10**6} million the exact gradient, "
            "which takes several copies of it in float64, is computed only when asked for (--cosine)."
        )
    return ""


def cosines(
    auxiliary: Auxiliary, rule: LearningRule, batch: Batch, statistics: Mapping[str, Tensor] | None = None
) -> tuple[Cosine, ...]:
    """The whole first, then block by block: the first step of `rule` against autograd in float64, on the same loss."""
    precise = in_float64(auxiliary)
    exact = LearningRule.full(learning_rate=1.0, loss=rule.loss)
    truth = simulated_gradient(precise, exact, batch, OracleEngine(precise, exact))
    # Rate and steps of the rule do not matter to the direction of its first step.
    step = replace(rule, steps=1, reduction="sum", learning_rate=rate_of_share(auxiliary, truth, SHARE))
    found = simulated_gradient(auxiliary, step, batch, FastEngine(auxiliary, step, statistics=statistics))
    moving = set(trainable_weights(rule, auxiliary))
    moved = {name for name, weight in parameters(auxiliary) if weight in moving}
    layers = [None, *range(len(auxiliary.blocks))]
    return tuple(_cosine(layer, found, truth, moved) for layer in layers)


def _cosine(layer: int | None, found: Gradients, truth: Gradients, moved: set[str]) -> Cosine:
    names = [name for name in truth if layer is None or split_name(name)[0] == layer]
    some = [name for name in names if name in moved]
    of_some, of_all = (
        compare([found[name] for name in each], [truth[name] for name in each]).cosine for each in (some, names)
    )
    return Cosine(layer=layer, moved=of_some, everything=of_all)


LONGEST_NAME = 48
"""Characters of a name that a text gets from its first words."""


def name_of(text: str) -> str:
    """What a text without a name is called: its first words, in quotes."""
    opening = " ".join(text[: 4 * LONGEST_NAME].split())
    if len(opening) <= LONGEST_NAME:
        return f"\N{LEFT DOUBLE QUOTATION MARK}{opening}\N{RIGHT DOUBLE QUOTATION MARK}"
    words = opening[:LONGEST_NAME].rpartition(" ")[0] or opening[:LONGEST_NAME]
    return f"\N{LEFT DOUBLE QUOTATION MARK}{words} \N{HORIZONTAL ELLIPSIS}\N{RIGHT DOUBLE QUOTATION MARK}"


class Words:
    """The text of a vocabulary's entries, a leading space included."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.of = cache(self._of)

    def _of(self, token: int) -> str:
        stored = self.tokenizer.convert_ids_to_tokens(token)
        if stored is None:  # the matrix of the head may have more rows than the tokenizer has entries
            return f"[{token}]"
        word = decode(self.tokenizer, [token])
        # sentencepiece drops the space of a token that it decodes alone
        spaced = str(stored).startswith("\u2581") and not word.startswith(" ")
        return f" {word}" if spaced else word or str(stored)
