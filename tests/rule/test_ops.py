# pyright: basic
"""The mathematics of each op against autograd, and the order of error of the differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tintformer.auxiliary.activations import FUNCTIONS
from tintformer.auxiliary.ops import Alibi, Attend, Rotary
from tintformer.rule import activation, attention, head, linear, norm

CLOSE = {"rtol": 0, "atol": 1e-12}


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gradients(output: torch.Tensor, dy: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad((output * dy).sum(), inputs)


@pytest.mark.parametrize("own", [False, True], ids=["one-set", "one-set-a-sequence"])
def test_linear(own: bool) -> None:
    x, dy = randn(2, 5, 3).requires_grad_(), randn(2, 5, 4, seed=1)
    weight = randn(2, 4, 3, seed=2).requires_grad_() if own else randn(4, 3, seed=2).requires_grad_()
    bias = randn(2, 4, seed=3).requires_grad_() if own else randn(4, seed=3).requires_grad_()
    y = linear.forward(x, weight, bias)
    dx, dweight, dbias = gradients(y, dy, x, weight, bias)
    torch.testing.assert_close(linear.backward(dy, weight), dx, **CLOSE)
    weights, biases = linear.weight_gradient(x, dy), linear.bias_gradient(dy)
    torch.testing.assert_close(weights if own else weights.sum(0), dweight, **CLOSE)
    torch.testing.assert_close(biases if own else biases.sum(0), dbias, **CLOSE)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm(kind: norm.NormKind) -> None:
    x, dy = randn(2, 5, 7).requires_grad_(), randn(2, 5, 7, seed=1)
    scale, bias = (1 + 0.3 * randn(2, 7, seed=2)).requires_grad_(), randn(2, 7, seed=3).requires_grad_()
    y = norm.forward(x, scale, bias, kind=kind, epsilon=1e-2)
    dx, dscale, dbias = gradients(y, dy, x, scale, bias)
    torch.testing.assert_close(norm.backward(x, dy, scale, kind=kind, epsilon=1e-2), dx, **CLOSE)
    torch.testing.assert_close(norm.scale_gradient(x, dy, kind=kind, epsilon=1e-2), dscale, **CLOSE)
    torch.testing.assert_close(norm.bias_gradient(dy), dbias, **CLOSE)


def test_layer_norm_is_torchs() -> None:
    x, scale, bias = randn(2, 5, 7), randn(7, seed=2), randn(7, seed=3)
    expected = torch.nn.functional.layer_norm(x, (7,), scale, bias, eps=1e-3)
    torch.testing.assert_close(norm.forward(x, scale, bias, kind="layer", epsilon=1e-3), expected, **CLOSE)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activation(name: str) -> None:
    x = (3 * randn(2, 50, 3)).requires_grad_()
    dy = randn(2, 50, 3, seed=1)
    (dx,) = gradients(activation.forward(x, function=name), dy, x)
    torch.testing.assert_close(activation.backward(x, dy, function=name), dx, **CLOSE)


def attend(**knobs: Any) -> Attend:
    shape: dict[str, Any] = {"name": "a", "num_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "scale": 0.4}
    return Attend(**{**shape, **knobs})


POSITIONS = {
    "none": None,
    "rotary": Rotary(inverse_frequencies=torch.tensor([1.0, 0.3, 0.1])),
    "partial-interleaved-yarn": Rotary(inverse_frequencies=torch.tensor([1.0, 0.2]), scaling=1.3, interleaved=True),
    "alibi": Alibi(slopes=torch.tensor([0.5, 0.25, 0.1, 0.05])),
}


def attention_case(position: str) -> tuple[Attend, attention.AttentionContext, list[torch.Tensor], torch.Tensor]:
    op = attend(position=POSITIONS[position])
    hidden = torch.ones(7, 7).triu(1).bool()
    mask = torch.zeros(7, 7, dtype=torch.float64).masked_fill(hidden, torch.finfo(torch.float64).min)
    positions = torch.arange(7).expand(2, 7) + 2
    rotation = attention.rotation(op.position, positions, mask.dtype) if isinstance(op.position, Rotary) else None
    where = attention.AttentionContext(mask=mask.expand(2, 1, 1, 7, 7), positions=positions, rotation=rotation)
    inputs = [randn(2, 7, width, seed=i).requires_grad_() for i, width in enumerate((24, 12, 12))]
    return op, where, inputs, randn(2, 7, 24, seed=9)


@pytest.mark.parametrize("position", POSITIONS)
def test_attention_exact(position: str) -> None:
    op, where, inputs, dy = attention_case(position)
    heads = attention.split(inputs, op, where)
    y = attention.forward(heads, op, where)
    expected = gradients(y, dy, *inputs)
    ours = attention.backward(heads, dy, op, where, scheme="exact")
    for mine, true in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, true, **CLOSE)


@pytest.mark.parametrize("position", POSITIONS)
def test_attention_by_values_alone(position: str) -> None:
    op, where, inputs, dy = attention_case(position)
    frozen = [inputs[0].detach(), inputs[1].detach(), inputs[2]]
    (expected,) = gradients(attention.forward(attention.split(frozen, op, where), op, where), dy, inputs[2])
    dquery, dkey, dvalue = attention.backward(attention.split(inputs, op, where), dy, op, where, scheme="value")
    assert dquery is None and dkey is None
    torch.testing.assert_close(dvalue, expected, **CLOSE)


def test_rotation_back_undoes_rotation() -> None:
    x, positions = randn(2, 3, 5, 8), torch.arange(5).expand(2, 5)
    by = attention.rotation(Rotary(inverse_frequencies=torch.tensor([1.0, 0.5, 0.1])), positions, x.dtype)
    for interleaved in (False, True):
        there = attention.rotate(x, by, interleaved=interleaved)
        back = attention.rotate(there, by, interleaved=interleaved, inverse=True)
        torch.testing.assert_close(back, x, **CLOSE)
        torch.testing.assert_close(there[..., 6:], x[..., 6:], rtol=0, atol=0)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "quad"])
@pytest.mark.parametrize("mean", [False, True], ids=["sum", "mean"])
def test_loss_gradient(loss: Any, mean: bool) -> None:
    x, weight, bias = randn(2, 6, 5).requires_grad_(), randn(11, 5, seed=1), randn(11, seed=2)
    targets = torch.randint(0, 11, (2, 6), generator=torch.Generator().manual_seed(3))
    train_positions = torch.tensor([[1, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0]]).bool()
    rows = weight[targets]
    values = {
        "cross_entropy": torch.nn.functional.cross_entropy(
            (x @ weight.mT + bias).flatten(0, 1), targets.flatten(), reduction="none"
        ).view(2, 6),
        "mse": 0.5 * (x - rows).square().sum(-1),
        "quad": 0.5 * (x @ weight.mT).square().sum(-1) - (x * rows).sum(-1),
    }
    weights = train_positions.double() / train_positions.sum(-1, keepdim=True) if mean else train_positions.double()
    (expected,) = torch.autograd.grad((values[loss] * weights).sum(), x)
    ours = head.loss_gradient(x, weight, bias, targets, train_positions, loss=loss, mean=mean)
    torch.testing.assert_close(ours, expected, **CLOSE)
    assert bool((ours[~train_positions] == 0).all())


def norm_error(scheme: Any, mode: Any, kind: Any) -> Callable[[float], float]:
    x, dy, scale = 2 * randn(1, 20, 16), randn(1, 20, 16, seed=1), 1 + 0.3 * randn(16, seed=2)
    exact = norm.backward(x, dy, scale, kind=kind, epsilon=1e-5)

    def error(step: float) -> float:
        ours = norm.backward(x, dy, scale, kind=kind, epsilon=1e-5, scheme=scheme, step=step, mode=mode)
        return float((ours - exact).norm() / exact.norm())

    return error


def activation_error(scheme: Any, mode: Any, name: str) -> Callable[[float], float]:
    x, dy = randn(1, 20, 16), randn(1, 20, 16, seed=1)
    exact = activation.backward(x, dy, function=name)

    def error(step: float) -> float:
        ours = activation.backward(x, dy, function=name, scheme=scheme, step=step, mode=mode)
        return float((ours - exact).norm() / exact.norm())

    return error


def attention_error(mode: Any, position: str) -> Callable[[float], float]:
    op, where, inputs, dy = attention_case(position)
    heads = attention.split([x.detach() for x in inputs], op, where)
    exact: Any = attention.backward(heads, dy, op, where, scheme="exact")

    def error(step: float) -> float:
        ours: Any = attention.backward(heads, dy, op, where, scheme="perturbed", step=step, mode=mode)
        return float((ours[0] - exact[0]).norm() / exact[0].norm())

    return error


MODES = ["fixed", "relative"]


@pytest.mark.parametrize(
    "error",
    [
        *(norm_error("first_order", mode, kind) for mode, kind in itertools.product(MODES, ["layer", "rms"])),
        *(activation_error("first_order", mode, name) for mode in MODES for name in ("gelu", "silu", "gelu_new")),
    ],
)
def test_first_order_error_halves_with_the_step(error: Callable[[float], float]) -> None:
    for step in (4e-3, 2e-3, 1e-3):
        assert 1.9 < error(step) / error(step / 2) < 2.1


@pytest.mark.parametrize(
    "error",
    [
        *(norm_error("central", mode, kind) for mode, kind in itertools.product(MODES, ["layer", "rms"])),
        *(activation_error("central", mode, name) for mode in MODES for name in ("gelu", "silu", "gelu_new")),
        *(attention_error(mode, position) for mode in MODES for position in POSITIONS),
    ],
)
def test_central_error_quarters_with_the_step(error: Callable[[float], float]) -> None:
    for step in (8e-3, 4e-3, 2e-3):
        assert 3.8 < error(step) / error(step / 2) < 4.2


def test_cancellation_sets_a_floor() -> None:
    """Below the best step the error grows again: digits cancel."""
    error = norm_error("first_order", "fixed", "rms")
    assert error(1e-13) > 100 * error(1e-8)


@pytest.mark.parametrize("scheme", ["first_order", "central"])
def test_a_zero_gradient_stays_zero_with_relative_steps(scheme: Any) -> None:
    x, dy = randn(1, 4, 8), torch.zeros(1, 4, 8, dtype=torch.float64)
    for value in (x, torch.zeros_like(x), x.float()):
        dx = norm.backward(
            value,
            dy.to(value.dtype),
            None,
            kind="rms",
            epsilon=1e-5,
            scheme=scheme,
            step=1e-3,
            mode="relative",
        )
        assert bool((dx == 0).all())
