# pyright: basic
"""Masks and positions against definitions written out token by token, on random shapes, paddings and segments."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tintformer.auxiliary.description import Auxiliary, Embedding, Head
from tintformer.auxiliary.ops import Weight
from tintformer.errors import TintWarning
from tintformer.execution.batch import Batch
from tintformer.execution.inputs import SHARED

VOCABULARY = 29
TABLE = Weight(name="table", source=torch.zeros(VOCABULARY, 4))
MODEL = Auxiliary(
    name="a model",
    family="none",
    embedding=Embedding(tokens=TABLE),
    blocks=(),
    final=(),
    head=Head(weight=TABLE),
    max_positions=64,
    model=None,
)
"""All that a batch asks a model for: its vocabulary, its device and its longest context."""


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, Any]:
    """One row: padding anywhere, shared tokens first, segments in runs, a random training part."""
    tokens = draw(st.integers(1, 12))
    bits = st.lists(st.booleans(), min_size=tokens, max_size=tokens)
    attended, train, loss = draw(bits), draw(bits), draw(bits)
    shared = draw(st.integers(0, 2))
    runs = draw(st.lists(st.integers(0, 2), min_size=tokens, max_size=tokens))
    segments = [SHARED if t < shared else runs[t] for t in range(tokens)]
    ids = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=tokens, max_size=tokens))
    return {"ids": ids, "attended": attended, "train": train, "loss": loss, "segments": segments}


def sees(row: dict[str, Any], t: int, j: int, window: int | None) -> bool:
    if t == j:
        return True
    segments, attended = row["segments"], row["attended"]
    if j > t or not (attended[t] and attended[j]) or segments[j] not in (segments[t], SHARED):
        return False
    between = [k for k in range(j, t) if attended[k] and segments[k] in (segments[t], SHARED)]
    return window is None or len(between) < window


@settings(max_examples=150, deadline=None)
@given(row=inputs(), window=st.sampled_from([None, 1, 2, 4]))
def test_masks_and_positions(row: dict[str, Any], window: int | None) -> None:
    tokens = len(row["ids"])
    if not any(a and t for a, t in zip(row["attended"], row["train"], strict=True)):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TintWarning)
        batch = Batch.of(
            MODEL,
            torch.tensor([row["ids"]]),
            train_mask=torch.tensor([row["train"]]),
            attention_mask=torch.tensor([row["attended"]]),
            loss_mask=torch.tensor([row["loss"]]),
            segment_ids=torch.tensor([row["segments"]]),
        )
    expected = [[sees(row, t, j, window) for j in range(tokens)] for t in range(tokens)]
    assert batch.visible(window)[0].tolist() == expected
    mask = batch.additive_mask(torch.float32, window)[0]
    assert torch.equal(mask == 0, torch.tensor(expected))
    assert float(mask.min()) in (0.0, torch.finfo(torch.float32).min)
    for t in range(tokens):
        if row["attended"][t]:
            assert int(batch.positions[0, t]) == sum(sees(row, t, j, None) for j in range(t))
        target = t + 1
        pair = target < tokens and row["attended"][t] and row["attended"][target]
        pair = pair and row["segments"][t] == row["segments"][target]
        assert bool(batch.train_positions[0, t]) == bool(pair and row["train"][target] and row["loss"][target])
        assert bool(batch.evaluation_positions[0, t]) == bool(pair and not row["train"][target])
        if target < tokens:
            assert bool(batch.evaluation_mask[0, target]) == bool(batch.evaluation_positions[0, t])
    assert not bool(batch.evaluation_mask[0, 0])
