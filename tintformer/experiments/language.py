"""Language modelling: train on the first share of a block of text, score the rest of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tintformer.errors import DivergenceError, InputError
from tintformer.experiments.choosing import ChosenOn, check_chosen_on, chosen_rates, rates_tried
from tintformer.experiments.methods import METHODS, check_rules, find_methods
from tintformer.experiments.work import Workers
from tintformer.learning.rate_selection import RatePoint

if TYPE_CHECKING:
    from torch import Tensor

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.experiments.blocks import Block
    from tintformer.experiments.texts import TextSet

AT_ONCE = 4
"""Blocks of a unit. More make a kill lose more, fewer leave the batch too small to be fast."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelling:
    """One model on one text, by several methods, each at the rate that is best on blocks of its own."""

    model: str
    data: str
    """A shipped description, a YAML file, or a text file or directory."""
    location: Path | None = None
    """Where the files are, instead of where the description says."""
    methods: tuple[str, ...] = ("auxiliary", "fine-tuning", "tint")
    shares: tuple[float, ...] = (0.3, 0.5, 0.7, 0.9)
    """Of each block that is trained on; the rest is scored."""
    length: int = 1024
    """Tokens of a block, never more than the model's context. Short blocks leave little to learn from."""
    blocks: int | None = None
    """How many are scored, drawn from all over the text; None: all that are not tuned on. Few give wide intervals."""
    tuning: int = 8
    """How many choose the rates; they are not scored. Few make the choice a guess."""
    rates: tuple[float, ...] | None = None
    """To choose from, or the one to use; None: a grid that finds its own range."""
    chosen_on: ChosenOn = "tuning"
    """Where rates are chosen: `test`, the scored blocks themselves, as the authors do, makes every gain optimistic."""
    layers: int | None = None
    steps: int = 1
    engine: str = "fast"
    dtype: str = "float32"
    seed: int = 0
    """Draws the blocks."""
    threads: int = 1
    """Of each process. Recorded, because the last digits of a sum depend on it."""

    def __post_init__(self) -> None:
        find_methods(self.methods)
        check_chosen_on(self.chosen_on)
        for share in self.shares:
            if not 0 < share < 1:
                raise InputError(f"a share of {share:g} is trained on; it must lie between 0 and 1")
        if self.tuning < 1 and self.tunes:
            raise InputError("rates are chosen on tuning blocks; give at least one, or a single rate")

    @property
    def tunes(self) -> bool:
        """Whether there is a rate to choose on blocks of its own."""
        return self.chosen_on == "tuning" and (self.rates is None or len(self.rates) > 1)

    def identity(self, unit: LanguageUnit) -> dict[str, Any]:
        """What decides the result of a unit."""
        from tintformer.experiments.identity import code_version

        opened = open_language(self)
        rule = METHODS[unit.method].how(unit.rate, layers=self.layers, steps=self.steps)
        return {
            "experiment": "language modelling",
            "model": opened.identity,
            "dtype": self.dtype,
            "rule": rule and asdict(rule),
            "engine": rule and self.engine,
            "data": opened.texts.identity,
            "length": opened.length,
            "train_tokens": unit.num_train,
            "blocks": list(unit.blocks),
            "threads": self.threads,
            "code": code_version(),
        }

    def num_units(self) -> int:
        """About how many units there are."""
        opened = open_language(self)
        scored, tuning = -(-len(opened.scored) // AT_ONCE), -(-len(opened.tuning or opened.scored) // AT_ONCE)
        return len(self.shares) * sum(scored + tuning * rates_tried(self, name) for name in self.methods)

    def run(self, unit: LanguageUnit) -> dict[str, Any]:
        """Losses of a few blocks, summed over the scored tokens of each, in nats."""
        import torch

        torch.set_num_threads(self.threads)
        opened = open_language(self)
        blocks = [opened.blocks[at] for at in unit.blocks]
        ids = torch.tensor([block.ids for block in blocks])
        losses = self._losses(opened.auxiliary, ids, unit)
        return {
            "nats": losses.double().sum(1).tolist(),
            "tokens": len(blocks[0]) - unit.num_train,
            "words": [sum(block.num_words[unit.num_train :]) for block in blocks],
            "bytes": [sum(block.num_bytes[unit.num_train :]) for block in blocks],
        }

    def _losses(self, auxiliary: Auxiliary, ids: Tensor, unit: LanguageUnit) -> Tensor:
        import torch

        from tintformer.experiments.learning import learn_each
        from tintformer.learning.tuned import Tuned

        train = (torch.arange(ids.shape[1]) < unit.num_train).expand(ids.shape)
        how = METHODS[unit.method].how(unit.rate, layers=self.layers, steps=self.steps)
        try:
            if how is None:
                out = Tuned.untrained(auxiliary).score(ids, score_mask=~train)
            else:
                out = learn_each(auxiliary, how, self.engine, input_ids=ids, train_mask=train)
        except DivergenceError:
            return torch.full((len(ids), 1), math.inf)
        return out.token_loss[:, unit.num_train :]


@dataclass(frozen=True, kw_only=True)
class LanguageUnit:
    """A few blocks by one method at one rate."""

    method: str
    rate: float
    num_train: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenLanguage:
    """What a process needs to do units: the model and the blocks."""

    auxiliary: Auxiliary
    identity: dict[str, str]
    texts: TextSet
    blocks: Sequence[Block]
    length: int
    tuning: tuple[int, ...]
    scored: tuple[int, ...]


@lru_cache(maxsize=2)
def open_language(experiment: LanguageModelling) -> OpenLanguage:
    """Load the model, cut the text and draw the blocks."""
    import numpy as np

    from tintformer.experiments.models import open_model
    from tintformer.experiments.texts import load_texts

    texts = load_texts(experiment.data, experiment.location)
    model = open_model(experiment.model, experiment.dtype)
    check_rules(experiment.methods, len(model.auxiliary.blocks), layers=experiment.layers, steps=experiment.steps)
    length = min(experiment.length, model.auxiliary.max_positions or experiment.length)
    blocks = tuple(texts.blocks(model.tokenizer, length, keep_rest=False))
    tuning = experiment.tuning if experiment.tunes else 0
    wanted = tuning + (experiment.blocks or 1)
    if len(blocks) < wanted:
        raise InputError(
            f"{texts.name} gives {len(blocks)} blocks of {length} tokens; {wanted} are needed ({tuning} of them to "
            "choose rates): use shorter blocks, fewer of them, or more text"
        )
    order = np.random.default_rng(experiment.seed).permutation(len(blocks)).tolist()
    scored = order[tuning:] if experiment.blocks is None else order[tuning:][: experiment.blocks]
    return OpenLanguage(
        auxiliary=model.auxiliary,
        identity=model.identity,
        texts=texts,
        blocks=blocks,
        length=length,
        tuning=tuple(sorted(order[:tuning])),
        scored=tuple(sorted(scored)),
    )


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


def run_language(experiment: LanguageModelling, crew: Workers) -> list[LanguageResult]:
    """Every method at every share."""
    return [result for share in experiment.shares for result in _run_share(experiment, share, crew)]


def _run_share(experiment: LanguageModelling, share: float, crew: Workers) -> list[LanguageResult]:
    opened = open_language(experiment)
    num_train = round(share * opened.length)
    if not 2 <= num_train < opened.length:
        raise InputError(f"a share of {share:g} trains on {num_train} of {opened.length} tokens; 2 are the least")

    def trial(name: str, rate: float) -> float:
        blocks = opened.tuning if experiment.tunes else opened.scored
        done = _complete(experiment, name, rate, num_train, blocks, crew)
        nats = [value for each in done for value in each["nats"]]
        return sum(nats) / len(nats) / (opened.length - num_train)

    results: list[LanguageResult] = []
    for name, rate, curve in chosen_rates(experiment, trial, num_train - 1):
        done = _complete(experiment, name, rate, num_train, opened.scored, crew)
        results.append(
            LanguageResult(
                method=name,
                share=share,
                rate=rate,
                curve=curve,
                nats=tuple(nats for each in done for nats in each["nats"]),
                tokens=opened.length - num_train,
                words=sum(sum(each["words"]) for each in done),
                bytes=sum(sum(each["bytes"]) for each in done),
            )
        )
    return results


def _complete(
    experiment: LanguageModelling, name: str, rate: float, num_train: int, blocks: tuple[int, ...], crew: Workers
) -> list[dict[str, Any]]:
    units = [
        LanguageUnit(method=name, rate=rate, num_train=num_train, blocks=blocks[start : start + AT_ONCE])
        for start in range(0, len(blocks), AT_ONCE)
    ]
    return crew.complete(experiment, units)
