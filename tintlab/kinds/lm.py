"""Language modelling: train on the first share of a block of text, score the rest of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from tintformer.errors import DivergenceError, InputError
from tintformer.rule.learning_rule import LearningRule
from tintlab.data.models import OpenModel, open_model
from tintlab.data.texts import Block, TextSet, load_texts
from tintlab.methods.methods import learn_each, learn_once
from tintlab.methods.shared_gradients import SharedGradients, knows_no_rate
from tintlab.study.experiment import ChosenOn, Experiment, require_within
from tintlab.study.store import UnitResult

if TYPE_CHECKING:
    from torch import Tensor

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.execution.output import Logits, TintOutput
    from tintformer.learning.rate_search import RatePoint

MAX_SEED = 2**128
_TRIED, _ONCE = SharedGradients(many_rates=True), SharedGradients(many_rates=False)
"""Of blocks that are tried at many rates, and of those that each method learns from at one."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelling(Experiment):
    """One model on one text, by several methods, each at the rate that is best on blocks of its own."""

    kind: ClassVar[str] = "lm"
    version: ClassVar[int] = 1
    """Raised by hand when a number of these units changes."""

    data: str
    """A shipped description, a YAML file, or a text file or directory."""
    shares: tuple[float, ...] = (0.3, 0.5, 0.7, 0.9)
    """Of each block that is trained on; the rest is scored."""
    length: int = 1024
    """Tokens of a block, never more than the model's context. Short blocks leave little to learn from."""
    blocks: int | None = None
    """How many are scored, drawn from all over the text: more of them are the same and others. None: all but those
    that choose rates, also where there is no rate to choose. Few give wide intervals."""
    tuning: int = 8
    """How many choose the rates; they are not scored. Few make the choice a guess."""
    seed: int = 0
    """Draws the blocks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_within("length", self.length, 2)
        require_within("blocks", self.blocks, 1)
        require_within("tuning", self.tuning, 0)
        require_within("seed", self.seed, 0, MAX_SEED)
        if not self.shares:
            raise InputError("there are no shares of a block to train on; give one at least")
        for share in self.shares:
            if not 0 < share < 1:
                raise InputError(f"a share of {share:g} is trained on; it must lie between 0 and 1")
        if self.tuning < 1 and self.tunes:
            raise InputError("rates are chosen on tuning blocks; give at least one, or a single rate")

    @property
    def tunes(self) -> bool:
        """Whether there is a rate to choose on blocks of its own."""
        learns = any(method.chooses_rate for method in self.compared().values())
        return self.chosen_on == "tuning" and not self.has_one_rate and learns

    def shares_gradients(self, method: str) -> bool:
        rule = self.rule(method, 0.0)
        return isinstance(rule, LearningRule) and knows_no_rate(rule, self.engine)

    def identity(self, unit: LanguageUnit) -> dict[str, Any]:
        opened = open_language(self)
        rule = self.rule(unit.method, unit.rate)
        return {
            "model": opened.model.identity,
            "rule": rule and asdict(rule),
            "engine": rule and self.engine,
            "data": opened.texts.identity,
            "length": opened.length,
            "train_tokens": unit.num_train,
            "blocks": list(unit.blocks),
        }

    def settings(self) -> list[float]:
        """The shares: each has rates of its own."""
        for share in self.shares:
            num_train, length = self.num_train(share), open_language(self).length
            if not 2 <= num_train < length:
                raise InputError(f"a share of {share:g} trains on {num_train} of {length} tokens; 2 are the least")
        return list(self.shares)

    def num_train(self, share: float) -> int:
        """Tokens of a block that a share of it is."""
        return round(share * open_language(self).length)

    def num_targets(self, setting: float) -> int:
        return self.num_train(setting) - 1

    def units(self, setting: float, method: str, rate: float, part: ChosenOn) -> list[LanguageUnit]:
        """A block each, of those that choose rates or of those that are scored: whatever run has a block, its record
        serves."""
        opened, num_train = open_language(self), self.num_train(setting)
        return [
            LanguageUnit(method=method, rate=rate, num_train=num_train, blocks=(block,))
            for block in (opened.tuning if part == "tuning" else opened.scored)
        ]

    def run(self, unit: LanguageUnit) -> UnitResult:
        """Losses of blocks, summed over the scored tokens of each, in nats."""
        import torch

        torch.set_num_threads(self.threads)
        opened = open_language(self)
        blocks = [opened.blocks[at] for at in unit.blocks]
        ids = torch.tensor([block.ids for block in blocks])
        losses = self._losses(opened.model.auxiliary, ids, unit)
        return {
            "nats": losses.double().sum(1).tolist(),
            "tokens": len(blocks[0]) - unit.num_train,
            "words": [sum(block.num_words[unit.num_train :]) for block in blocks],
            "bytes": [sum(block.num_bytes[unit.num_train :]) for block in blocks],
        }

    def _losses(self, auxiliary: Auxiliary, ids: Tensor, unit: LanguageUnit) -> Tensor:
        import torch

        try:
            return self.predict(auxiliary, ids, unit).token_loss[:, unit.num_train :]
        except DivergenceError:
            # A rate that diverges is a result too: the curve of rates must show where it ends.
            return torch.full((len(ids), 1), math.inf)

    def predict(self, auxiliary: Auxiliary, ids: Tensor, unit: LanguageUnit, *, logits: Logits = "none") -> TintOutput:
        """Learn from the first tokens of blocks, each on its own, and predict the rest."""
        import torch

        # The paper's case study "Language Modeling": the first tokens of a block train, the loss of the rest counts.
        train, rule = (torch.arange(ids.shape[1]) < unit.num_train).expand(ids.shape), self.rule(unit.method, unit.rate)
        if rule is None:
            return learn_once(auxiliary, None).score(ids, score_mask=~train, logits=logits)
        tried = open_language(self).tuning if self.chosen_on == "tuning" else open_language(self).scored
        gradients = _TRIED if set(unit.blocks) <= set(tried) else _ONCE
        return learn_each(
            auxiliary, rule, self.engine, input_ids=ids, train_mask=train, logits=logits, gradients=gradients
        )

    def tuning_loss(self, setting: float, results: Sequence[UnitResult]) -> float:
        """Nats per token."""
        nats = [value for each in results for value in each["nats"]]
        return sum(nats) / len(nats) / (open_language(self).length - self.num_train(setting))

    def summary(
        self, setting: float, method: str, rate: float, curve: tuple[RatePoint, ...], results: Sequence[UnitResult]
    ) -> LanguageResult:
        return LanguageResult(
            method=method,
            share=setting,
            rate=rate,
            curve=curve,
            nats=tuple(nats for each in results for nats in each["nats"]),
            tokens=open_language(self).length - self.num_train(setting),
            words=sum(sum(each["words"]) for each in results),
            bytes=sum(sum(each["bytes"]) for each in results),
        )


@dataclass(frozen=True, kw_only=True)
class LanguageUnit:
    """A block, or several in a batch, by one method at one rate."""

    method: str
    rate: float
    num_train: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenLanguage:
    """What a process needs to do units: the model and the blocks."""

    model: OpenModel
    texts: TextSet
    blocks: Sequence[Block]
    length: int
    tuning: tuple[int, ...]
    """Numbers of the blocks that choose rates, in the order of the draw."""
    scored: tuple[int, ...]
    """Of those that are scored, in the same way."""


@lru_cache(maxsize=2)
def open_language(experiment: LanguageModelling) -> OpenLanguage:
    """Load the model, cut the text and draw the blocks."""
    texts = load_texts(experiment.data, experiment.location)
    model = open_model(experiment.model, experiment.dtype, experiment.device)
    experiment.check_rules(len(model.auxiliary.blocks))
    length = min(experiment.length, model.auxiliary.max_positions or experiment.length)
    blocks = tuple(texts.blocks(model.tokenizer, length, keep_rest=False))
    tuning = experiment.tuning if experiment.tunes else 0
    wanted = tuning + (experiment.blocks or 1)
    if len(blocks) < wanted:
        raise InputError(
            f"{texts.name} gives {len(blocks)} blocks of {length} tokens; {wanted} are needed ({tuning} of them to "
            "choose rates): use shorter blocks, fewer of them, or more text"
        )
    drawn = draw(len(blocks), experiment.seed, tuning=experiment.tuning, scored=experiment.blocks)
    return OpenLanguage(
        model=model, texts=texts, blocks=blocks, length=length, tuning=drawn[0][:tuning], scored=drawn[1]
    )


def score_at_most(experiment: LanguageModelling, blocks: int) -> LanguageModelling:
    """The same experiment on so many blocks, or on all that a shorter text has."""
    return replace(experiment, blocks=min(blocks, len(open_language(experiment).scored)))


def draw(count: int, seed: int, *, tuning: int, scored: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which of the pieces of a text may choose rates, and which are scored; None: all that may not.

    They are the two ends of one permutation: more of either are the same ones and others, whatever is done with those
    at the other end. Where a text is too short to have both, and no rate is chosen, all may be scored.
    """
    import numpy as np

    # Neighbours are alike, so both are drawn from all over the text.
    order = np.random.default_rng(seed).permutation(count).tolist()
    others = count - tuning if count > tuning else count
    return tuple(order[::-1][:tuning]), tuple(order[: others if scored is None else scored])


@dataclass(frozen=True, kw_only=True)
class LanguageResult:
    """One method at one share."""

    method: str
    share: float
    rate: float
    curve: tuple[RatePoint, ...]
    """What the rate was chosen from."""
    nats: tuple[float, ...]
    """Of each scored block, summed over its scored tokens."""
    tokens: int
    """Scored tokens of a block."""
    words: int
    bytes: int
