"""Protocols: rates from data of their own, which is the default, or all as the authors did it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

from tintformer.errors import InputError
from tintformer.experiments.classification import InContextLearning

Protocol = Literal["tuned", "paper"]
LABEL_RATES = (1e-5, 1e-4, 1e-3)
"""What the authors choose from for the loss of label words (appendix "Experiments")."""
FULL_RATES = (1e-7, 1e-6, 1e-5)
"""And for the loss of all tokens, which is a sum over more of them."""


def by_protocol(experiment: Any, protocol: str) -> Any:
    """An experiment as a protocol does it.

    `tuned` leaves it as it is. `paper` chooses rates on what is scored, from the authors' grid unless another is given,
    and the full loss of demonstrations also trains on the text of the test input. All else that theirs is made of is
    the default: balanced demonstrations and tests, segments after a shared BOS, the calibration prompt in a pass of its
    own, lines tokenised one by one.
    """
    if protocol not in get_args(Protocol):
        raise InputError(f"--protocol {protocol!r} is unknown; choose one of {', '.join(get_args(Protocol))}")
    if protocol == "tuned":
        return experiment
    label_loss = isinstance(experiment, InContextLearning) and experiment.loss == "label"
    changed = replace(
        experiment, chosen_on="test", rates=experiment.rates or (LABEL_RATES if label_loss else FULL_RATES)
    )
    if isinstance(changed, InContextLearning) and changed.shots > 0 and not label_loss:
        return replace(changed, test_text=True)
    return changed
