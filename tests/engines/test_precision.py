# pyright: basic
"""Half-precision models: what they learn is float32, however small, and loading them takes no second copy."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from cases import call, make_batch, make_model, make_rule
from transformers import GPT2Config, GPT2LMHeadModel

import tintformer as tint
from tintbench.measuring import PROC, peak_of

HALVES = [torch.bfloat16, torch.float16]
TINY = 1e-7


def pair(name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """A model in half precision, and the same rounded weights in float32."""
    half = deepcopy(make_model(name, torch.float32)).to(dtype)
    return half, deepcopy(half).float()


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("dual", [True, False], ids=["dual", "dense"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["gpt2", "llama-grouped", "bloom", "gemma"])
def test_updates_are_float32_however_small(name: str, dtype: torch.dtype, dual: bool, steps: int) -> None:
    """A change of 1e-7 beside weights of 0.1 has no place in 8 or 11 bits; it is kept beside them.

    Activations and gradients are rounded at every op to u = 2^-9 (bfloat16) or 2^-12 (float16), relatively. Some 30
    roundings lie behind the update of the lowest layer; errors of one sign would add up to 30 u, random ones to 5 u.
    """
    half, wide = pair(name, dtype)
    rule, batch = make_rule("default", learning_rate=TINY, steps=steps), make_batch()
    learnt = call(tint.Tint(half, rule, dual=dual), batch).updates(0)
    exact = call(tint.Tint(wide, rule), batch).updates(0)
    unit = torch.finfo(dtype).eps / 2
    for parameter, change in exact.items():
        assert learnt[parameter].dtype == torch.float32
        error = float((learnt[parameter] - change).norm() / change.norm().clamp(min=1e-30))
        assert error < 30 * unit, (parameter, error)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_formed_matrix_keeps_a_change_that_the_weight_cannot_hold(dtype: torch.dtype) -> None:
    half, _ = pair("gpt2", dtype)
    tuned = tint.Tint(half, make_rule("default", learning_rate=TINY, steps=2)).adapt(make_batch()["input_ids"])
    lost = 0
    for weight, update in tuned._updates.settled().matrices.items():
        formed = update.matrix(weight.read())[0]
        change = tuned._updates.formed([weight], 0)[weight]
        assert formed.dtype == torch.float32
        torch.testing.assert_close(formed - weight.read(), change, rtol=0, atol=1e-7)  # as float32 rounds weights of 1
        lost += int((formed.to(dtype) == weight.read()).sum())
    assert lost, "nothing was small enough to be lost in half precision, so nothing was shown"


def peak_of_loading(path: Path) -> int:
    tint.load("nano-gpt2")  # libraries allocate what they keep
    kept = []
    return peak_of(lambda: kept.append(tint.load(path, dtype=torch.float32)))


@pytest.mark.skipif(not (PROC / "clear_refs").exists(), reason="peak memory needs Linux; run it there")
def test_loading_takes_no_second_copy(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "n_positions": 64, "vocab_size": 12000}
    GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=3, n_head=16, **knobs)).save_pretrained(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    assert size > 1.9e8 and forked.result_of(peak_of_loading, tmp_path) < 1.15 * size
