"""The methods that `tint bench` times: the engine, what it is measured against, and who takes part in which case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tintbench.cases import Case, FewShotCase, SequenceCase, Settings, StreamCase
from tintbench.setup import Setup, Skip, TimedMethod, plain_forward
from tintbench.stream_methods import STREAM_METHODS
from tintformer.learning.tint import Tint
from tintformer.simulator.simulator import Simulator, build
from tintformer.storage.loading import load
from tintlab.methods.fine_tuning import Explicit, PerSample, all_names, block_names, rule_names

VMAP_LIMIT = 6 * 10**9
"""Bytes of per-sequence gradients above which vmap is not tried; it holds about three times as much at once."""


# Sequences: each learns on its own and is restored.


def _sequences(setup: Setup, case: SequenceCase) -> Tensor:
    return setup.tokens(case.batch, case.tokens)


def _explicit_sequences(setup: Setup, case: SequenceCase, names: list[str], vmap: bool = False) -> TimedMethod:
    ids, rate = _sequences(setup, case), setup.rule.rate
    tuner = PerSample(setup.model, names, rate) if vmap else Explicit(setup.model, names, rate)
    if isinstance(tuner, PerSample) and (size := tuner.copies_bytes(case.batch)) > VMAP_LIMIT:
        raise Skip(f"its gradients alone take {size / 1e9:.1f} GB, above the limit of {VMAP_LIMIT / 1e9:.0f} GB")
    work = setup.count.explicit_training(case.num_train, names) + setup.count.forward(case.tokens, case.tokens)
    return TimedMethod(
        run=lambda: tuner.tune_each(ids, case.num_train),
        multiply_adds=case.batch * work,
        note="eager attention" if vmap else "",
    )


def _pass(setup: Setup, case: SequenceCase, learner: Tint | Simulator, note: str = "") -> TimedMethod:
    ids = _sequences(setup, case)
    train_mask = (torch.arange(case.tokens) < case.num_train).expand(case.batch, -1)

    def run() -> Tensor:
        out = learner(ids, train_mask=train_mask, logits="none")
        return out.token_loss[out.evaluation_mask]

    work = case.batch * setup.count.engine(case.num_train, case.tokens)
    return TimedMethod(run=run, multiply_adds=work, note=note)


def _simulator(setup: Setup, case: SequenceCase, **construction: Any) -> TimedMethod:
    # On a copy, as the network: explicit fine-tuning writes into the model and restores it, and what holds the weights
    # in prefix tokens refuses to run once they have been written to.
    built = build(load(deepcopy(setup.model)), setup.rule, **construction)
    return _pass(setup, case, built, f"{built.num_structural:,} constructed parameters")


def _network(setup: Setup, case: SequenceCase) -> TimedMethod:
    tint = Tint(load(deepcopy(setup.model)), setup.rule, engine="network", max_tokens=case.tokens)
    return _pass(setup, case, tint)


SEQUENCE_METHODS: dict[str, Callable[[Setup, SequenceCase], TimedMethod]] = {
    "forward": lambda setup, case: plain_forward(setup, [_sequences(setup, case)]),
    # Explicit fine-tuning of exactly what the rule moves; of the blocks and the final norm; of everything.
    "explicit_rule": lambda setup, case: _explicit_sequences(setup, case, rule_names(setup.auxiliary, setup.rule)),
    "explicit_block": lambda setup, case: _explicit_sequences(setup, case, block_names(setup.auxiliary)),
    "explicit_all": lambda setup, case: _explicit_sequences(setup, case, all_names(setup.auxiliary)),
    # What the rule moves, for the whole batch at once.
    "vmap": lambda setup, case: _explicit_sequences(setup, case, rule_names(setup.auxiliary, setup.rule), vmap=True),
    "fast": lambda setup, case: _pass(setup, case, setup.tint()),
    "fast_dual": lambda setup, case: _pass(setup, case, setup.tint(dual=True)),
    "fast_materialised": lambda setup, case: _pass(setup, case, setup.tint(dual=False)),
    "fast_float32": lambda setup, case: _pass(setup, case, setup.tint_float32()),
    "simulator": _simulator,
    "network": _network,
    "simulator_paper": partial(_simulator, layout="paper", tie_blocks=False),
}


# Few shots: learn from the examples once (or again and again), score many inputs.


def _examples_and_inputs(setup: Setup, case: FewShotCase) -> tuple[Tensor, Tensor]:
    ids = setup.tokens(case.num_examples + case.num_inputs, case.tokens)
    return ids[: case.num_examples], ids[case.num_examples :]


def _forward_few_shot(setup: Setup, case: FewShotCase) -> TimedMethod:
    examples, inputs = _examples_and_inputs(setup, case)
    return plain_forward(setup, [examples, *inputs.split(case.score_batch)])


def _explicit_few_shot(setup: Setup, case: FewShotCase, names: list[str]) -> TimedMethod:
    examples, inputs = _examples_and_inputs(setup, case)
    tuner = Explicit(setup.model, names, setup.rule.rate)
    training = case.num_examples * setup.count.explicit_training(case.tokens, names)
    return TimedMethod(
        run=lambda: tuner.tune_once(examples, inputs, case.score_batch),
        multiply_adds=training + case.num_inputs * setup.count.forward(case.tokens, case.tokens),
    )


def _adapt(setup: Setup, case: FewShotCase, tint: Tint, *, once: bool = True) -> TimedMethod:
    """Adapt once and score in batches; or repeat the training for every test input, as a simulator must."""
    examples, inputs = _examples_and_inputs(setup, case)
    repeated = min(case.num_repeated, case.num_inputs)

    def run() -> Tensor:
        tuned = tint.adapt(examples)
        losses = [tuned.score(rows).token_loss[:, 1:].flatten() for rows in inputs.split(case.score_batch)]
        return torch.cat(losses)

    def run_again_and_again() -> Tensor:
        rows = inputs[:repeated].split(1)
        return torch.cat([tint.adapt(examples).score(row).token_loss[:, 1:].flatten() for row in rows])

    training = case.num_examples * (setup.count.training(case.tokens - 1) + setup.count.update(case.tokens - 1))
    scoring = case.num_inputs * setup.count.forward(case.tokens, case.tokens - 1)
    if once:
        return TimedMethod(run=run, multiply_adds=training + scoring)
    return TimedMethod(
        run=run_again_and_again,
        multiply_adds=case.num_inputs * training + scoring,
        scale=case.num_inputs / repeated,
        note=f"measured on {repeated} of {case.num_inputs} inputs, scaled",
    )


FEW_SHOT_METHODS: dict[str, Callable[[Setup, FewShotCase], TimedMethod]] = {
    "forward": _forward_few_shot,
    "explicit_rule": lambda setup, case: _explicit_few_shot(setup, case, rule_names(setup.auxiliary, setup.rule)),
    "explicit_block": lambda setup, case: _explicit_few_shot(setup, case, block_names(setup.auxiliary)),
    "explicit_all": lambda setup, case: _explicit_few_shot(setup, case, all_names(setup.auxiliary)),
    "repeat": lambda setup, case: _adapt(setup, case, setup.tint(), once=False),
    "fast": lambda setup, case: _adapt(setup, case, setup.tint()),
    "fast_float32": lambda setup, case: _adapt(setup, case, setup.tint_float32()),
}


# Who takes part.

METHODS = tuple(dict.fromkeys((*SEQUENCE_METHODS, *FEW_SHOT_METHODS, *STREAM_METHODS)))
FORMS = ("fast_dual", "fast_materialised")
SIMULATORS = ("simulator", "simulator_paper", "network")
"""Only where a case or the user names them: many times slower, and about other questions."""
LOWER = ("forward", "explicit_block", "repeat", "fast", "fast_float32")
"""In half precision unless others are named: the question there is what the precision brings."""


def methods_of(case: Case, settings: Settings) -> list[str]:
    """The methods of a case: those that are named, or those that suit the dtype and the options."""
    suiting = [name for name in _table(case) if case.methods is None or name in case.methods]
    if settings.methods:
        return [name for name in suiting if name in settings.methods]
    suiting = [name for name in suiting if settings.forms or name not in FORMS]
    suiting = [name for name in suiting if case.methods is not None or name not in SIMULATORS]
    if settings.dtype == "bfloat16":
        return [name for name in suiting if name in (*LOWER, *FORMS)]
    return [name for name in suiting if name != "fast_float32"]


def prepare(name: str, setup: Setup, case: Case) -> TimedMethod:
    """Make a method ready to run; raises `Skip` with the reason where it cannot take part."""
    return _table(case)[name](setup, case)


def _table(case: Case) -> Mapping[str, Callable[[Setup, Any], TimedMethod]]:
    match case:
        case SequenceCase():
            return SEQUENCE_METHODS
        case FewShotCase():
            return FEW_SHOT_METHODS
        case StreamCase():
            return STREAM_METHODS
