# pyright: basic
"""Every configuration that loads comes back as it was: from simulators, Tint models and models that have learnt."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from cases import MODELS, TOKENS, VOCABULARY, assert_same, every, make_batch, make_rule
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from misaligned import misalign

import tintformer as tint
from tintformer.auxiliary.description import Embedding
from tintformer.storage.saved_configs import plain_settings

RULE = make_rule("default")
EPSILONS = [1e-5, 0.00001, 1e-12, 3.3e-7, 0.1, 1 / 3]
ACTIVATIONS = ["relu", "gelu", "gelu_new", "silu", "gelu_pytorch_tanh", "quick_gelu"]
BOTH = [False, True]
ROPES = [
    {"rope_type": "default", "rope_theta": 100.0},
    {"rope_type": "default", "rope_theta": 1e6 / 7},
    {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5},
    {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "rope_theta": 50.0, "factor": 3.0, "beta_fast": 16.0, "attention_factor": 0.7},
    {
        "rope_type": "llama3",
        "rope_theta": 100.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
]
PARTIAL = [{**rope, "partial_rotary_factor": share} for rope in ROPES[:2] for share in (0.25, 0.5, 1.0)]
LEGACY = [{"rope_type": "linear", "factor": 2.0}, {"type": "linear", "factor": 3.0}]
"""As configurations have it that older versions of transformers wrote."""


def gated(*more: tuple[str, list[Any]]) -> dict[str, list[Any]]:
    return {
        "rms_norm_eps": EPSILONS,
        "hidden_act": ACTIVATIONS,
        "rope_parameters": ROPES,
        "num_key_value_heads": [1],
        "head_dim": [4, 6],
        **dict(more),
    }


SWITCHES: dict[str, dict[str, list[Any]]] = {
    "gpt2": {
        "layer_norm_epsilon": EPSILONS,
        "n_inner": [None, 17],
        "scale_attn_weights": BOTH,
        "scale_attn_by_inverse_layer_idx": BOTH,
        "reorder_and_upcast_attn": BOTH,
        "activation_function": ACTIVATIONS,
    },
    "opt": {
        "do_layer_norm_before": BOTH,
        "_remove_final_layer_norm": BOTH,
        "word_embed_proj_dim": [None, 8],
        "enable_bias": BOTH,
        "layer_norm_elementwise_affine": BOTH,
        "activation_function": ACTIVATIONS,
    },
    "llama": gated(
        ("attention_bias", BOTH), ("mlp_bias", BOTH), ("rope_theta", [50.0, 1e6 / 3]), ("rope_scaling", LEGACY)
    ),
    "mistral": gated(("sliding_window", [None, 2, 4])),
    "qwen2": gated(
        ("use_sliding_window", BOTH),
        ("sliding_window", [None, 3]),
        ("max_window_layers", [0, 1, 2]),
        ("layer_types", [None, ["sliding_attention", "full_attention"]]),
    ),
    "qwen3": gated(
        ("use_sliding_window", BOTH),
        ("sliding_window", [3, 5]),
        ("max_window_layers", [0, 1, 2]),
        ("attention_bias", BOTH),
    ),
    "bloom": {
        "layer_norm_epsilon": EPSILONS,
        "apply_residual_connection_post_layernorm": BOTH,
        "slow_but_exact": BOTH,
        "pretraining_tp": [1, 2],
    },
    "gptj": {
        "layer_norm_epsilon": EPSILONS,
        "rotary_dim": [2, 4, 8],
        "n_inner": [None, 17],
        "activation_function": ACTIVATIONS,
    },
    "gpt_neox": {
        "layer_norm_eps": EPSILONS,
        "use_parallel_residual": BOTH,
        "attention_bias": BOTH,
        "hidden_act": ACTIVATIONS,
        "rope_parameters": [None, *PARTIAL],
        "rotary_pct": [0.25, 0.5],
        "rotary_emb_base": [77, 1000.0],
    },
    "gpt_neo": {
        "layer_norm_epsilon": EPSILONS,
        "intermediate_size": [None, 17],
        "window_size": [2, 5],
        "attention_types": [[[["global", "local"], 1]], [[["local"], 2]], [[["local"], 1], [["global"], 1]]],
        "activation_function": ACTIVATIONS,
    },
    "phi": {
        "layer_norm_eps": EPSILONS,
        "hidden_act": ACTIVATIONS,
        "qk_layernorm": BOTH,
        "num_key_value_heads": [None, 2],
        "rope_parameters": [None, *PARTIAL],
        "partial_rotary_factor": [0.5, 1.0],
    },
    "gemma": gated(("attention_bias", BOTH), ("hidden_act", ["gelu", "gelu_pytorch_tanh", "silu"])),
}
"""All that a family reads in its configuration, and what older versions of transformers called it."""

COMMON: dict[str, list[Any]] = {
    "tie_word_embeddings": BOTH,
    "eos_token_id": [2, [2, 3], None],
    "pad_token_id": [None, 0],
    "num_labels": [3],
    "output_attentions": BOTH,
    "use_cache": BOTH,
    "initializer_range": [0.02, 1e-30],
    "_of_somebody_else": [True, {"_deep": [math.inf, -math.inf, 1e-320]}],
    "temperature_of_nothing": [math.inf, None, "1e-05"],
    "architectures": [None, ["Other"]],
    "attn_implementation": ["eager"],
}
"""What every family has, keys that none knows, private ones and infinities among them."""


@st.composite
def knobs(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """A tiny configuration of a family with any of the switches set."""
    _, base = MODELS[family]
    given = {key: value for key, value in base.items() if value is not None}
    for key, values in (SWITCHES[family] | COMMON).items():
        if draw(st.booleans()):
            given[key] = draw(st.sampled_from(values))
    if "rotary_pct" in given or "rotary_emb_base" in given or "partial_rotary_factor" in given:
        given.pop("rope_parameters", None)
    if "rope_theta" in given or "rope_scaling" in given:
        given.pop("rope_parameters", None)
    if given.get("output_attentions"):
        given["attn_implementation"] = "eager"  # transformers does not save it with another
    return copy.deepcopy(given)


def make_model(family: str, given: dict[str, Any], dtype: torch.dtype = torch.float64) -> Any:
    """A tiny model with large random weights, as `cases` has them, of any configuration."""
    prefix, _ = MODELS[family]
    config = getattr(transformers, f"{prefix}Config")(**{"vocab_size": VOCABULARY, **TOKENS, **given})
    head = "LMHeadModel" if prefix == "GPT2" else "ForCausalLM"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, prefix + head)(config).to(dtype).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape).to(dtype))
    return misalign(model)


def described(value: Any, *, tensors: bool = True) -> Any:
    """A description in plain values, every tensor of it as its shape, dtype and bytes."""
    if isinstance(value, torch.Tensor):
        shape = tuple(value.shape)
        return (shape, str(value.dtype), value.detach().contiguous().numpy().tobytes()) if tensors else shape
    if dataclasses.is_dataclass(value):
        origin = ("model", "name", "record", "open_tokenizer")
        fields = [field.name for field in dataclasses.fields(value) if field.name not in origin]
        if isinstance(value, Embedding) and not tensors:
            fields.remove("scale")  # Gemma's is a table too
        return type(value).__name__, {name: described(getattr(value, name), tensors=tensors) for name in fields}
    return [described(each, tensors=tensors) for each in value] if isinstance(value, tuple) else value


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def logits(of: Any) -> Any:
    batch = make_batch(lengths=(7, 6))
    return of(batch.pop("input_ids"), **batch).logits


@pytest.mark.parametrize("family", every(3, SWITCHES))
@pytest.mark.parametrize("examples", [1, pytest.param(60, marks=pytest.mark.sweep)])
def test_every_configuration_comes_back(family: str, examples: int) -> None:
    # Without shrinking, which would take minutes to say which of a few switches it was.
    phases = [Phase.explicit, Phase.generate]

    @settings(max_examples=examples, deadline=None, derandomize=True, phases=phases)
    @given(knobs=knobs(family), dtype=st.sampled_from([torch.float64, torch.float32]))
    def check(knobs: dict[str, Any], dtype: torch.dtype) -> None:
        model = make_model(family, knobs, dtype)
        with tempfile.TemporaryDirectory() as place:
            check_simulator(model, Path(place))
            check_tint_model(model, Path(place))
            check_learnt_model(model, Path(place))

    check()


def check_simulator(model: Any, place: Path) -> None:
    simulator = tint.build(model, RULE)
    simulator.save_pretrained(place / "simulator")
    back = tint.Simulator.from_pretrained(place / "simulator")
    assert described(back.auxiliary) == described(simulator.auxiliary)
    assert_same(logits(back), logits(simulator))
    back.save_pretrained(place / "again")
    assert files(place / "simulator") == files(place / "again")


def check_tint_model(model: Any, place: Path) -> None:
    tinted = tint.TintForCausalLM.from_auxiliary(model, RULE)
    tinted.save_pretrained(place / "model")
    back = tint.TintForCausalLM.from_pretrained(place / "model")
    assert described(back.engine.auxiliary) == described(tinted.engine.auxiliary)
    assert_same(logits(back), logits(tinted))
    back.save_pretrained(place / "once more")
    assert files(place / "model") == files(place / "once more")


def check_learnt_model(model: Any, place: Path) -> None:
    """transformers saves what `to_hf` gives, and an update fits what comes back of its base."""
    tuned = tint.Tint(model, RULE).adapt(make_batch()["input_ids"])
    tuned.save(place / "update.safetensors")
    tuned.to_hf().save_pretrained(place / "learnt")
    model.save_pretrained(place / "base")
    learnt = tint.load(place / "learnt", dtype=model.dtype)
    # But for tables of frequencies and scales, which a conversion rounds and transformers computes anew.
    assert described(learnt, tensors=False) == described(tuned.auxiliary, tensors=False)
    for name, value in tuned.to_hf().named_parameters():
        assert torch.equal(learnt.model.get_parameter(name), value), name
    base = tint.load(place / "base", dtype=model.dtype)
    again = tint.Tuned.load(place / "update.safetensors", base)
    for name, update in tuned.updates().items():
        assert_same(again.updates()[name], update)


@pytest.mark.parametrize("removed", [False, True])
def test_a_private_key_that_takes_a_norm_away(removed: bool, tmp_path: Path) -> None:
    model = make_model("opt", {**MODELS["opt"][1], "_remove_final_layer_norm": removed})
    simulator = tint.build(model, RULE)
    simulator.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["auxiliary"]["_remove_final_layer_norm"] is removed
    back = tint.Simulator.from_pretrained(tmp_path)
    assert len(back.auxiliary.final) == (0 if removed else 1)
    assert_same(logits(back), logits(simulator))


CHANGED: dict[str, tuple[str, str, Any]] = {
    "an epsilon": ("llama", "rms_norm_eps", 0.1),
    "an activation that the class corrects": ("gemma", "hidden_act", "gelu"),
    "a window": ("mistral", "sliding_window", 2),
    "an order of steps": ("opt", "do_layer_norm_before", False),
    "heads": ("gpt2", "n_head", 2),
    "a number of layers": ("gpt2", "n_layer", 1),
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_configuration_that_would_come_back_as_another_model(change: str, tmp_path: Path) -> None:
    """Set on a model that is there already: its modules have what they were made with."""
    family, key, value = CHANGED[change]
    model = make_model(family, {name: each for name, each in MODELS[family][1].items() if each is not None})
    setattr(model.config, key, value)
    for number, save in enumerate((save_simulator, save_tint_model)):
        place = tmp_path / str(number)
        try:
            save(model, place)
        except tint.TintError as refused:
            # What the modules show is refused when the model is described, with a list of reasons.
            assert isinstance(refused, tint.UnsupportedModelError) or "\n" not in str(refused)
            assert not place.exists()
            continue
        back = tint.Simulator.from_pretrained(place) if save is save_simulator else None
        back = back or tint.TintForCausalLM.from_pretrained(place).engine
        assert described(back.auxiliary) == described(tint.load(model))


def save_simulator(model: Any, place: Path) -> None:
    tint.build(model, RULE).save_pretrained(place)


def save_tint_model(model: Any, place: Path) -> None:
    tint.TintForCausalLM.from_auxiliary(model, RULE).save_pretrained(place)


def test_numbers_of_numpy_stay_numbers() -> None:
    config: Any = transformers.LlamaConfig
    config = config(**{"extra": numpy.float32(0.5), "more": torch.tensor(3), "kind": torch.bfloat16})
    settings = plain_settings(config)
    assert (settings["extra"], settings["more"], settings["kind"]) == (0.5, 3, "bfloat16")


def test_what_json_has_no_form_for_is_refused_in_one_line() -> None:
    config: Any = transformers.LlamaConfig
    config = config(**{"extra": {(1, 2): 3}})
    with pytest.raises(tint.TintError, match="the configuration of llama cannot be saved: keys must be") as refused:
        plain_settings(config)
    assert "\n" not in str(refused.value)


def test_where_a_model_came_from_is_not_saved(tmp_path: Path) -> None:
    model = make_model("gpt2", dict(MODELS["gpt2"][1]))
    model.config._name_or_path = "/home/somebody/secret"
    save_simulator(model, tmp_path / "a")
    save_tint_model(model, tmp_path / "b")
    assert all(
        b"secret" not in json.dumps(json.loads(file.read_text())["auxiliary"]).encode()
        for file in tmp_path.glob("*/config.json")
    )
