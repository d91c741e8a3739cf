# pyright: basic
"""Traces in every family: read once for all inputs, they are what each input by itself leaves at its query."""

from __future__ import annotations

import pytest
import torch
from cases import MODELS, make_model

import tintformer as tint
from tintlab.data.packing import Packed, Prompted
from tintlab.data.prompts import Role
from tintlab.kinds.compare_traces import similarities, trace_alone, trace_reading
from tintlab.kinds.implicit_update import feed_forwards

CONTEXT = (1, 5, 9, 14, 7)
"""A BOS, and a demonstration of four tokens, the last its label."""


def prompted(*test: int) -> Prompted:
    ids = (*CONTEXT, *test, 3)
    roles = (Role.FIRST, *[Role.CONTEXT] * 3, Role.LABEL, *[Role.TEST] * len(test), Role.ANSWER)
    sequence = Packed(ids=ids, roles=roles, segments=(0,) * len(ids))
    return Prompted(sequences=(sequence,), answers=((3,),), num_demonstrations=1, num_cut=0)


PROMPTS = [prompted(8, 11, 20, 6), prompted(8, 15), prompted(8, 11, 4, 13, 22)]
"""Test inputs of several lengths that begin alike."""


@pytest.mark.parametrize("name", MODELS)
def test_together_is_one_by_one(name: str) -> None:
    auxiliary = tint.load(make_model(name))
    plain = tint.Tuned.untrained(auxiliary)
    together = trace_reading(plain, PROMPTS)
    points = [layer.input_point for layer in feed_forwards(auxiliary)]
    for number, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt.sequences[0].ids])
        with plain.watch(*points, "blocks.*.output.output") as seen:
            plain.score(ids)
        for block, point in enumerate(points):
            expected = {
                "feed_forward_input": seen["after", point][0, -2],
                "attention_output": seen["after", f"blocks.{block}.output.output"][0, -2],
            }
            for kept, value in expected.items():
                torch.testing.assert_close(getattr(together, kept)[block][number], value, rtol=0, atol=1e-10)
            weights = together.attention_map[block][number]
            torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights), dtype=weights.dtype))


@pytest.mark.parametrize("name", ["gpt2", "mistral", "bloom", "gpt_neox", "gemma"])
def test_a_model_that_learnt_is_compared_in_every_block(name: str) -> None:
    auxiliary = tint.load(make_model(name))
    plain = tint.Tuned.untrained(auxiliary)
    tuned = tint.Tint(auxiliary, tint.LearningRule(learning_rate=0.1)).adapt([CONTEXT])
    traces = trace_alone(plain, PROMPTS), trace_reading(plain, PROMPTS), trace_alone(tuned, PROMPTS)
    found = similarities(auxiliary, *traces, tuned.update_views())
    for values in found.values():
        assert values.shape == (len(auxiliary.blocks), len(PROMPTS))
    # From the second block on everything moves, by reading and by learning.
    for each in ("attention_output", "block_output", "implicit_update", "implicit_effect", "attention_scores"):
        assert torch.isfinite(found[each][1:]).all() and float(found[each].nan_to_num().abs().max()) <= 1 + 1e-9, each
    assert (found["read_size"][1:] > 0).all() and (found["learnt_size"] > 0).all()
