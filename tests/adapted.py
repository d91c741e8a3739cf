# pyright: basic
"""Models that learn by adapters of peft, for the tests of each kind of adapter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from cases import make_model
from torch.nn import functional

import tintformer as tint
from tintformer.auxiliary.describe import describe
from tintformer.engines.oracle import OracleEngine
from tintformer.execution.batch import Batch
from tintlab.methods import adapters
from tintlab.methods.adapters import AdapterMethod

Learnt = dict[str, torch.Tensor]


def learn(auxiliary: tint.Auxiliary, method: AdapterMethod, input_ids: torch.Tensor, **masks: Any) -> tint.Tuned:
    return adapters.learn(auxiliary, method, Batch.of(auxiliary, input_ids, **masks))


def learn_each(
    auxiliary: tint.Auxiliary, method: AdapterMethod, input_ids: torch.Tensor, *, logits: Any = "all", **masks: Any
) -> tint.TintOutput:
    return adapters.learn_each(auxiliary, method, Batch.of(auxiliary, input_ids, **masks), logits=logits)


@contextmanager
def in_double(name: str) -> Iterator[tint.Auxiliary]:
    """A model inside whose context Hugging Face's casts to float32 are undone, for training as well."""
    engine = OracleEngine(tint.load(make_model(name)), tint.LearningRule.full(learning_rate=0.0))
    with engine.mode:
        # As it is: `load` would refuse what undoes the casts, because it changes what modules compute.
        yield replace(describe(engine.twin, engine.family, name), record=None)


def token_losses(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    given = {key: value for key, value in options.items() if value is not None}
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **given).logits
    return functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none")


def close(one: Learnt, other: Learnt, tolerance: float = 1e-9) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=tolerance, msg=lambda text, name=name: name + text)


def trained_loss(tuned: tint.Tuned, batch: dict[str, Any]) -> float:
    scored = tuned.score(batch["input_ids"], score_mask=batch["train_mask"], attention_mask=batch["attention_mask"])
    assert scored.loss is not None
    return float(scored.loss)
