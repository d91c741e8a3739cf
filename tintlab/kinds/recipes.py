"""The paper's three tables as runs, on its models or on any other, and the paper's own protocol beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tintformer.errors import InputError, brief
from tintlab.data.models import open_model
from tintlab.kinds.icl import InContextLearning
from tintlab.kinds.lm import LanguageModelling

PROTOCOLS = ("tuned", "paper")
"""Rates from data of their own, which is the default, or all as the authors did it."""
BOTH = "both"
"""Of accuracies: each experiment by both protocols, and by the paper's with one rate for all seeds."""
LABEL_RATES = (1e-5, 1e-4, 1e-3)
"""What the authors choose from for the loss of label words (appendix "Experiments")."""
FULL_RATES = (1e-7, 1e-6, 1e-5)
"""And for the loss of all tokens, which is a sum over more of them."""
TASKS = ("subj", "agnews", "sst2", "cr", "mr", "mpqa", "amazon")
"""In the order of the paper's columns."""
TEXT_MODELS = ("gpt2", "facebook/opt-125m")
TASK_MODELS = ("facebook/opt-125m",)
SIMILAR = ("facebook/opt-1.3b",)
"""Models as large as the simulator of those: what the paper compares with."""
SETTINGS = (("all", 1), ("half", 2), ("quarter", 4))
"""Blocks that learn and steps, of one budget."""
_SHARES = {"all": 1, "half": 2, "quarter": 4}


def by_protocol(experiment: Any, protocol: str) -> Any:
    """An experiment as a protocol does it.

    `tuned` leaves it as it is. `paper` chooses rates on what is scored, from the authors' grid unless another is given,
    and the full loss of demonstrations also trains on the text of the test input. All else that theirs is made of is
    the default: balanced demonstrations and tests, segments after a shared BOS, the calibration prompt in a pass of its
    own, lines tokenised one by one.
    """
    if protocol not in PROTOCOLS:
        raise InputError(f"--protocol {brief(protocol)} is unknown; choose one of {', '.join(PROTOCOLS)}")
    if protocol == "tuned":
        return experiment
    label_loss = isinstance(experiment, InContextLearning) and experiment.loss == "label"
    changed = replace(
        experiment, chosen_on="test", rates=experiment.rates or (LABEL_RATES if label_loss else FULL_RATES)
    )
    if isinstance(changed, InContextLearning) and changed.shots > 0 and not label_loss:
        return replace(changed, test_text=True)
    return changed


def by_protocols(experiment: InContextLearning, protocol: str) -> list[InContextLearning]:
    """An experiment by one protocol or by both, so that the honest row and the optimistic ones stand in one table.

    Tests at a rate are the same units whoever asks for them. A model that does not learn is in one of them.
    """
    if protocol != BOTH:
        return [by_protocol(experiment, protocol)]
    if not any(method.preset is not None for method in experiment.compared().values()):
        return [experiment]
    paper = by_protocol(experiment, "paper")
    return [experiment, replace(paper, one_rate=True), *([paper] if experiment.shots else [])]


def share_of_blocks(model: str, share: str, dtype: str = "float32", device: str | None = None) -> int | None:
    """How many of a model's blocks "all" (None), "half" or "quarter" of them are, at least one."""
    # The model itself is asked, which the experiment opens anyway: some files have no configuration beside them.
    if share == "all":
        return None
    return max(1, len(open_model(model, dtype, device).auxiliary.blocks) // _SHARES[share])


def compared(experiment: Any, models: Sequence[str]) -> list[Any]:
    """The same experiment on other models as they are."""
    return [replace(experiment, model=model, methods=("auxiliary",), layers=None, steps=1) for model in models]


def table_lm(base: LanguageModelling, models: Sequence[str]) -> list[LanguageModelling]:
    """Perplexity by share of every model."""
    return [replace(base, model=model) for model in models]


def table_icl(base: InContextLearning, models: Sequence[str], others: Sequence[str]) -> list[InContextLearning]:
    """Without demonstrations and with 32 of them: as they are, in the context, and learnt from."""
    zero = replace(base, shots=0, loss="full")
    shown = replace(base, shots=32, mode="multi", loss="label", methods=("auxiliary",))
    learnt = replace(base, shots=32, mode="single", loss="label")
    found: list[InContextLearning] = []
    for model in models:
        found += [*_settings(zero, model), replace(shown, model=model), *_settings(learnt, model)]
    return found + [each for way in (zero, shown) for each in compared(way, others)]


def table_settings(base: InContextLearning, models: Sequence[str]) -> list[InContextLearning]:
    """32 demonstrations by loss, format, layers and steps."""
    return [
        each
        for model in models
        for loss in ("label", "full")
        for mode in ("single", "multi")
        for each in _settings(replace(base, shots=32, mode=mode, loss=loss), model)
    ]


def _settings(base: InContextLearning, model: str) -> list[InContextLearning]:
    return [
        replace(base, model=model, layers=share_of_blocks(model, share, base.dtype, base.device), steps=steps)
        for share, steps in SETTINGS
    ]
