# pyright: basic
"""Tint models on disk: the same weights in another process, whichever of the packages is imported first."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import MODELS, assert_same, call, every, make_batch, make_model, make_rule, some
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_register import CHECK
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import tintformer as tint
from tintformer.storage import whole_files
from tintformer.transformers.files import CARD_MARK

RULE = make_rule("default")
FILES = {"README.md", "config.json", "generation_config.json", "model.safetensors"}

FIRST_LINES = {
    "tintformer first": "import tintformer\nfrom transformers import AutoModelForCausalLM",
    "transformers first": "import transformers\nimport tintformer\nfrom transformers import AutoModelForCausalLM",
    "the auto classes first": "from transformers import AutoModelForCausalLM\nimport tintformer",
}
IN_ANOTHER_PROCESS = """
import sys, torch
from safetensors.torch import load_file, save_file
torch.set_num_threads(1)
batch = load_file("batch.safetensors")
found = {}
for path in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(path)
    assert type(model).__name__ == "TintForCausalLM"
    found[path] = model(**batch).logits
save_file(found, "logits.safetensors")
"""

SAVED: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama-yarn": {"engine": "simulator", "stack": 2},
    "gemma": {"dtype": torch.float32, "train_fraction": 0.5},
    "bloom": {"dtype": torch.bfloat16},
    "llama-grouped": {"dtype": torch.bfloat16},
    "gptj": {"dtype": torch.float16},
}


def make(name: str, dtype: torch.dtype = torch.float64, **knobs: Any) -> Any:
    """In half precision by a conversion, which rounds the tables of positions too."""
    model = make_model(name) if dtype == torch.float64 else copy.deepcopy(make_model(name)).to(dtype)
    return tint.TintForCausalLM.from_auxiliary(model, RULE, **knobs)


def assert_equal_weights(back: Any, model: Any) -> None:
    """Bit by bit: weights are stored, while logits are computed from them at another place in memory."""
    found, expected = back.state_dict(), model.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), name


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A directory with a batch and some models, and what they say of it."""
    directory, batch = tmp_path_factory.mktemp("saved"), make_batch(padding="left")
    save_file(batch, directory / "batch.safetensors")
    expected = {}
    for name, knobs in SAVED.items():
        model = make(name, **knobs)
        model.save_pretrained(directory / name)
        expected[name] = model(**batch).logits
    return directory, expected


@pytest.mark.parametrize("first", some(list(FIRST_LINES)))
def test_the_same_numbers_in_another_process(first: str, saved: tuple[Path, dict[str, torch.Tensor]]) -> None:
    directory, expected = saved
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FIRST_LINES[first] + CHECK + IN_ANOTHER_PROCESS, *SAVED],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = load_file(directory / "logits.safetensors")
    for name, logits in expected.items():
        assert_same(found[name], logits)


@pytest.mark.parametrize("name", every(2, MODELS))
def test_every_model_comes_back(name: str, tmp_path: Path) -> None:
    model, batch = make(name, torch.float32), make_batch()
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    state = torch.random.get_rng_state()
    back: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), state), "loading draws random numbers"
    assert back.config.to_diff_dict() == model.config.to_diff_dict()
    assert back.generation_config.to_dict() == model.generation_config.to_dict()
    assert_equal_weights(back, model)
    assert_same(back(**batch).logits, model(**batch).logits)
    tied = model.auxiliary.get_output_embeddings().weight is model.auxiliary.get_input_embeddings().weight
    assert tied == (back.auxiliary.get_output_embeddings().weight is back.auxiliary.get_input_embeddings().weight)
    assert not back.training and not back.auxiliary.training


def test_the_weights_are_there_once(tmp_path: Path) -> None:
    """A simulator's constructed tensors are rebuilt; of tied weights there is one."""
    model = make("gpt2", engine="simulator")
    model(**make_batch())
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
        assert file.metadata().keys() == {"format", "checksum"} and file.metadata()["format"] == "pt"
    assert names == {f"auxiliary.{name}" for name, _ in make_model("gpt2").named_parameters()}


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """In any file: every change is refused in one line, or changes nothing that is loaded."""
    model = make("llama")
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    randomly = random.Random(0)
    files = sorted(tmp_path.glob("*.safetensors"))
    for _ in range(60):
        file = randomly.choice(files)
        whole = file.read_bytes()
        content = bytearray(whole)
        content[randomly.randrange(len(whole))] ^= 1 << randomly.randrange(8)
        file.write_bytes(content)
        try:
            assert_equal_weights(tint.TintForCausalLM.from_pretrained(tmp_path), model)
        except tint.LoadError as refused:
            assert "\n" not in str(refused)
        file.write_bytes(whole)
    assert_equal_weights(tint.TintForCausalLM.from_pretrained(tmp_path), model)


