# pyright: basic
"""Known configurations: their sizes are the published ones; what is not known gets one clear error."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import FIRST, every, make_config, size_keys

import tintformer as tint
from tintformer.auxiliary.description import ops
from tintformer.auxiliary.families import families
from tintformer.auxiliary.ops import Linear
from tintformer.storage import configs
from tintformer.storage.configs import KNOWN_MODELS, known_config, meta_auxiliary, read_config

COUNTS = {
    "openai-community/gpt2": 124_439_808,
    "openai-community/gpt2-medium": 354_823_168,
    "openai-community/gpt2-large": 774_030_080,
    "openai-community/gpt2-xl": 1_557_611_200,
    "distilbert/distilgpt2": 81_912_576,
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-350m": 331_196_416,
    "facebook/opt-1.3b": 1_315_758_080,
    "facebook/opt-2.7b": 2_651_596_800,
    "facebook/opt-6.7b": 6_658_473_984,
    "bigscience/bloom-560m": 559_214_592,
    "bigscience/bloom-1b1": 1_065_314_304,
    "bigscience/bloom-1b7": 1_722_408_960,
    "bigscience/bloom-3b": 3_002_557_440,
    "bigscience/bloom-7b1": 7_069_016_064,
    "bigscience/bloom": 176_247_271_424,
    "EleutherAI/pythia-14m": 14_067_712,
    "EleutherAI/pythia-31m": 30_494_720,
    "EleutherAI/pythia-70m": 70_426_624,
    "EleutherAI/pythia-160m": 162_322_944,
    "EleutherAI/pythia-410m": 405_334_016,
    "EleutherAI/pythia-1b": 1_011_781_632,
    "EleutherAI/pythia-1.4b": 1_414_647_808,
    "EleutherAI/pythia-2.8b": 2_775_208_960,
    "EleutherAI/pythia-6.9b": 6_857_302_016,
    "EleutherAI/pythia-12b": 11_846_072_320,
    "EleutherAI/gpt-neox-20b": 20_554_567_680,
    "EleutherAI/gpt-j-6b": 6_050_882_784,
    "EleutherAI/gpt-neo-1.3B": 1_315_575_808,
    "EleutherAI/gpt-neo-2.7B": 2_651_307_520,
    "huggyllama/llama-7b": 6_738_415_616,
    "huggyllama/llama-13b": 13_015_864_320,
    "huggyllama/llama-30b": 32_528_943_616,
    "huggyllama/llama-65b": 65_285_660_672,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "meta-llama/Meta-Llama-3-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "google/gemma-2b": 2_506_172_416,
    "google/gemma-7b": 8_537_680_896,
    "microsoft/phi-1_5": 1_418_270_720,
    "microsoft/phi-2": 2_779_683_840,
}
"""Totals that the owners or users of the checkpoints publish, tied weights counted once."""

SHAPE_ONLY = {"facebook/opt-13b", "facebook/opt-30b", "facebook/opt-66b", "EleutherAI/gpt-neo-125m"}
"""Shapes that public sources agree on, without an exact total among them; the closed form below checks these."""


def closed_form(config: Any) -> int:
    """OPT with a norm first, and GPT-Neo: matrices, biases and norms of the blocks, then embeddings and final norm."""
    width, layers = config.hidden_size, config.num_hidden_layers
    biases, offset = (9, 2) if config.model_type == "opt" else (6, 0)
    rows = config.vocab_size + config.max_position_embeddings + offset
    return layers * (12 * width**2 + (biases + 4) * width) + (rows + 2) * width


@pytest.mark.parametrize("name", every(4, KNOWN_MODELS))
def test_every_known_model_has_its_published_size(name: str) -> None:
    auxiliary = meta_auxiliary(read_config(name), name)
    assert auxiliary.device.type == "meta"
    assert auxiliary.model.num_parameters() == COUNTS.get(name) or name in SHAPE_ONLY
    config = auxiliary.model.config
    assert len(auxiliary.blocks) == config.num_hidden_layers
    linears = [op for block in auxiliary.blocks for op in ops(block) if isinstance(op, Linear)]
    assert linears[0].weight.read().shape[1] == config.hidden_size


def test_every_size_is_checked() -> None:
    assert COUNTS.keys() | SHAPE_ONLY == set(KNOWN_MODELS)
    checked = {"facebook/opt-125m", "facebook/opt-1.3b", "EleutherAI/gpt-neo-1.3B"} | SHAPE_ONLY
    for name in checked:
        config = read_config(name)
        assert meta_auxiliary(config, name).model.num_parameters() == closed_form(config), name


def test_the_example_of_every_family_is_known() -> None:
    for family in families().values():
        config = known_config(family.example)
        assert config is not None and config.model_type == family.model_type


@pytest.mark.parametrize("name", ["facebook/opt-125m", "opt-125m", "OPT-125M", "Facebook/OPT-125m"])
def test_names_in_any_case_and_without_their_owner(name: str) -> None:
    assert read_config(name).to_dict() == read_config("facebook/opt-125m").to_dict()


def test_short_names_are_unambiguous() -> None:
    assert len({name.rpartition("/")[2].lower() for name in KNOWN_MODELS}) == len(KNOWN_MODELS)
    assert known_config("someone-else/gpt2") is None


def test_a_configuration_is_the_callers_own() -> None:
    first: Any = known_config("meta-llama/Llama-3.2-1B")
    first.rope_parameters["factor"] = 1.0
    again: Any = known_config("meta-llama/Llama-3.2-1B")
    assert again.rope_parameters["factor"] == 32.0
    third: Any = known_config("meta-llama/Llama-3.2-3B")
    assert third.rope_parameters["factor"] == 32.0


def test_a_directory_or_a_file_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_config("llama").save_pretrained(tmp_path / "gpt2")
    monkeypatch.chdir(tmp_path)
    assert read_config("gpt2").model_type == "llama"
    assert read_config(tmp_path / "gpt2").model_type == "llama"
    assert read_config(tmp_path / "gpt2" / "config.json").hidden_size == make_config("llama").hidden_size


@pytest.mark.parametrize("name", ["gpt5", "facebook/opt-126m", "./nowhere", "/no/such/model"])
def test_what_is_neither_there_nor_known(name: str) -> None:
    with pytest.raises(tint.LoadError, match=r"no directory, no file and none of the \d+ names.*nothing is fetched"):
        read_config(name)


def test_the_error_proposes_similar_names() -> None:
    with pytest.raises(tint.LoadError, match=r"such as facebook/opt-125m"):
        read_config("facebook/opt-126m")


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(tint.LoadError, match=r"holds no config\.json"):
        read_config(tmp_path)
    file = tmp_path / "config.json"
    for content, message in [
        (b"hidden_size: 768", "as JSON: Expecting value"),
        (b"\xff\xfe\x00", "as JSON"),
        (b"[1, 2]", "does not say its model_type"),
        (b'{"hidden_size": 768}', "does not say its model_type"),
        (b'{"model_type": "no_such_family"}', "no configuration that transformers can read"),
        (b'{"model_type": "gpt2", "n_embd": "wide"}', "no configuration that transformers can read"),
    ]:
        file.write_bytes(content)
        with pytest.raises(tint.LoadError, match=message):
            read_config(file)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").mkdir()
    with pytest.raises(tint.LoadError, match="is a directory"):
        read_config(tmp_path / "odd")


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"model_type": "bert"}, "not a known family"),
        ({"model_type": "mamba"}, "not a known family"),
        ({"model_type": "mixtral"}, "mixture of experts"),
        ({"model_type": "llama", "hidden_act": "mish"}, "mish"),
    ],
    ids=["bert", "mamba", "mixtral", "activation"],
)
def test_unsupported_families(tmp_path: Path, knobs: dict[str, Any], reason: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(knobs), encoding="utf-8")
    with pytest.raises(tint.UnsupportedModelError, match=reason):
        read_config(file)


@pytest.mark.parametrize("name", FIRST)
def test_sizes_below_one_in_a_file(tmp_path: Path, name: str) -> None:
    file, settings = tmp_path / "config.json", make_config(name).to_dict()
    for key, value in itertools.product(size_keys(name), (0, -1, -2)):
        file.write_text(json.dumps({**settings, key: value}), encoding="utf-8")
        ours = f"{key}={value}: a size|a window of {value} tokens"
        with pytest.raises(tint.TintError, match=f"{ours}|no configuration that transformers can read"):
            read_config(file)


def test_a_configuration_that_cannot_be_built() -> None:
    config = make_config("gpt2")
    config.n_head = 5
    with pytest.raises(tint.LoadError, match="transformers cannot build model from its configuration"):
        meta_auxiliary(config, "model")


def test_bundled_models_are_known_too() -> None:
    assert read_config("nano-llama").num_key_value_heads == 2


def test_what_no_memory_of_this_machine_can_hold_is_refused_up_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "total_memory", lambda: 10**9)
    with pytest.raises(
        tint.LoadError, match=r"the weights of gpt2-medium take 1\.42 GB in float32, but there are 1\.00"
    ):
        configs.refuse_the_impossible("gpt2-medium", torch.float32)
    configs.refuse_the_impossible("gpt2-medium", torch.bfloat16)
    configs.refuse_the_impossible("nano-llama", torch.float32)
    configs.refuse_the_impossible("nobody/knows", torch.float32)
