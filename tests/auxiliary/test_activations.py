# pyright: basic
"""Activations under the names that transformers gives them: the same values and slopes."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN
from transformers.models.bloom.modeling_bloom import bloom_gelu_forward

from tintformer.auxiliary.activations import FUNCTIONS

CLOSE = {"rtol": 0, "atol": 1e-12}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_slopes(name: str) -> None:
    x = 3 * torch.randn(2, 50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    theirs = bloom_gelu_forward if name == "gelu_bloom" else ACT2FN[name]
    y = theirs(x)
    torch.testing.assert_close(FUNCTIONS[name].value(x), y, **CLOSE)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(FUNCTIONS[name].derivative(x.detach()), slope, **CLOSE)
