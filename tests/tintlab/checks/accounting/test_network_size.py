# pyright: basic
"""Sizes of compiled networks: what is counted on shapes is what dense layers of real models have, entry by entry."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from cases import DESCENTS, FIRST, make_config, make_model, make_rule, some

import tintformer as tint
from tintformer.network.dense import dense_form
from tintformer.network.layers import Vocabulary
from tintformer.storage.configs import meta_auxiliary
from tintlab.checks.accounting.network_entries import entries, kept
from tintlab.checks.accounting.network_size import CLEARING, count_layers, count_network

CASES = [
    *itertools.product(FIRST, ["default"]),
    ("gpt2", "full"),
    ("qwen3", "full"),
    ("llama-grouped", "full"),
    ("bloom", "perturbed-relative"),
    ("mistral", "paper"),
    ("opt-350m-kind", "mse"),
    ("gpt2-odd", "quad"),
    ("gemma-grouped", "central-fixed"),
    ("phi-grouped", "first-order-relative"),
]


def measured(layer: Any, frame: Any, dtype: torch.dtype) -> tuple[int, int]:
    """Entries of the dense form, materialised; without masks and the auxiliary's own head."""
    parameters = [each for each in dense_form(layer, frame, dtype).parameters() if each.dtype != torch.bool]
    if isinstance(layer, Vocabulary):
        own = {id(each) for each in layer.parameters()}
        parameters = [each for each in parameters if id(each) not in own]
    return sum(each.numel() for each in parameters), sum(int(each.count_nonzero()) for each in parameters)


@pytest.mark.parametrize(("name", "rule"), some(CASES[::-1], 7))
def test_every_layer_counts_as_its_dense_form(name: str, rule: str) -> None:
    assert_counted(name, make_rule(rule))


@pytest.mark.parametrize("descent", some(["all", *(each for each in DESCENTS if each != "all")]))
def test_so_do_layers_of_momentum_decay_and_loops(descent: str) -> None:
    knobs = DESCENTS[descent]
    assert_counted("gpt2", make_rule("full", steps=2, **knobs))
    assert_counted("gpt2", make_rule("full", steps=3, layers=1, **{**knobs, "schedule": ()}), loop=True)


def assert_counted(name: str, learn: tint.LearningRule, **knobs: Any) -> None:
    auxiliary = meta_auxiliary(make_config(name), name)
    with torch.device("meta"):
        shapes: Any = tint.Network(auxiliary, learn, max_tokens=5, stack=2, **knobs)
    network = tint.compile(make_model(name), learn, max_tokens=5, stack=2, **knobs)
    assert len(shapes.layers) == len(network.layers)
    for bare, layer in zip(shapes.layers, network.layers, strict=True):
        size = entries(bare, shapes.frame)
        expected = measured(layer, network.frame, network.dtype)
        assert (size.dense, size.non_zero) == expected, type(layer).__name__
        if not isinstance(layer, Vocabulary):
            stored = [each.numel() for each in layer.parameters() if each.is_floating_point()]
            assert [each.numel() for each in kept(bare)] == stored
    assert count_layers(shapes) == count_layers(network)


def test_the_cases_have_every_kind_of_layer() -> None:
    from tintformer.network import attention_layers, layers

    kinds = {
        each.__name__
        for module in (layers, attention_layers)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, layers.Layer)
    } - {"Layer", "TokenLayer", "StoreAttention"}
    found = {
        count.kind
        for name, rule in [("gpt2", make_rule("full", momentum=0.9)), ("llama-grouped", make_rule("full"))]
        for count in count_network(meta_auxiliary(make_config(name), name), rule=rule).counts
    }
    assert found == kinds | {CLEARING}


@pytest.mark.parametrize("name", some(["llama-grouped", "gpt2", "bloom"]))
def test_the_totals_are_those_of_both_ways_to_run_a_network(name: str) -> None:
    rule = make_rule("default", steps=2)
    dense, plain = (tint.compile(make_model(name), rule, max_tokens=5, dense=dense) for dense in (True, False))
    size = count_layers(plain)
    everything = {id(each): each for each in plain.parameters()}
    own = {id(each): each for part in (plain.embed, plain.head) for each in part.parameters()}
    assert size.auxiliary == sum(each.numel() for each in own.values())
    stored = [each for key, each in everything.items() if key not in own and each.is_floating_point()]
    assert size.total("structured") == sum(each.numel() for each in stored)
    assert dense.frame == plain.frame and len(dense.layers) == size.layers == size.total("layers")
    entries = [each for layer in dense.layers for each in layer.parameters() if id(each) not in own]
    entries = [each for each in entries if each.is_floating_point()]
    # The head's rows are the auxiliary's own, in the layer over the vocabulary too.
    rows = {each.data_ptr() for each in dense.head.parameters()}
    entries = [each for each in entries if each.data_ptr() not in rows]
    assert size.total("dense") == sum(each.numel() for each in entries)
    assert size.total("non_zero") == sum(int(each.count_nonzero()) for each in entries)
    assert size.depth()[-1]["total"] == size.layers


def test_a_loop_stores_its_layers_once() -> None:
    rule = make_rule("default", steps=3)
    looped, one = (
        count_layers(tint.compile(make_model("gpt2"), learn, max_tokens=5, loop=loop))
        for learn, loop in ((rule, True), (make_rule("default"), False))
    )
    assert looped.total("layers") == looped.layers > 2 * one.layers
    # And one more, which brings up the loss weights of the next step: 13 coordinates, each from any other.
    assert looped.total("structured") == one.total("structured") + 13**2


@pytest.mark.parametrize(("name", "rule"), some([("llama", "full"), ("gpt2", "default"), ("qwen3", "full")]))
def test_depth_grows_by_the_layers_of_a_step(name: str, rule: str) -> None:
    auxiliary = meta_auxiliary(make_config(name), name)
    sizes = [count_network(auxiliary, rule=make_rule(rule, steps=steps), max_tokens=8) for steps in (1, 2, 3, 4)]
    working = [size.layers - sum(each.layers for each in size.counts if each.kind == CLEARING) for size in sizes]
    assert {after - before for before, after in itertools.pairwise(working)} == {sizes[0].layers_a_step}
    # With those that clear slots it grows evenly from the second step on, and the width does not grow any more.
    depths = [size.layers for size in sizes]
    assert depths[3] - depths[2] == depths[2] - depths[1]
    assert len({size.width for size in sizes[1:]}) == 1


def test_opt_125m() -> None:
    size = count_network("facebook/opt-125m")
    assert (size.layers, size.slots, size.slot_width, size.prefix_tokens) == (1021, 187, 772, 27_842)
    assert size.width == (4 + 187) * 772
    # Two norms, four projections, attention, two sums, and the feed-forward's 4 + 4 + 1: 18 values of width D a block.
    capacity = size.capacity
    assert capacity.forward_values == 12 * 18 * 768 and capacity.widths["forward_values"] == 54
    assert capacity.store == 64 * 12
    assert capacity.kept < capacity.text_slots < capacity.forward_values
    assert count_network("facebook/opt-125m", max_tokens=2048).capacity.widths["store"] == 8


def test_bad_input_is_one_line() -> None:
    with pytest.raises(tint.TintError, match="max_tokens=4096 but gpt2 was built for 1024 positions"):
        count_network("gpt2", max_tokens=4096)
    with pytest.raises(tint.TintError, match="max_tokens=1 must be a whole number of at least 2"):
        count_network("gpt2", max_tokens=1)
