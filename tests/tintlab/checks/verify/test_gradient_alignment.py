# pyright: basic
"""Updates as gradients, and how they are compared with the true one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cases import make_model, make_rule

import tintformer as tint
from tintformer.execution.batch import Batch
from tintlab.checks.verify.gradients import (
    align,
    compare,
    parameters,
    rate_of_share,
    simulated_gradient,
    true_gradient,
)
from tintlab.checks.verify.verified_engine import find_verified_engine

IDS = torch.tensor([[5, 9, 3, 17, 22, 8, 11, 4, 26, 7]])
TRAIN = torch.arange(10)[None] < 7


def setup(name: str) -> tuple[tint.Auxiliary, Batch]:
    auxiliary = tint.load(make_model(name))
    return auxiliary, Batch.of(auxiliary, IDS, train_mask=TRAIN)


def gradient(auxiliary: Any, batch: Batch, preset: str, engine: str = "reference") -> Any:
    rule = make_rule(preset)
    return rule, simulated_gradient(auxiliary, rule, batch, find_verified_engine(engine).engine(auxiliary, rule))


def test_the_true_gradient_is_autograds() -> None:
    auxiliary, batch = setup("gpt2")
    truth = true_gradient(auxiliary, batch)
    model = make_model("gpt2")
    logits = model(IDS[:, :6]).logits[0]
    loss = torch.nn.functional.cross_entropy(logits, IDS[0, 1:7], reduction="sum")
    block = model.transformer.h[1]
    fused, down = torch.autograd.grad(loss, [block.attn.c_attn.weight, block.mlp.c_proj.bias])
    torch.testing.assert_close(truth["blocks.1.key.weight"][0], fused.mT[12:24])
    torch.testing.assert_close(truth["blocks.1.value.weight"][0], fused.mT[24:])
    torch.testing.assert_close(truth["blocks.1.down.bias"][0], down)


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped", "qwen3", "bloom"])
def test_the_full_rule_follows_the_true_gradient_and_the_default_what_it_can(name: str) -> None:
    auxiliary, batch = setup(name)
    truth = true_gradient(auxiliary, batch)
    assert list(truth) == [name for name, _ in parameters(auxiliary)]
    rule, found = gradient(auxiliary, batch, "full", "fast")
    full = align(auxiliary, rule, found, truth)
    for alignment in (full.moved, full.everything):
        assert alignment.cosine == pytest.approx(1) and alignment.norm_ratio == pytest.approx(1)
    assert all(matrix.moved for matrix in full.matrices)

    rule, found = gradient(auxiliary, batch, "default")
    default: Any = align(auxiliary, rule, found, truth)
    by_name = {(matrix.layer, matrix.matrix): matrix for matrix in default.matrices}
    assert not by_name[1, "query.weight"].moved and by_name[1, "query.weight"].cosine is None
    assert by_name[1, "query.weight"].norm_ratio == 0
    # Nothing below the last attention is approximated before its own values and everything above them.
    for matrix in ("value.weight", "output.weight", "up.weight", "down.weight"):
        assert by_name[1, matrix].cosine == pytest.approx(1) and by_name[1, matrix].norm_ratio == pytest.approx(1)
    assert by_name[0, "value.weight"].cosine < 0.9999
    assert default.everything.cosine < default.moved.cosine < 0.9999
    # What stands still takes part in the norm of the truth alone.
    assert default.everything.norm_ratio < default.moved.norm_ratio


def test_a_key_bias_has_no_gradient_to_follow() -> None:
    auxiliary, batch = setup("gpt2")
    rule, found = gradient(auxiliary, batch, "full")
    matrices = align(auxiliary, rule, found, true_gradient(auxiliary, batch)).matrices
    blind = [matrix for matrix in matrices if matrix.norm_ratio is None]
    assert [(matrix.layer, matrix.matrix) for matrix in blind] == [(0, "key.bias"), (1, "key.bias")]


def test_cosine_and_ratio_of_known_vectors() -> None:
    x, y = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    assert compare([2 * x, 2 * y], [x, y]).cosine == pytest.approx(1)
    assert compare([2 * x, 2 * y], [x, y]).norm_ratio == pytest.approx(2)
    assert compare([x, 0 * y], [x, y]).cosine == pytest.approx(3 / 5)
    assert compare([0 * x], [x]).cosine is None and compare([0 * x], [x]).norm_ratio == 0
    assert compare([x], [0 * x]).norm_ratio is None


def test_every_sequence_counts() -> None:
    auxiliary = tint.load(make_model("llama"))
    two = Batch.of(auxiliary, torch.cat((IDS, IDS.flip(1))), train_mask=TRAIN.expand(2, -1))
    truth = true_gradient(auxiliary, two)
    assert all(len(each) == 2 for each in truth.values())
    alone = true_gradient(auxiliary, Batch.of(auxiliary, IDS, train_mask=TRAIN))
    for name, each in alone.items():
        torch.testing.assert_close(truth[name][0], each[0])


def test_a_rate_moves_the_weights_by_its_share() -> None:
    auxiliary, batch = setup("gpt2")
    truth = true_gradient(auxiliary, batch)
    rate = rate_of_share(auxiliary, truth, 0.01)
    assert math.log2(rate) == round(math.log2(rate))
    moved = math.sqrt(sum(float((rate * each).square().sum()) for each in truth.values()))
    size = math.sqrt(sum(float(weight.read().square().sum()) for _, weight in parameters(auxiliary)))
    assert 0.01 / math.sqrt(2) <= moved / size <= 0.01 * math.sqrt(2)


def test_an_update_of_several_steps_is_no_gradient() -> None:
    auxiliary, batch = setup("gpt2")
    rule = make_rule("default", steps=2)
    with pytest.raises(AssertionError, match="only after one step"):
        simulated_gradient(auxiliary, rule, batch, find_verified_engine("fast").engine(auxiliary, rule))
