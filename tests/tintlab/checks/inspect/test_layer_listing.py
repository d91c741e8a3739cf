# pyright: basic
"""What `tint inspect --engine network` shows of a pass is what its layers do to the stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import DESCENTS, assert_same, call, make_batch, make_model, make_rule

import tintformer as tint
from tintformer.execution.batch import Batch
from tintformer.network.stream import Stream
from tintlab.checks.inspect.layer_listing import LayerValues, watch


def watched(**knobs: Any) -> tuple[tint.Network, Stream, list[LayerValues]]:
    network = tint.compile(make_model("gpt2"), make_rule("default", **knobs), max_tokens=11)
    batch = Batch.of(network.auxiliary, **make_batch())
    return network, network.run(batch.input_ids, network.flags(batch)), list(watch(network, batch))


@pytest.mark.parametrize("knobs", [{"steps": 2}, {"steps": 2, **DESCENTS["all"]}], ids=["sgd", "momentum and decay"])
@torch.no_grad()
def test_what_moves_adds_up_to_the_update(knobs: dict[str, Any]) -> None:
    network, behind, seen = watched(**knobs)
    blocks = list(network.shapes)
    moved: dict[str, Any] = {}
    sped_up: dict[str, Any] = {}
    for each in seen:
        assert {*each.moved} == ({*each.row.blocks} if each.row.changes_prefix else set())
        for total, changes in ((moved, each.moved), (sped_up, each.sped_up)):
            for op, change in changes.items():
                total[op] = total[op] + change if op in total else change
    assert moved and bool(sped_up) == network.frame.momentum
    for op, change in moved.items():
        number = blocks.index(op)
        assert_same(change, behind.prefix[number] - network.embed.prefix[number])
        assert float(change.abs().max()) > 0
    for op, change in sped_up.items():
        assert_same(change, behind.velocity[blocks.index(op)])


@torch.no_grad()
def test_what_is_written_stands_in_the_stream() -> None:
    network, behind, seen = watched()
    last: dict[int, Any] = {}
    for each in seen:
        last |= {slot: torch.zeros_like(behind.text[slot]) for slot, _ in each.row.cleared}
        last |= {slot: value for (slot, _), value in each.written.items()}
    assert all(torch.equal(value, behind.text[slot]) for slot, value in last.items())
    head = network.head.slot
    found = call(tint.Tint(make_model("gpt2"), make_rule("default"), engine="network"), make_batch())
    logits = network.head.unit(last[head].flatten(0, 1)).unflatten(0, last[head].shape[:2])
    assert_same(logits[:, : found.logits.shape[1]], found.logits)
