# pyright: basic
"""Loading: directories, objects, names; float32 by default; offline errors that say what was tried."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import make_model
from safetensors.torch import load_file, save_file

import tintformer as tint


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    make_model("llama", torch.float32).to(torch.float32).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_directory_loads_in_float32(saved: Path) -> None:
    auxiliary = tint.load(saved)
    assert auxiliary.dtype == torch.float32
    assert auxiliary.family == "llama"
    assert not auxiliary.model.training
    assert tint.load(str(saved), dtype=torch.float64).dtype == torch.float64


def test_a_half_precision_checkpoint_still_loads_in_float32(tmp_path: Path) -> None:
    model = make_model("gpt2", torch.float32)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    make_model.cache_clear()
    assert tint.load(tmp_path).dtype == torch.float32


def test_an_object_keeps_its_dtype_and_shares_its_tensors() -> None:
    model = make_model("llama")
    auxiliary = tint.load(model)
    assert auxiliary.dtype == torch.float64
    assert auxiliary.model is model
    assert auxiliary.head.weight.source.data_ptr() == model.lm_head.weight.data_ptr()
    assert tint.load(auxiliary) is auxiliary


@pytest.mark.parametrize("knob", [{"dtype": torch.float32}, {"device": "cpu"}])
def test_an_object_is_not_converted(knob: dict[str, Any]) -> None:
    with pytest.raises(tint.LoadError, match="keeps its dtype and device"):
        tint.load(make_model("llama"), **knob)


def test_no_hub_gives_one_clear_error_without_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(tint.LoadError, match=r"no local directory.*not in the local cache.*the hub"):
        tint.load("nobody/there-is-no-such-model")
    assert not waits, "the hub was retried"


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/model", "a/b/c"])
def test_paths_that_do_not_exist(name: str) -> None:
    with pytest.raises(tint.LoadError, match="no directory"):
        tint.load(name)


def test_directories_that_cannot_be_read(tmp_path: Path, saved: Path) -> None:
    with pytest.raises(tint.LoadError, match="no safetensors and no GGUF"):
        tint.load(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(tint.LoadError, match="pickled weights are not read"):
        tint.load(tmp_path)
    with pytest.raises(tint.LoadError, match="is a file"):
        tint.load(saved / "config.json")
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(tint.LoadError, match="cannot read"):
        tint.load(saved)


def test_missing_weights_are_not_made_up(saved: Path) -> None:
    weights = saved / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(tint.LoadError, match=r"lacks 1 parameters.*model\.layers\.1\.mlp\.up_proj\.weight"):
        tint.load(saved)


def test_a_gguf_file_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gguf").touch()
    monkeypatch.setattr("tintformer.storage.loading.find_spec", lambda name: None)
    with pytest.raises(tint.LoadError, match=r"install the package gguf: pip install 'tintformer\[eval\]'"):
        tint.load(tmp_path)


def test_two_gguf_files_are_ambiguous(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(tint.LoadError, match="2 GGUF files"):
        tint.load(tmp_path)


@pytest.mark.parametrize("wrong", [3, None, torch.nn.Linear(2, 2)], ids=["int", "none", "module"])
def test_things_that_are_not_models(wrong: object) -> None:
    with pytest.raises(tint.LoadError, match="cannot load a"):
        tint.load(wrong)


def test_integer_dtype(saved: Path) -> None:
    with pytest.raises(tint.LoadError, match="not a floating-point type"):
        tint.load(saved, dtype=torch.int8)


def test_no_bar_is_drawn_into_a_file(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    logging.enable_progress_bar()  # as it is for whoever has not asked for silence
    try:
        tint.load(saved)
        assert capfd.readouterr().err == ""
    finally:
        logging.disable_progress_bar()
