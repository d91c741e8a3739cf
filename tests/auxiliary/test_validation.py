# pyright: basic
"""What cannot be simulated is refused, all reasons at once; what is damaged is named."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import transformers
from cases import MODELS, make_config, make_model, size_keys

import tintformer as tint
from tintformer.auxiliary.validation import find_family


def refusal(config: object) -> str:
    with pytest.raises(tint.UnsupportedModelError) as caught:
        find_family(config, "model")
    return str(caught.value)


def test_all_reasons_are_listed_at_once() -> None:
    config = make_config("llama")
    config.num_local_experts = 4
    config.attn_logit_softcapping = 50.0
    config.quantization_config = {"quant_method": "bitsandbytes"}
    config.rope_parameters = {"rope_type": "longrope", "rope_theta": 1e4}
    config.hidden_act = "mish"
    message = refusal(config)
    for reason in ("mixture of experts", "soft-capping", "bitsandbytes", "longrope", "mish"):
        assert reason in message
    assert message.count("\n  - ") == 5


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (transformers.T5Config(), "encoder-decoder"),
        (transformers.MixtralConfig(), "mixture of experts"),
        (transformers.Gemma2Config(), "soft-capping"),
        (transformers.BertConfig(), "not a known family"),
    ],
    ids=["t5", "mixtral", "gemma2", "bert"],
)
def test_unknown_architectures(config: object, reason: str) -> None:
    assert reason in refusal(config)


@pytest.mark.parametrize(
    ("name", "knob", "value", "reason"),
    [
        ("gpt2", "add_cross_attention", True, "cross-attention"),
        ("llama", "rope_parameters", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, "dynamic"),
        ("llama", "num_key_value_heads", 2, "evenly"),
        ("gemma", "use_bidirectional_attention", True, "bidirectional"),
        ("gptj", "rotary_dim", None, "rotary_dim"),
        ("gptj", "rotary_dim", 64, "but a head is 8 wide"),
        ("gpt2", "final_logit_softcapping", 30.0, "soft-capping"),
    ],
)
def test_unsupported_configurations(name: str, knob: str, value: object, reason: str) -> None:
    config = make_config(name)
    object.__setattr__(config, knob, value)
    assert reason in refusal(config)


def test_gguf_is_not_taken_for_quantised() -> None:
    config = make_config("llama")
    config.quantization_config = {"quant_method": "gguf"}
    assert find_family(config, "model").model_type == "llama"


def test_damaged_weights_are_named() -> None:
    model = copy.deepcopy(make_model("gpt2"))
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[0, 0] = float("nan")
    with pytest.raises(tint.UnsupportedModelError, match=r"transformer\.h\.1\.mlp\.c_fc\.weight contains NaN"):
        tint.load(model)


def test_a_model_without_head_is_refused() -> None:
    with pytest.raises(tint.UnsupportedModelError, match="no language-model head"):
        tint.load(make_model("gpt2").transformer)


def test_a_model_without_data_is_refused() -> None:
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(make_config("gpt2"))
    with pytest.raises(tint.UnsupportedModelError, match="device meta"):
        tint.load(model)


def test_empty_parameters_are_refused() -> None:
    model = copy.deepcopy(make_model("llama"))
    model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(torch.empty(0, 12))
    with pytest.raises(tint.UnsupportedModelError, match=r"mlp\.up_proj\.weight is empty, of shape \(0, 12\)"):
        tint.load(model)


@pytest.mark.parametrize("name", MODELS)
def test_every_size_is_a_whole_number_of_at_least_one(name: str) -> None:
    for key, value in itertools.product(size_keys(name), (0, -1, -2, 2.5)):
        config = make_config(name)
        object.__setattr__(config, key, value)
        found = refusal(config)
        assert f"{key}={value}: a size" in found or f"a window of {value} tokens" in found, (key, value)


def test_a_window_that_no_layer_has_is_not_looked_at() -> None:
    config = make_config("gpt_neo")
    config.attention_layers, config.window_size = ["global", "global"], 0
    assert find_family(config, "model").model_type == "gpt_neo"


def test_more_layers_than_their_list() -> None:
    config = make_config("qwen2-sliding")
    config.num_hidden_layers = 3
    assert "it has 3 layers and lists the attention of fewer" in refusal(config)
