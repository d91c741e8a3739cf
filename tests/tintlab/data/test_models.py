# pyright: basic
"""Hashes of models, which change with what they stand for and with nothing else."""

from __future__ import annotations

import pytest
import torch
from tiny import make_model
from torch import nn

from tintformer.errors import LoadError
from tintlab.data.models import config_hash, weights_hash


def hash_of(model: nn.Module) -> str:
    found = weights_hash(model)
    assert len(found) == 64 and found == weights_hash(model)
    return found


def test_the_hash_of_weights_is_of_names_shapes_types_and_bytes() -> None:
    model = make_model(64)
    base = hash_of(model)
    assert hash_of(make_model(64)) == base
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        assert hash_of(make_model(64).to(dtype)) != base
    changed = make_model(64)
    with torch.no_grad():
        changed.transformer.h[1].mlp.c_fc.weight[3, 5].nextafter_(torch.tensor(9.0))
    assert hash_of(changed) != base
    strided = make_model(64)
    weight = strided.transformer.h[0].mlp.c_fc.weight
    weight.data = weight.data.T.contiguous().T
    assert not weight.is_contiguous() and hash_of(strided) == base


def test_tied_weights_count_once_and_only_persistent_buffers_count() -> None:
    tied = make_model(64)
    assert tied.lm_head.weight is tied.transformer.wte.weight
    untied = make_model(64)
    untied.lm_head.weight = nn.Parameter(untied.lm_head.weight.detach().clone())
    assert hash_of(tied) != hash_of(untied)
    module = nn.Linear(2, 2)
    base = hash_of(module)
    module.register_buffer("passing", torch.ones(3), persistent=False)
    assert hash_of(module) == base
    module.register_buffer("kept", torch.tensor(1), persistent=True)  # no dimension
    module.register_buffer("empty", torch.ones(0, 3), persistent=True)
    assert hash_of(module) != base


def test_the_order_of_registration_does_not_matter_and_meta_is_refused() -> None:
    one, other = nn.Module(), nn.Module()
    first, second = nn.Linear(2, 3), nn.Linear(3, 2)
    one.first, one.second = first, second
    other.second, other.first = second, first
    assert hash_of(one) == hash_of(other)
    with torch.device("meta"), pytest.raises(LoadError, match=r"^bias has no weights"):
        weights_hash(nn.Linear(2, 2))


def test_the_configuration_counts_without_its_provenance() -> None:
    model = make_model(64)
    base = config_hash(model)
    model.config._name_or_path = "elsewhere"
    assert config_hash(model) == base
    model.config.layer_norm_epsilon = 1e-3
    assert config_hash(model) != base