def test_files_that_other_tools_have_rewritten_are_read(tmp_path: Path) -> None:
    """They know of no checksum."""
    model = make("gpt2")
    model.save_pretrained(tmp_path)
    save_file(load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert_equal_weights(tint.TintForCausalLM.from_pretrained(tmp_path), model)


def test_large_models_are_cut_into_files(tmp_path: Path) -> None:
    model, batch = make("llama"), make_batch()
    model.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    shards = sorted(path.name for path in tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2 and not (tmp_path / "model.safetensors").exists()
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(shards)
    back: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_equal_weights(back, model)
    assert_same(back(**batch).logits, model(**batch).logits)
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES, "files of the earlier model are left"


def test_the_card_says_what_it_is(tmp_path: Path) -> None:
    model = make("gpt2", train_fraction=0.25)
    model.config.base_model = "somebody/some-model"
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    for part in ("base_model: somebody/some-model", "| learning_rate | 0.002 |", "the first 25% of the prompt"):
        assert part in card
    for heading in ("## Learning rule", "## How to use it", "## Limits"):
        assert heading in card
    assert "{" not in card
    (tmp_path / "README.md").write_text(card.replace(CARD_MARK, "") + "My own words.")
    model.save_pretrained(tmp_path)
    assert "My own words." in (tmp_path / "README.md").read_text()
    local: Any = tint.TintForCausalLM.from_auxiliary(_saved_base(tmp_path / "base"), RULE)
    assert local.config.base_model == "base", "the path of a directory is nobody's business"


def _saved_base(path: Path) -> Path:
    make_model("gpt2", torch.float32).save_pretrained(path)
    return path


def test_an_interrupted_save_leaves_the_old_model_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("gpt2").save_pretrained(tmp_path)
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(whole_files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make("llama").save_pretrained(tmp_path)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_options_of_loading(tmp_path: Path) -> None:
    model, batch = make("llama"), make_batch()
    model.save_pretrained(tmp_path)
    frozen = make_rule("default", learning_rate=0.0)
    back: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, learning_rule=frozen, engine="simulator", device_map="cpu"
    )
    assert back.dtype == torch.float32 and back.config.engine == "simulator" and back.config.rule == frozen
    expected, kept = call(tint.Tint(make_model("llama"), frozen), batch).logits, batch["attention_mask"].bool()
    torch.testing.assert_close(back(**batch).logits.double()[kept], expected[kept], rtol=0, atol=1e-4)
    given = GenerationConfig(max_new_tokens=3)
    back, report = tint.TintForCausalLM.from_pretrained(
        tmp_path, config=model.config, generation_config=given, attn_implementation="sdpa", output_loading_info=True
    )
    assert back.generation_config is given and not report["missing_keys"]
    parts: Any = tint.TintForCausalLM.from_pretrained(tmp_path.parent, subfolder=tmp_path.name)
    assert_equal_weights(parts, model)
    assert_same(parts(**batch).logits, model(**batch).logits)


def test_words_that_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("gpt2")
    with pytest.raises(tint.TintError, match=r"call push_to_hub\(name\)"):
        model.save_pretrained(tmp_path, push_to_hub=True)
    with pytest.raises(tint.TintError, match="safe_serialization: not an option"):
        model.save_pretrained(tmp_path, safe_serialization=False)
    (tmp_path / "file").touch()
    with pytest.raises(tint.TintError, match="cannot write into"):
        model.save_pretrained(tmp_path / "file")
    model.save_pretrained(tmp_path)
    for options, message in (
        ({"dtype": "int8"}, "dtype='int8' is not a floating-point type"),
        ({"device_map": {"a": 0, "b": 1}}, "stands on one device"),
        ({"colour": "red"}, "colour: not an option"),
        ({"config": make_model("gpt2").config}, "config is a GPT2Config"),
        ({"train_fraction": 2}, "train_fraction=2 must be"),
        ({"subfolder": "../.."}, "leads out of"),
    ):
        with pytest.raises(tint.TintError, match=message):
            tint.TintForCausalLM.from_pretrained(tmp_path, **options)
    for name, message in (
        ("./nowhere", "no directory ./nowhere"),
        (tmp_path / "file", "is no directory"),
        ("some-one/no-such-model", "neither the local cache nor the hub gives it"),
    ):
        with pytest.raises(tint.LoadError, match=message):
            tint.TintForCausalLM.from_pretrained(name, local_files_only=True)


def test_other_readers_say_what_the_directory_is(tmp_path: Path) -> None:
    make("gpt2").save_pretrained(tmp_path / "tint")
    tint.build(make_model("gpt2"), RULE).save_pretrained(tmp_path / "simulator")
    with pytest.raises(tint.UnsupportedModelError, match="model_type 'tint' is not a known family"):
        tint.load(tmp_path / "tint")
    with pytest.raises(tint.LoadError, match="describes no simulator"):
        tint.Simulator.from_pretrained(tmp_path / "tint")
    with pytest.raises(tint.LoadError, match="holds a simulator"):
        AutoConfig.from_pretrained(tmp_path / "simulator")


def test_a_tokenizer_beside_it_is_found(tmp_path: Path) -> None:
    from tiny import make_tokenizer

    make("gpt2").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("The lamp")["input_ids"]
