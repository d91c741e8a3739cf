# pyright: basic
"""Linear attention by softmax attentions and one extra token (paper: theorem "linear as softmax"): order of error.

Halving the step halves the error of the printed form and quarters that of the pair, as long as digits last.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from cases import call, make_batch, make_model, make_rule
from torch import Tensor

import tintformer as tint
from tintformer.auxiliary.ops import Linear, Weight
from tintformer.simulator import prefix
from tintformer.simulator.construction import SOFTMAX_EPSILONS
from tintformer.simulator.geometry import Geometry
from tintformer.simulator.layouts import Layout
from tintformer.simulator.modules.linear import LinearBackward, LinearDescent, LinearForward
from tintformer.simulator.modules.movement import Movement
from tintformer.simulator.primitives.attention import Weigh, linear, linear_as_softmax
from tintformer.simulator.regions import Cut, PieceStream
from tintformer.simulator.wiring import WiredOp

FORMS = ["printed", "pair"]
RATIOS = {"printed": (1.6, 2.4), "pair": (3.2, 4.8)}
"""By what the error falls when the step halves."""
LAYOUTS: dict[str, Any] = {
    "lean": Geometry(layout="lean", dim_aux=10, stack=3, shards=3, slots=3, max_tokens=16),
    "paper": Geometry(layout="paper", dim_aux=10, stack=3, shards=2, slots=3, max_tokens=16),
}


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def linear_module(phase: str, g: Geometry, weigh: Weigh, dtype: torch.dtype) -> Tensor:
    """A linear layer with a bias in three output pieces, one direction of it."""
    weight, bias = Weight(name="w", source=randn(23, 10, seed=0)), Weight(name="b", source=randn(23, seed=1))
    into, out = Cut(10, 10), Cut(23, 10)
    op = Linear(name="layer", weight=weight, bias=bias)
    tokens: Any = prefix.write(WiredOp(op=op, into=into, out=out, keys=into, role="layer", block=0), g, dtype)
    x = PieceStream.of(randn(2, 6, 10, seed=2), into, g.dim_slot).data.to(dtype)
    dy = PieceStream.of(randn(2, 6, 23, seed=3), out, g.dim_slot).data.to(dtype)
    layout = Layout(g)
    match phase:
        case "forward":
            return LinearForward(layout, has_bias=True, weigh=weigh).to(dtype)(x, tokens)
        case "backward":
            return LinearBackward(layout, weigh=weigh).to(dtype)(dy, tokens)
        case _:
            module = LinearDescent(
                layout, has_bias=True, movement=Movement(tint.LearningRule(learning_rate=0.01)), weigh=weigh
            ).to(dtype)
            return module(dy, x, tokens) - tokens


def module_error(phase: str, form: str, epsilon: float, *, layout: str = "lean", dtype: Any = torch.float64) -> float:
    """Relative to the length of what the linear attention gives in float64."""
    exact = linear_module(phase, LAYOUTS[layout], linear, torch.float64)
    found = linear_module(phase, LAYOUTS[layout], linear_as_softmax(form, epsilon), dtype)
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("phase", ["forward", "backward", "descent"])
@pytest.mark.parametrize("form", FORMS)
def test_order_of_error_of_a_module(form: str, phase: str, layout: str) -> None:
    errors = [module_error(phase, form, 2.0**-k, layout=layout) for k in range(5, 10)]
    low, high = RATIOS[form]
    for coarse, fine in itertools.pairwise(errors):
        assert low < coarse / fine < high
    assert errors[0] < 0.5


@pytest.mark.parametrize("phase", ["forward", "backward", "descent"])
@pytest.mark.parametrize("form", FORMS)
def test_float32_has_a_best_step_in_between(form: str, phase: str) -> None:
    step = SOFTMAX_EPSILONS[form, torch.float32]
    at, below, above = (module_error(phase, form, step * by, dtype=torch.float32) for by in (1, 1 / 100, 30))
    assert at < below / 5 and at < above / 5
    assert at < {"printed": 2e-2, "pair": 2e-3}[form]


@pytest.mark.parametrize("phase", ["forward", "backward", "descent"])
def test_the_pair_is_better_in_either_format(phase: str) -> None:
    for dtype in (torch.float32, torch.float64):
        pair, printed = (
            module_error(phase, form, SOFTMAX_EPSILONS[form, dtype], dtype=dtype) for form in ("pair", "printed")
        )
        assert pair < printed / 5
    assert pair < 1e-6


@cache
def end_to_end(name: str, form: str | None, epsilon: float | None, dtype: torch.dtype = torch.float64) -> Any:
    how = {} if form is None else {"attention": "softmax", "softmax_form": form, "softmax_epsilon": epsilon}
    return call(tint.build(make_model(name, dtype), make_rule("default"), **how), make_batch(lengths=(9, 8)))


def errors_of_a_pass(name: str, form: str, epsilon: float | None, dtype: Any = torch.float64) -> tuple[float, float]:
    """Of the logits, absolute; of all updates of the first sequence, relative to their length."""
    exact, found = end_to_end(name, None, None), end_to_end(name, form, epsilon, dtype)
    seen = make_batch(lengths=(9, 8))["attention_mask"].bool()
    updates, expected = found.updates(0), exact.updates(0)
    assert updates.keys() == expected.keys()
    truth = torch.cat([update.flatten() for update in expected.values()])
    ours = torch.cat([updates[parameter].flatten().double() for parameter in expected])
    logits = float((found.logits.double() - exact.logits)[seen].abs().max())
    return logits, float((ours - truth).norm() / truth.norm())


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
@pytest.mark.parametrize("form", FORMS)
def test_order_of_error_of_a_whole_pass(name: str, form: str) -> None:
    start = {"printed": 12, "pair": 7}[form]
    errors = [errors_of_a_pass(name, form, 2.0**-k) for k in (start, start + 1, start + 2)]
    low, high = RATIOS[form]
    for coarse, fine in itertools.pairwise(errors):
        assert low < coarse[0] / fine[0] < high
        assert low < coarse[1] / fine[1] < high


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_the_defaults_end_to_end(name: str) -> None:
    assert max(errors_of_a_pass(name, "pair", None)) < 1e-5
    assert max(errors_of_a_pass(name, "printed", None)) < 1e-2
    assert errors_of_a_pass(name, "pair", None, torch.float32)[1] < 2e-2
    step = SOFTMAX_EPSILONS["pair", torch.float32]
    assert (
        errors_of_a_pass(name, "pair", step, torch.float32)[1]
        < errors_of_a_pass(name, "pair", step / 100, torch.float32)[1]
    )


@pytest.mark.parametrize("form", FORMS)
def test_what_is_masked_has_no_weight_at_all(form: str) -> None:
    """Under a mask the weights are those of the visible tokens alone, however many there are."""
    scores, mask = randn(1, 1, 1, 1, 4, 6, seed=0), torch.zeros(1, 1, 1, 1, 4, 6, dtype=torch.float64)
    mask[..., 0, :3], mask[..., 1, 2], mask[..., 2, :] = 1, 1, 1
    errors = []
    for epsilon in (2.0**-6, 2.0**-7):
        weights: Any = sum(term * factor for term, factor in linear_as_softmax(form, epsilon)(scores, mask))
        assert bool((weights[mask == 0] == 0).all())
        errors.append(float((weights - scores * mask).abs().max()))
    low, high = RATIOS[form]
    assert low < errors[0] / errors[1] < high


def test_softmax_attention_is_not_the_linear_one() -> None:
    """The knob does something: nearly the same numbers, by another way."""
    assert not torch.equal(end_to_end("gpt2", "pair", None).logits, end_to_end("gpt2", None, None).logits)
