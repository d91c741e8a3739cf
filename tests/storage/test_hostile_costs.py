# pyright: basic
"""Small files that ask for a lot: each is refused in one line, in less than 2 GB and 20 s of the processor."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import make_model
from hostile import edit, write
from limits import MAX_BYTES, MAX_SECONDS, Outcome, measure
from tiny import save_model

import tintformer
from tintformer.learning.text import encode, find_tokenizer

Damage = Callable[[Path], Any]
TEXT = "Once upon a time there was a little girl, and she was called Anna."


def read_tokenizer(directory: str) -> None:
    """What `measure` calls: open a tokenizer and use it."""
    encode(find_tokenizer(directory), TEXT)


def _gguf(*parts: bytes, tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def _text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def _array(kind: int, count: int, name: bytes = b"tokenizer.ggml.tokens") -> bytes:
    return _text(name) + struct.pack("<IIQ", 9, kind, count)


def _tensor(shape: tuple[int, ...], kind: int = 0, offset: int = 0, name: bytes = b"token_embd.weight") -> bytes:
    return _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


ARCHITECTURE = _text(b"general.architecture") + struct.pack("<I", 8) + _text(b"llama")

GGUF = {
    "nothing": (b"", "fewer than a header"),
    "another file": (b"GGML" + bytes(60), "does not begin with GGUF"),
    "another version": (_gguf(version=1), "version 1"),
    "endless keys": (_gguf(keys=2**63), "announces 9223372036854775808 keys"),
    "endless tensors": (_gguf(tensors=2**62), "tensors in 24 bytes"),
    "more keys than there are": (_gguf(keys=4000), "ends within its header"),
    "a long name": (_gguf(struct.pack("<Q", 2**60), keys=1), "announces"),
    "a long string": (_gguf(_text(b"a"), struct.pack("<IQ", 8, 2**62), keys=1), "announces"),
    "an endless array of numbers": (_gguf(_array(4, 2**61), keys=1), "elements of arrays"),
    "an endless array of strings": (_gguf(_array(8, 2**40), keys=1), "elements of arrays"),
    "bytes behind its tensors": (_gguf(ARCHITECTURE, bytes(2**20), keys=1), "bytes follow the last of its tensors"),
    "an endless array of nothing": (_gguf(ARCHITECTURE, _array(0, 2**20 - 1), keys=2), "bytes where"),
    "arrays of arrays": (_gguf(_array(9, 3), struct.pack("<IQ", 9, 3) * 20, keys=1), "array of type 9"),
    "many dimensions": (_gguf(_text(b"a") + struct.pack("<I", 2**31), tensors=1), "2147483648 dimensions"),
    "a huge tensor": (_gguf(_tensor((2**31, 2**31)), tensors=1), "beyond the end"),
    "an offset outside": (_gguf(_tensor((4,), offset=2**60), bytes(64), tensors=1), "beyond the end"),
    "an unknown type": (_gguf(_tensor((4,), kind=77), bytes(64), tensors=1), "unknown type 77"),
    "tensors on one another": (
        _gguf(*(_tensor((64,), name=b"%d" % i) for i in range(9)), bytes(512), tensors=9),
        "overlap",
    ),
    "an alignment of zero": (
        _gguf(_text(b"general.alignment") + struct.pack("<II", 4, 0), bytes(64), keys=1),
        "alignment of 0",
    ),
    "one name twice": (_gguf(ARCHITECTURE, ARCHITECTURE, keys=2), "twice"),
    "no text for a name": (_gguf(_text(b"\xff\xff"), bytes(8), keys=1), "no text there"),
}


def _edit(**changes: Any) -> Damage:
    return edit(lambda config: config.update(changes))


def _generation(**settings: Any) -> Damage:
    return write("generation_config.json", json.dumps(settings))


def _replace(name: str, make: Callable[[Path], Any]) -> Damage:
    def apply(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        make(directory / name)

    return apply


def _sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(2**40)


MODELS: dict[str, tuple[Damage, str]] = {
    "a million beams": (_generation(num_beams=10**6), "num_beams 1e"),
    "a million beams as a float": (_generation(num_beams=1e6), "num_beams 1e"),
    "a million beams in the configuration": (_edit(num_beams=10**6), "num_beams 1e"),
    "many sequences": (_generation(num_return_sequences=10**7), "num_return_sequences"),
    "an endless text": (_generation(max_length=10**12), "max_length"),
    "long beams": (_generation(num_beams=200, max_length=2**22), "200 beams of"),
    "a large watermark": (_generation(watermarking_config={"sampling_table_size": 10**11}), "sampling_table_size"),
    "generation settings that are a list": (write("generation_config.json", "[]"), "must be a JSON object"),
    "ten million labels": (_edit(num_labels=10**7), "num_labels 10000000"),
    "nested deeply": (write("config.json", "[" * 100_000), "nested too deeply"),
    "nested in a key": (write("config.json", '{"a":' + "[" * 500 + "]" * 500 + "}"), "nested too deeply"),
    "a long integer": (
        write("config.json", '{"model_type": "llama", "vocab_size": ' + "9" * 5000 + "}"),
        "5000 digits",
    ),
    "half a character": (write("config.json", r'{"model_type": "\ud800"}'), "half a character"),
    "no UTF-8": (write("generation_config.json", b'{"a": "\xff"}'), "no UTF-8"),
    "a pipe for the configuration": (_replace("config.json", os.mkfifo), "is a pipe"),
    "a device for the configuration": (_replace("config.json", lambda path: path.symlink_to("/dev/zero")), "a device"),
    "a huge configuration": (_replace("config.json", _sparse), "at most"),
    "a device for settings": (
        _replace("generation_config.json", lambda path: path.symlink_to("/dev/zero")),
        "is a device",
    ),
    "a pipe for weights": (_replace("model.safetensors", os.mkfifo), "is a pipe"),
    "a folder for weights": (_replace("model.safetensors", Path.mkdir), "is a directory"),
    "a pipe for an older configuration": (_replace("config.4.0.0.json", os.mkfifo), "is a pipe"),
    "a pipe for a template": (_replace("chat_template.jinja", os.mkfifo), "is a pipe"),
}


def _stage(stage: str, part: Any) -> Damage:
    return edit(lambda content: content.update({stage: part}), "tokenizer.json")


def _replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _settings(**changes: Any) -> Damage:
    return edit(lambda settings: settings.update(changes), "tokenizer_config.json")


DOUBLING = {"type": "Sequence", "normalizers": [_replacing({"String": "a"}, "aa")] * 40}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "x", "type_id": 0}}] * 10_000,
    "pair": [],
    "special_tokens": {"x": {"id": "x", "ids": [1] * 10_000, "tokens": ["x"] * 10_000}},
}
TOKENIZERS: dict[str, tuple[Damage, str]] = {
    "doubles forty times": (_stage("normalizer", DOUBLING), "characters of one"),
    "makes much of a letter": (_stage("normalizer", _replacing({"Regex": "."}, "a" * 10**6)), "characters of one"),
    "fills gaps": (
        _stage("normalizer", {"type": "Sequence", "normalizers": [_replacing({"Regex": ""}, "a")] * 30}),
        "characters of one",
    ),
    "a long beginning": (_stage("normalizer", {"type": "Prepend", "prepend": "a" * 10**6}), "adds 1000000"),
    "many special tokens": (_stage("post_processor", TEMPLATE), "adds 100000000 special tokens"),
    "a panic": (
        _stage(
            "pre_tokenizer",
            {
                "type": "Split",
                "pattern": {"Regex": "(?:(?:\\w+)*\\s?)*(?!.)\\d"},
                "behavior": "Isolated",
                "invert": False,
            },
        ),
        "fails within the library",
    ),
    "a class that is no tokenizer": (_settings(tokenizer_class="AutoModelForCausalLM"), "is no tokenizer"),
    "endless extra tokens": (_settings(tokenizer_class="T5Tokenizer", extra_ids=10**9), "extra_ids 1e"),
    "a file elsewhere": (_settings(fast_tokenizer_files=["tokenizer.4/../../x.json"]), "only those beside it"),
    "settings that are a list": (write("tokenizer_config.json", "[1]"), "must be a JSON object"),
    "nested deeply": (write("tokenizer.json", "[" * 100_000), "nested too deeply"),
    "a long integer": (write("special_tokens_map.json", "9" * 5000), "5000 digits"),
    "half a character": (write("tokenizer_config.json", r'{"eos_token": "\udfff"}'), "half a character"),
    "no UTF-8": (write("added_tokens.json", b'{"\xff": 1}'), "no UTF-8"),
    "a device": (_replace("tokenizer.json", lambda path: path.symlink_to("/dev/zero")), "is a device"),
    "a pipe": (_replace("special_tokens_map.json", os.mkfifo), "is a pipe"),
    "a huge vocabulary": (_replace("vocab.json", _sparse), "at most"),
    "ten million labels": (_edit(num_labels=10**7), "num_labels"),
}


def _measure_all(
    root: Path, cases: dict[str, tuple[Damage, str]], make: Callable[[Path], Path], function: Callable[[str], Any]
) -> dict[str, Outcome]:
    directories: list[Path] = []
    for number, (damage, _) in enumerate(cases.values()):
        directories.append(make(root / str(number)))
        damage(directories[-1])
    return dict(zip(cases, measure(function, directories), strict=True))


def _check(outcome: Outcome, message: str) -> None:
    assert outcome.is_ours and message in outcome.message, outcome
    assert len(outcome.message.splitlines()) == 1 and len(outcome.message) < 1000
    assert outcome.peak < MAX_BYTES and outcome.seconds < MAX_SECONDS, outcome


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    def make(directory: Path) -> Path:
        directory.mkdir()
        return directory

    cases = {name: (write("model.gguf", data), message) for name, (data, message) in GGUF.items()}
    return _measure_all(tmp_path_factory.mktemp("gguf"), cases, make, tintformer.load)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    def make(directory: Path) -> Path:
        make_model("llama", torch.float32).to(torch.float32).save_pretrained(directory)
        return directory

    return _measure_all(tmp_path_factory.mktemp("models"), MODELS, make, tintformer.load)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    root = tmp_path_factory.mktemp("tokenizers")
    return _measure_all(root, TOKENIZERS, save_model, read_tokenizer)


@pytest.mark.parametrize("case", GGUF)
def test_gguf_headers(case: str, gguf: dict[str, Outcome]) -> None:
    _check(gguf[case], GGUF[case][1])


@pytest.mark.parametrize("case", MODELS)
def test_model_directories(case: str, models: dict[str, Outcome]) -> None:
    _check(models[case], MODELS[case][1])


@pytest.mark.parametrize("case", TOKENIZERS)
def test_tokenizers(case: str, tokenizers: dict[str, Outcome]) -> None:
    _check(tokenizers[case], TOKENIZERS[case][1])
