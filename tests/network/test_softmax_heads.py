# pyright: basic
"""A network whose every attention is a softmax: what it computes, and how its error falls with the step."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import call, call_once, make_batch, make_model, make_rule, some

import tintformer as tint
from tintformer.execution.batch import Batch
from tintformer.network.dense import DenseAttention

BATCH = make_batch(lengths=(9, 8))
RATIOS = {"printed": (1.6, 2.4), "pair": (3.2, 4.8)}
"""By what the error falls when the step halves: of the first order as printed, of the second as a pair."""


def error(name: str, rule: str, layers: int | None = None, **knobs: Any) -> float:
    """Of the logits, against the same network with linear attention."""
    model, learn = make_model(name), make_rule(rule, layers=layers)
    exact = call_once(name, learn, "network", BATCH)
    found = call(tint.Tint(model, learn, engine="network", dense=True, attention="softmax", **knobs), BATCH)
    return float((found.logits - exact.logits)[BATCH["attention_mask"].bool()].abs().max())


@pytest.mark.parametrize(
    ("name", "form", "start"),
    [("gpt2", "pair", 7), pytest.param("llama-grouped", "printed", 12, marks=pytest.mark.sweep)],
)
def test_order_of_error(name: str, form: str, start: int) -> None:
    errors = [error(name, "default", 1, softmax_form=form, softmax_epsilon=2.0**-k) for k in range(start, start + 3)]
    low, high = RATIOS[form]
    for coarse, fine in itertools.pairwise(errors):
        assert low < coarse / fine < high


# 1.5e-8 and 3.6e-6 were measured, where the logits themselves change by about 1.
@pytest.mark.parametrize(("name", "rule", "most"), some([("gpt2", "default", 1e-6), ("llama-grouped", "full", 1e-4)]))
def test_the_best_step_leaves_little(name: str, rule: str, most: float) -> None:
    assert error(name, rule) < most


@pytest.mark.parametrize("form", some(["pair", "printed"]))
def test_the_extra_token_stands_in_the_sequence_and_stays_zero(form: Any) -> None:
    model, rule = make_model("gpt2"), make_rule("default")
    linear = tint.compile(model, rule, max_tokens=11)
    network = tint.compile(model, rule, max_tokens=11, dense=True, attention="softmax", softmax_form=form)
    assert network.frame.num_prefix == linear.frame.num_prefix + 1
    batch = Batch.of(network.auxiliary, **make_batch())
    e = network.embed(batch.input_ids, network.flags(batch))
    for number, layer in enumerate(network.layers):
        e = layer(e)
        prefix = e[:, : network.frame.num_prefix]
        assert not prefix[:, -1].any(), number
        assert not prefix[..., network.frame.stack * network.frame.width :].any(), number


def test_no_attention_is_linear_and_the_factors_are_weights() -> None:
    epsilon = 2.0**-10
    network = tint.compile(
        make_model("llama"), make_rule("full"), max_tokens=8, dense=True, attention="softmax", softmax_epsilon=epsilon
    )
    linear = tint.compile(make_model("llama"), make_rule("full"), max_tokens=8, dense=True)
    made_soft = 0
    for layer, before in zip(network.layers, linear.layers, strict=True):
        if isinstance(layer, DenseAttention):
            assert isinstance(before, DenseAttention) and layer.order is not None
            if before.order is None:
                made_soft += 1
                ahead, behind = layer.output.chunk(2)
                assert torch.equal(ahead, before.output * (epsilon**-3 / 2)) and torch.equal(behind, -ahead)
    assert made_soft > 20


def test_it_is_saved_and_needs_a_dense_network(tmp_path: Path) -> None:
    model, rule = make_model("gpt2"), make_rule("default")
    network = tint.compile(model, rule, max_tokens=8, dense=True, attention="softmax", softmax_form="printed")
    network.save_pretrained(tmp_path / "network")
    again = tint.Network.from_pretrained(tmp_path / "network")
    assert again.settings == network.settings
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    with pytest.raises(tint.InputError, match="attention='softmax' needs dense=True"):
        tint.compile(model, rule, max_tokens=8, attention="softmax")
    with pytest.raises(tint.InputError, match="softmax_form='pears'"):
        tint.compile(model, rule, max_tokens=8, dense=True, attention="softmax", softmax_form="pears")  # type: ignore
