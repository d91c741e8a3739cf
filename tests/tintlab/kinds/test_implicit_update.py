# pyright: basic
"""The implicit update of a feed-forward layer does to its token what the context did, to rounding, in every family."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases import FIRST, MODELS, VOCABULARY, every, make_model

import tintformer as tint
from tintlab.kinds.implicit_update import (
    FeedForward,
    ImplicitUpdate,
    feed_forwards,
    implicit_updates,
    kept_positions,
)

CONTEXT = slice(1, 7)
"""Behind the BOS, before the query."""
IDS = torch.randint(3, VOCABULARY, (2, 11), generator=torch.Generator().manual_seed(5))
POSITIONS = torch.arange(11).expand(2, 11)
PARALLEL = ("gptj", "gpt_neox", "phi")


def reading(auxiliary: tint.Auxiliary, point: str, *, with_context: bool) -> torch.Tensor:
    """What stands at a point at the last tokens, by the model as it is."""
    tuned, seen = tint.Tuned.untrained(auxiliary), torch.ones_like(IDS)
    seen[:, CONTEXT] = int(with_context)
    with tuned.watch(point) as found:
        tuned.score(IDS, attention_mask=seen, position_ids=kept_positions(tuned.auxiliary, POSITIONS))
    return found["after", point][:, -1]


def answer_without_context(model: Any, layer: FeedForward, found: ImplicitUpdate, row: int) -> torch.Tensor:
    """What the layer says without the context, its weights really changed in a copy of the Hugging Face model."""
    changed = copy.deepcopy(model)
    for op in layer.readers:
        update = found.matrix(f"{op.name}.weight", row)
        op.weight.write(op.weight.read() + update, changed.get_parameter(op.weight.name).data)
    tuned, seen = tint.Tuned.untrained(tint.load(changed)), torch.ones_like(IDS)
    seen[:, CONTEXT] = 0
    bias = 0.0 if found.bias is None else found.bias[row]
    with (
        tuned.hook(f"{layer.last.name}.output", lambda value, point: value + bias),
        tuned.watch(layer.output_point) as outputs,
    ):
        tuned.score(IDS, attention_mask=seen, position_ids=kept_positions(tuned.auxiliary, POSITIONS))
    return outputs["after", layer.output_point][row, -1]


@pytest.mark.parametrize("name", every(2, [*FIRST, *(name for name in MODELS if name not in FIRST)]))
def test_a_layer_with_the_implicit_update_needs_no_context(name: str) -> None:
    model = make_model(name)
    auxiliary = tint.load(model)
    updates = implicit_updates(auxiliary, IDS, context=CONTEXT)
    assert len(updates) == len(auxiliary.blocks)
    effects: list[float] = []
    for layer, found in zip(feed_forwards(auxiliary), updates, strict=True):
        expected = reading(auxiliary, layer.output_point, with_context=True)
        plain = reading(auxiliary, layer.output_point, with_context=False)
        parallel = name.partition("-")[0] in PARALLEL and name != "gpt_neox-sequential"
        assert (found.bias is None) == parallel
        for row in range(len(IDS)):
            answered = answer_without_context(model, layer, found, row)
            torch.testing.assert_close(answered, expected[row], rtol=0, atol=1e-10)
        effects.append(float((expected - plain).abs().max()))
    # The context did something that had to be reproduced; it has no way into the first layer of a parallel block.
    assert max(effects) > 1e-4


@pytest.mark.parametrize("name", ["gpt2", "llama", "gptj"])
def test_cosines_are_those_of_the_formed_matrices(name: str) -> None:
    auxiliary = tint.load(make_model(name))
    rule = tint.LearningRule(learning_rate=0.1)
    views = tint.Tint(auxiliary, rule).adapt(IDS).update_views()
    found = implicit_updates(auxiliary, IDS, context=CONTEXT)[1]
    learnt = {name: views[name].delta for name in found.left}
    assert len(learnt) == (2 if name == "llama" else 1)
    for row in range(len(IDS)):
        own, other = (
            torch.cat([part.flatten() for part in parts])
            for parts in ([found.matrix(name, row) for name in learnt], learnt.values())
        )
        assert float(found.cosines(learnt)[row]) == pytest.approx(float(torch.cosine_similarity(own, other, dim=0)))
        a = found.right[row] / found.right[row].square().sum()
        mine, theirs = (
            torch.cat([part @ a for part in parts])
            for parts in ([found.matrix(name, row) for name in learnt], learnt.values())
        )
        expected = float(torch.cosine_similarity(mine, theirs, dim=0))
        assert float(found.effect_cosines(learnt)[row]) == pytest.approx(expected)


@pytest.mark.parametrize("context", [slice(0, 0), slice(3, None)])
def test_a_context_is_some_of_the_tokens_before_the_last(context: slice) -> None:
    with pytest.raises(tint.InputError, match="must be some of the tokens, and not the last one"):
        implicit_updates(make_model("gpt2"), IDS, context=context)
