# pyright: basic
"""Differences inside the simulator err as they must: halve the step, and a first-order error halves, a central one
quarters; so does that of the perturbed softmax, by which queries and keys get their exact gradient."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from cases import call, covering, make_batch, make_model, make_rule
from torch import Tensor

import tintformer as tint

HALVES, QUARTERS = (1.9, 2.1), (3.8, 4.2)
QUERY_KEY = ("q_proj", "k_proj", "q_norm", "k_norm")


@cache
def truth(name: str, rule: str) -> dict[str, Tensor]:
    """What autograd gives, norms, activations and softmax by their derivatives."""
    return call(tint.Tint(make_model(name), make_rule(rule), engine="oracle"), make_batch(lengths=(9,))).updates()


def error(name: str, rule: str, only: tuple[str, ...] = ("",), **knobs: Any) -> float:
    """Of the update of the parameters named, relative to its length."""
    simulator = tint.build(make_model(name), replace(make_rule(rule), **knobs))
    updates, expected = call(simulator, make_batch(lengths=(9,))).updates(), truth(name, rule)
    names = [parameter for parameter in expected if any(part in parameter for part in only)]
    assert len(names) >= 4
    ours, theirs = (torch.cat([each[parameter].flatten() for parameter in names]) for each in (updates, expected))
    return float((ours - theirs).norm() / theirs.norm())


def check(errors: list[float], ratio: tuple[float, float]) -> None:
    for coarse, fine in itertools.pairwise(errors):
        assert ratio[0] < coarse / fine < ratio[1], errors
    assert 1e-9 < errors[-1] < errors[0] < 0.1


@pytest.mark.parametrize(("name", "mode"), covering(["opt", "qwen3", "gemma-grouped"], ["fixed", "relative"]))
def test_query_and_key_updates_by_the_perturbed_softmax(name: str, mode: str) -> None:
    errors = [
        error(name, "query-key", QUERY_KEY, attention_gradient="perturbed", epsilon=2.0**-k, epsilon_mode=mode)
        for k in (6, 7, 8)
    ]
    check(errors, QUARTERS)


@pytest.mark.parametrize(
    ("name", "how"),
    covering(["gpt2", "qwen3"], [*itertools.product(["norm_gradient", "activation_gradient"], ["fixed", "relative"])]),
)
@pytest.mark.parametrize(
    ("scheme", "ratio"), [("first_order", HALVES), ("central", QUARTERS)], ids=["first", "central"]
)
def test_norms_and_activations(scheme: str, ratio: tuple[float, float], name: str, how: tuple[str, str]) -> None:
    of, mode = how
    knobs: dict[str, Any] = {of: scheme, "epsilon_mode": mode}
    check([error(name, "default", epsilon=2.0**-k, **knobs) for k in (7, 8, 9)], ratio)


@pytest.mark.parametrize("name", ["opt", "qwen3"])
def test_an_exact_attention_gradient_needs_no_step(name: str) -> None:
    """Carried out as a difference, whose step follows the dtype: nothing of it is seen at 1e-8."""
    assert error(name, "query-key", QUERY_KEY) < 1e-8
    assert error(name, "full") < 1e-8


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_without_differences_nothing_is_approximate(name: str) -> None:
    assert error(name, "default") < 1e-12
