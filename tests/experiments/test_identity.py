# pyright: basic
"""Identity: one spelling of a value, and hashes that change with what they stand for and with nothing else."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import make_model
from torch import nn

import tintformer
from tintformer.errors import InputError, LoadError
from tintformer.experiments import identity
from tintformer.experiments.identity import (
    canonical,
    code_version,
    config_hash,
    from_json,
    key_of,
    to_json,
    weights_hash,
)

KEYS = st.text().filter(lambda key: key != "$float")  # the one key that is refused
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(VALUES)
def test_every_value_survives_strict_json(value: Any) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = json.dumps(to_json(value), allow_nan=False)
    assert same(from_json(json.loads(text, parse_constant=refuse)), value)


@given(st.dictionaries(KEYS, VALUES))
def test_a_key_knows_no_order(value: dict[str, Any]) -> None:
    assert key_of(value) == key_of(dict(reversed(value.items())))
    assert key_of(value | {"seed": 1}) != key_of(value | {"seed": 2})


def test_what_json_would_change_is_refused_with_its_place() -> None:
    assert canonical({"b": (1, 2.5), "a": math.inf}) == '{"a":{"$float":"inf"},"b":[1,2.5]}'
    with pytest.raises(InputError, match=r"^rule\.rates\[1\] is a Tensor, which JSON cannot keep; make it a number"):
        to_json({"rule": {"rates": [1.0, torch.ones(1)]}})
    with pytest.raises(InputError, match=r"^by_layer has the key 3; keys are strings"):
        to_json({"by_layer": {3: 1.0}})
    with pytest.raises(InputError, match=r"keys are strings other than '\$float'"):
        to_json({"$float": "inf"})


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


def test_the_version_of_the_code() -> None:
    version, _, digest = code_version().partition("+")
    assert version == tintformer.__version__ and len(digest) == 16
    command = "from tintformer.experiments.identity import code_version; print(code_version())"
    found = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == code_version()
    paths = [path for path, _ in identity._sources(identity.files("tintformer"), "")]
    assert "rule/learning_rule.py" in paths and "batch.py" in paths and "experiments/tasks/choose.py" in paths
    assert not [path for path in paths if path.startswith(("cli/", "report/", "bench/"))]
