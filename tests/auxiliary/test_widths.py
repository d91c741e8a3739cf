# pyright: basic
"""Models whose sizes contradict each other are refused when they are described, with the op named."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from cases import make_model
from torch import nn

import tintformer as tint

MISFITS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "an output projection of other heads": (
        "llama",
        lambda model: setattr(model.model.layers[1].self_attn, "o_proj", nn.Linear(2, model.config.hidden_size)),
        r"blocks\.1\.output takes 2 numbers a token and gets \d+: its sizes contradict each other",
    ),
    "keys of another width": (
        "llama",
        lambda model: setattr(model.model.layers[0].self_attn, "k_proj", nn.Linear(model.config.hidden_size, 6)),
        r"blocks\.0\.attention \(keys\) takes \d+ numbers a token and gets 6",
    ),
    "a norm of another width": (
        "gpt2",
        lambda model: setattr(model.transformer, "ln_f", nn.LayerNorm(3)),
        r"final\.norm takes 3 numbers a token and gets \d+",
    ),
    "a feed-forward layer that does not come back": (
        "opt",
        lambda model: setattr(model.model.decoder.layers[0], "fc2", nn.Linear(model.config.ffn_dim, 5)),
        r"blocks\.0\.mlp_residual takes \d+ numbers a token and gets 5",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_contradicting_sizes_are_named(misfit: str) -> None:
    name, alter, message = MISFITS[misfit]
    model = deepcopy(make_model(name))  # which is shared
    alter(model)
    model.to(next(model.parameters()).dtype)
    with pytest.raises(tint.UnsupportedModelError, match=message):
        tint.load(model)
