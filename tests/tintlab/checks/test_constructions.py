# pyright: basic
"""Earlier constructions: the product lemma as it holds, and one linear layer by each of them."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch

import tintformer as tint
from tintlab.checks.constructions import (
    AttentionCopy,
    FeedForwardProduct,
    MemoryTape,
    PrefixAttention,
    best_scale,
    compare_constructions,
    gelu_product,
    gelu_product_error,
)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def test_the_error_of_the_product_quarters_as_the_scale_halves() -> None:
    """Fourth order in the factors, second in the scale; what is left beside the leading term falls faster still."""
    x, y = draw(2, 1000)
    errors = [gelu_product(x, y, scale=2.0**-power) - x * y for power in range(3, 8)]
    sizes = [float(error.norm()) for error in errors]
    for larger, smaller in pairwise(sizes):
        assert larger / smaller == pytest.approx(4, rel=0.1)
    rests = [
        float((error - gelu_product_error(x, y, scale=2.0**-power)).norm()) for power, error in enumerate(errors, 3)
    ]
    for larger, smaller in pairwise(rests[:3]):
        assert larger / smaller == pytest.approx(16, rel=0.2)
    assert rests[0] < 0.1 * sizes[0]


def test_the_printed_lemma_lacks_a_term() -> None:
    """Without GELU(x), what is left is sqrt(pi/8) x: no product, however small the factors are."""
    x, y = 1e-3 * draw(2, 100)
    printed = math.sqrt(math.pi / 2) * (torch.nn.functional.gelu(x + y) - torch.nn.functional.gelu(y))
    torch.testing.assert_close(printed - x * y, math.sqrt(math.pi / 8) * x, rtol=0.02, atol=1e-5)
    assert (printed - x * y).norm() > 100 * (x * y).norm()
    # Nor is the error of third order in both: with y fixed it falls with x, not with its cube.
    one = torch.ones(1, dtype=torch.float64)
    first, second = (abs(float(gelu_product(size * one, one) - size)) for size in (1e-3, 5e-4))
    assert first / second == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_scale_is_about_the_best(dtype: torch.dtype) -> None:
    x, y = draw(2, 1000)

    def error(scale: float) -> float:
        return float((gelu_product(x.to(dtype), y.to(dtype), scale=scale).double() - x * y).norm())

    best = error(best_scale(dtype))
    assert best < 0.2 * error(100 * best_scale(dtype)) and best < 0.2 * error(best_scale(dtype) / 100)


def test_every_construction_computes_the_layer_and_its_step() -> None:
    width, rate = 8, 0.1
    weight, (x, dy) = draw(width, width), draw(2, 3, width)
    output, step = x @ weight.mT, weight - rate * dy.mT @ x
    prefix, tape = PrefixAttention(width), MemoryTape(width)
    torch.testing.assert_close(prefix(weight, x), output, rtol=0, atol=1e-12)
    torch.testing.assert_close(prefix.backward(weight, dy), dy @ weight, rtol=0, atol=1e-12)
    torch.testing.assert_close(prefix.descend(weight, x, dy, rate), step, rtol=0, atol=1e-12)
    torch.testing.assert_close(tape(weight, x), output, rtol=0, atol=1e-8)
    torch.testing.assert_close(tape.descend(weight, x, dy, rate), step, rtol=0, atol=1e-8)
    places = torch.eye(width, dtype=torch.float64)
    assert torch.equal(AttentionCopy(width)(places.flip(0), places, weight), weight.flip(0))
    total = FeedForwardProduct(width, total=True)(x, dy)
    torch.testing.assert_close(total, (x * dy).sum(-1, keepdim=True).expand(-1, width), rtol=0, atol=1e-8)


def test_parameters_are_those_of_the_built_modules() -> None:
    width = 16
    copy, product, tape, prefix, paper, lean = compare_constructions(width, 5)
    parameters = [each.parameters for each in (copy, product, tape, prefix)]
    assert parameters == [times * width**2 for times in (3, 12, 27, 3)]
    assert lean.parameters < prefix.parameters and lean.non_zero < prefix.non_zero
    assert (tape.layers, tape.step_layers) == (48, 15)
    # A slot is wider than the layer by a coordinate for biases, so that 16 columns take 20, four rows a token.
    assert lean.weight_tokens == paper.weight_tokens == 5 and prefix.weight_tokens == tape.weight_tokens == width
    for exact in (copy, prefix, paper, lean):
        assert exact.errors["float64"] < 1e-14 and exact.errors["float32"] < 1e-5
    for exact in (prefix, paper, lean):
        assert exact.step_errors is not None and exact.step_errors["float64"] < 1e-14
    assert tape.step_errors is not None
    for errors in (product.errors, tape.errors, tape.step_errors):
        assert 1e-13 < errors["float64"] < 1e-8 and 1e-6 < errors["float32"] < 5e-3


def test_the_command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tintformer.cli import main

    out = ""
    for words in ([], ["--json"]):
        monkeypatch.setattr("sys.argv", ["tint", "eval", "constructions", "--width", "8", "--tokens", "3", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        out = capfd.readouterr().out
    assert [each["parameters"] for each in json.loads(out)["constructions"]][:2] == [3 * 64, 12 * 64]
    with pytest.raises(tint.InputError, match="tokens=9"):
        compare_constructions(8, 9)
