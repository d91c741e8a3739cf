# pyright: basic
"""Streams do not grow: what is carried on, and what the process holds, stay the same however long a document is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import covering, make_model, make_rule

from tintbench.stream_growth import AROUND, read_chunks, table
from tintformer import Tint

OPTIMISERS: list[dict[str, Any]] = [{}, {"decay": 0.1}, {"momentum": 0.9}, {"optimizer": "adam"}, {"optimizer": "muon"}]


@pytest.mark.parametrize(("name", "knobs"), covering(["llama-grouped", "qwen3"], OPTIMISERS))
def test_what_a_stream_carries_does_not_grow(name: str, knobs: dict[str, Any]) -> None:
    tint = Tint(make_model(name, torch.float32), make_rule("default", learning_rate=1e-5, **knobs))
    found = read_chunks(tint, 40, 8, 32)
    # Factors grow until they are as large as the matrix, and are summed up then.
    held = [chunk.state for chunk in found]
    assert len(set(held[12:])) == 1 and max(held) <= 2 * held[-1]
    rows = table(found, 5)
    assert [row["chunk"] for row in rows] == [f"6 to {5 + AROUND}", f"23 to {22 + AROUND}", f"36 to {35 + AROUND}"]


@pytest.mark.sweep
@pytest.mark.parametrize("knobs", OPTIMISERS[:3], ids=str)
def test_a_stream_of_100_000_tokens_has_flat_memory(knobs: dict[str, Any]) -> None:
    tint = Tint(make_model("llama-grouped", torch.float32), make_rule("default", learning_rate=1e-6, **knobs))
    found = read_chunks(tint, 1000, 100, 300)
    assert len({chunk.state for chunk in found[20:]}) == 1
    # The system's own count: nothing else of the process grows with what has been read.
    assert found[-1].resident - found[100].resident < 10e6
