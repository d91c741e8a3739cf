"""The contestants of the few-shot case: learn from the examples once (or again and again), score many inputs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from tintformer.benchmarks.cases import FewShotCase, random_tokens
from tintformer.benchmarks.contestant import Contestant, Ground
from tintformer.benchmarks.explicit import Explicit, all_names, block_names, rule_names
from tintformer.benchmarks.work import Work
from tintformer.storage.loading import load


def _tokens(ground: Ground, case: FewShotCase) -> tuple[Tensor, Tensor]:
    """Training examples and test inputs."""
    shape = (case.num_examples + case.num_inputs, case.tokens)
    ids = random_tokens(shape, ground.auxiliary.vocabulary_size, seed=ground.seed)
    return ids[: case.num_examples], ids[case.num_examples :]


def forward(ground: Ground, case: FewShotCase) -> Contestant:
    """A plain forward pass over examples and inputs: nothing is learnt."""
    examples, inputs = _tokens(ground, case)

    @torch.inference_mode()
    def run() -> None:
        for rows in (examples, *inputs.split(case.score_batch)):
            ground.model(rows, use_cache=False)

    work = Work(ground.auxiliary, ground.rule).forward(case.tokens, case.tokens)
    return Contestant(run=run, multiply_adds=(case.num_examples + case.num_inputs) * work)


def _explicit(ground: Ground, case: FewShotCase, names: list[str]) -> Contestant:
    examples, inputs = _tokens(ground, case)
    tuner, work = Explicit(ground.model, names, ground.rule.learning_rate), Work(ground.auxiliary, ground.rule)
    return Contestant(
        run=lambda: tuner.tune_once(examples, inputs, case.score_batch),
        multiply_adds=case.num_examples * work.explicit_training(case.tokens, names)
        + case.num_inputs * work.forward(case.tokens, case.tokens),
    )


def explicit_rule(ground: Ground, case: FewShotCase) -> Contestant:
    """Explicit fine-tuning, once, of exactly the parameters that the rule moves."""
    return _explicit(ground, case, rule_names(ground.auxiliary, ground.rule))


def explicit_block(ground: Ground, case: FewShotCase) -> Contestant:
    """Explicit fine-tuning, once, of the block weights and the final norm."""
    return _explicit(ground, case, block_names(ground.auxiliary))


def explicit_all(ground: Ground, case: FewShotCase) -> Contestant:
    """Explicit fine-tuning, once, of all weights."""
    return _explicit(ground, case, all_names(ground.auxiliary))


def _adapting_work(ground: Ground, case: FewShotCase) -> int:
    work = Work(ground.auxiliary, ground.rule)
    return case.num_examples * (work.training(case.tokens - 1) + work.update(case.tokens - 1))


def _scoring_work(ground: Ground, case: FewShotCase) -> int:
    return case.num_inputs * Work(ground.auxiliary, ground.rule).forward(case.tokens, case.tokens - 1)


def _scored(out: Any) -> Tensor:
    return out.token_loss[:, 1:].flatten()


def _engine(ground: Ground, case: FewShotCase, auxiliary: Any = None) -> Contestant:
    (examples, inputs), tint = _tokens(ground, case), ground.tint(auxiliary)

    def run() -> Tensor:
        tuned = tint.adapt(examples)
        return torch.cat([_scored(tuned.score(rows)) for rows in inputs.split(case.score_batch)])

    return Contestant(run=run, multiply_adds=_adapting_work(ground, case) + _scoring_work(ground, case))


def fast(ground: Ground, case: FewShotCase) -> Contestant:
    """The engine under test: adapt once, score in batches."""
    return _engine(ground, case)


def fast_float32(ground: Ground, case: FewShotCase) -> Contestant:
    """The engine in float32 on the same weights, as they stand in the lower precision."""
    return _engine(ground, case, load(deepcopy(ground.model).float()))


def repeat(ground: Ground, case: FewShotCase) -> Contestant:
    """The training repeated for every test input, as a simulator must, by the engine under test itself."""
    (examples, inputs), tint = _tokens(ground, case), ground.tint()
    num_repeated = min(case.num_repeated, case.num_inputs)

    def run() -> Tensor:
        return torch.cat([_scored(tint.adapt(examples).score(row)) for row in inputs[:num_repeated].split(1)])

    return Contestant(
        run=run,
        multiply_adds=case.num_inputs * _adapting_work(ground, case) + _scoring_work(ground, case),
        scale=case.num_inputs / num_repeated,
        note=f"measured on {num_repeated} of {case.num_inputs} inputs, scaled",
    )


CONTESTANTS: dict[str, Callable[[Ground, FewShotCase], Contestant]] = {
    function.__name__: function
    for function in (forward, explicit_rule, explicit_block, explicit_all, repeat, fast, fast_float32)
}
