"""The contestants of a sequence case: every sequence learns on its own and is restored."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from tintformer.benchmarks.cases import SequenceCase, random_tokens
from tintformer.benchmarks.contestant import Contestant, Ground, Skip
from tintformer.benchmarks.explicit import Explicit, all_names, block_names, rule_names
from tintformer.benchmarks.per_sample import PerSample
from tintformer.benchmarks.work import Work
from tintformer.learning.tint import Tint
from tintformer.simulator.simulator import Simulator, build
from tintformer.storage.loading import load

VMAP_LIMIT = 6 * 10**9
"""Bytes of per-sequence gradients above which vmap is not tried; it holds about three times as much at once."""


def _tokens(ground: Ground, case: SequenceCase) -> Tensor:
    return random_tokens((case.batch, case.tokens), ground.auxiliary.vocabulary_size, seed=ground.seed)


def forward(ground: Ground, case: SequenceCase) -> Contestant:
    """A plain forward pass of the Hugging Face model: nothing is learnt."""
    ids = _tokens(ground, case)

    @torch.inference_mode()
    def run() -> None:
        ground.model(ids, use_cache=False)

    work = Work(ground.auxiliary, ground.rule).forward(case.tokens, case.tokens)
    return Contestant(run=run, multiply_adds=case.batch * work)


def _explicit(ground: Ground, case: SequenceCase, names: list[str]) -> Contestant:
    ids = _tokens(ground, case)
    tuner = Explicit(ground.model, names, ground.rule.learning_rate)
    return Contestant(
        run=lambda: tuner.tune_each(ids, case.num_train), multiply_adds=_explicit_work(ground, case, names)
    )


def _explicit_work(ground: Ground, case: SequenceCase, names: list[str]) -> int:
    work = Work(ground.auxiliary, ground.rule)
    return case.batch * (work.explicit_training(case.num_train, names) + work.forward(case.tokens, case.tokens))


def explicit_rule(ground: Ground, case: SequenceCase) -> Contestant:
    """Explicit fine-tuning of exactly the parameters that the rule moves."""
    return _explicit(ground, case, rule_names(ground.auxiliary, ground.rule))


def explicit_block(ground: Ground, case: SequenceCase) -> Contestant:
    """Explicit fine-tuning of the block weights and the final norm; embeddings and head frozen."""
    return _explicit(ground, case, block_names(ground.auxiliary))


def explicit_all(ground: Ground, case: SequenceCase) -> Contestant:
    """Explicit fine-tuning of all weights, embeddings included."""
    return _explicit(ground, case, all_names(ground.auxiliary))


def vmap(ground: Ground, case: SequenceCase) -> Contestant:
    """What the rule moves, for the whole batch at once by torch.func."""
    ids, names = _tokens(ground, case), rule_names(ground.auxiliary, ground.rule)
    tuner = PerSample(ground.model, names, ground.rule.learning_rate)
    if (size := tuner.copies_bytes(case.batch)) > VMAP_LIMIT:
        raise Skip(f"its gradients alone take {size / 1e9:.1f} GB, above the limit of {VMAP_LIMIT / 1e9:.0f} GB")
    return Contestant(
        run=lambda: tuner.tune_each(ids, case.num_train),
        multiply_adds=_explicit_work(ground, case, names),
        note="eager attention",
    )


def _engine(ground: Ground, case: SequenceCase, auxiliary: Any = None, **knobs: Any) -> Contestant:
    return _pass(ground, case, ground.tint(auxiliary, **knobs))


def _pass(ground: Ground, case: SequenceCase, learner: Tint | Simulator, note: str = "") -> Contestant:
    ids = _tokens(ground, case)
    train_mask = (torch.arange(case.tokens) < case.num_train).expand(case.batch, -1)

    def run() -> Tensor:
        out = learner(ids, train_mask=train_mask, logits="none")
        return out.token_loss[out.evaluation_mask]

    work = Work(ground.auxiliary, ground.rule).engine(case.num_train, case.tokens)
    return Contestant(run=run, multiply_adds=case.batch * work, note=note)


def fast(ground: Ground, case: SequenceCase) -> Contestant:
    """The engine under test."""
    return _engine(ground, case)


def fast_dual(ground: Ground, case: SequenceCase) -> Contestant:
    """The engine with every update in the dual form."""
    return _engine(ground, case, dual=True)


def fast_materialised(ground: Ground, case: SequenceCase) -> Contestant:
    """The engine with every update materialised."""
    return _engine(ground, case, dual=False)


def fast_float32(ground: Ground, case: SequenceCase) -> Contestant:
    """The engine in float32 on the same weights, as they stand in the lower precision."""
    return _engine(ground, case, load(deepcopy(ground.model).float()))


def _simulator(ground: Ground, case: SequenceCase, **construction: Any) -> Contestant:
    built = build(ground.auxiliary, ground.rule, **construction)
    return _pass(ground, case, built, f"{built.num_structural:,} constructed parameters")


def simulator(ground: Ground, case: SequenceCase) -> Contestant:
    """The constructed transformer, lean layout, tied blocks."""
    return _simulator(ground, case)


def simulator_paper(ground: Ground, case: SequenceCase) -> Contestant:
    """The constructed transformer in the paper's layout, a block for every layer."""
    return _simulator(ground, case, layout="paper", tie_blocks=False)


CONTESTANTS: dict[str, Callable[[Ground, SequenceCase], Contestant]] = {
    function.__name__: function
    for function in (
        forward,
        explicit_rule,
        explicit_block,
        explicit_all,
        vmap,
        fast,
        fast_dual,
        fast_materialised,
        fast_float32,
        simulator,
        simulator_paper,
    )
}
