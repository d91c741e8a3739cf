# pyright: basic
"""Base directories that are not the model which their configuration describes: refused with every reason at once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cases import MODELS, every, make_model
from hostile import INDEX, WEIGHTS, edit, edit_tensors
from safetensors.torch import load_file, save_file

import tintformer as tint

UP, NORM = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Damage = Callable[[Path], None]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    make_model("llama", torch.float32).to(torch.float32).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def _quantise(tensors: dict[str, torch.Tensor]) -> None:
    """As compressed-tensors and the like do it: codes, and a scale for each row."""
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        scale = tensors[name].abs().amax(1, keepdim=True) / 127
        tensors[f"{name}_scale"] = scale
        tensors[name] = (tensors[name] / scale).round().to(torch.int8)


def _convert(dtype: torch.dtype) -> Damage:
    return edit_tensors(lambda tensors: tensors.update({UP: tensors[UP].to(dtype)}))


def _both(*damages: Damage) -> Damage:
    def apply(directory: Path) -> None:
        for damage in damages:
            damage(directory)

    return apply


def _split(change: Callable[[dict[str, dict[str, torch.Tensor]], dict[str, str]], object]) -> Damage:
    """Weights in two files with an index, after a change of either."""

    def apply(directory: Path) -> None:
        tensors = load_file(directory / WEIGHTS)
        names = sorted(tensors)
        parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        files = {file: {name: tensors[name] for name in held} for file, held in parts.items()}
        places = {name: file for file, held in parts.items() for name in held}
        change(files, places)
        (directory / WEIGHTS).unlink()
        for file, held in files.items():
            save_file(held, directory / file, metadata={"format": "pt"})
        (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))

    return apply


UNFIT: dict[str, tuple[Damage, list[str]]] = {
    "a tensor too many": (edit_tensors(lambda t: t.update(extra=torch.ones(3))), [r"holds 1 tensors .* \(extra\)"]),
    "a bias that is not asked for": (
        edit_tensors(lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(12)})),
        ["holds 1 tensors that its configuration does not ask for", r"q_proj\.bias"],
    ),
    "fewer layers than stored": (edit(lambda c: c.update(num_hidden_layers=1)), ["holds 9 tensors", "and 6 more"]),
    "more layers than stored": (edit(lambda c: c.update(num_hidden_layers=3)), ["lacks 9 parameters"]),
    "no layers": (
        edit(lambda c: c.update(num_hidden_layers=0)),
        ["num_hidden_layers=0: a size is"],
    ),
    "codes and scales": (
        edit_tensors(_quantise),
        [
            "holds 14 tensors that its configuration does not ask for",
            "holds 14 tensors that are no floating-point",
            "I8",
        ],
    ),
    "codes without scales": (_convert(torch.int8), ["no floating-point weights", "I8"]),
    "bool": (_convert(torch.bool), ["no floating-point weights", "BOOL"]),
    "uint8": (_convert(torch.uint8), ["no floating-point weights", "U8"]),
    "integers": (_convert(torch.int64), ["no floating-point weights", "I64"]),
    "complex": (_convert(torch.complex64), ["no floating-point weights", "C64"]),
    "float8": (_convert(torch.float8_e4m3fn), ["no floating-point weights", "F8_E4M3"]),
    "a wrong shape": (edit_tensors(lambda t: t.update({NORM: torch.ones(3)})), [r"norm.weight: \(3,\) instead of"]),
    "all at once": (
        _both(
            edit_tensors(lambda t: (t.pop(UP), t.update({NORM: torch.ones(3), "extra": torch.ones(3)}))),
            edit_tensors(lambda t: t.update({EMBEDDING: t[EMBEDDING].to(torch.int8)})),
        ),
        [
            "lacks 1 parameters",
            "holds 1 tensors that its conf",
            "holds 1 parameters of another",
            "holds 1 tensors that are",
        ],
    ),
    "unequal copies of one weight": (
        _both(
            edit(lambda c: c.update(tie_word_embeddings=True)),
            edit_tensors(lambda t: t.update({HEAD: t[EMBEDDING] + 1})),
        ),
        ["other numbers in lm_head.weight than in model.embed_tokens.weight", "tie_word_embeddings"],
    ),
    "one tensor in two files": (
        _split(lambda files, _: files["a.safetensors"].update(list(files["b.safetensors"].items())[:1])),
        ["already; keep one of them"],
    ),
    "an index that leaves a tensor out": (
        _split(lambda _, places: places.pop(UP)),
        ["1 tensors are not where", "up_proj"],
    ),
    "an index with a tensor too many": (
        _split(lambda _, places: places.update(x="a.safetensors")),
        ["1 tensors are not"],
    ),
    "an index that mixes up its files": (
        _split(lambda _, places: places.update({name: "a.safetensors" for name in places})),
        ["are not where it says"],
    ),
    "an index of files that are not there": (
        _split(lambda _, places: places.update({name: "c.safetensors" for name in places})),
        ["lacks c.safetensors"],
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_refused_with_every_reason_in_one_line(case: str, saved: Path) -> None:
    damage, reasons = UNFIT[case]
    damage(saved)
    with pytest.raises(tint.TintError) as caught:
        tint.load(saved)
    for reason in reasons:
        assert re.search(reason, str(caught.value)), str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2 and len(str(caught.value)) < 1000


def test_refused_before_a_tensor_is_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _convert(torch.int8)(saved)
    read: list[str] = []
    monkeypatch.setattr("transformers.modeling_utils.safe_open", lambda *_, **__: read.append("opened"))
    with pytest.raises(tint.LoadError, match="no floating-point weights"):
        tint.load(saved)
    assert not read


@pytest.mark.parametrize("family", every(2, MODELS))
def test_every_family_loads_with_or_without_the_name_of_its_inner_model(family: str, tmp_path: Path) -> None:
    model = make_model(family, torch.float32).to(torch.float32)
    model.save_pretrained(tmp_path)
    prefix = f"{model.base_model_prefix}."
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    edit_tensors(
        lambda tensors: [tensors.update({n.removeprefix(prefix): tensors.pop(n)}) for n in list(tensors)],
    )(tmp_path)
    loaded = tint.load(tmp_path).model.state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


OLD_BUFFERS = {
    "gpt2": {"transformer.h.0.attn.bias": torch.uint8, "transformer.h.1.attn.masked_bias": torch.float32},
    "gpt_neox": {
        "gpt_neox.layers.0.attention.bias": torch.bool,
        "gpt_neox.layers.0.attention.masked_bias": torch.float16,
    },
    "gpt_neo": {
        "transformer.h.0.attn.attention.bias": torch.uint8,
        "transformer.h.0.attn.attention.masked_bias": torch.float32,
    },
    "gptj": {"transformer.h.0.attn.bias": torch.uint8, "transformer.h.0.attn.masked_bias": torch.float32},
    "llama": {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.float32},
}


@pytest.mark.parametrize("family", OLD_BUFFERS)
@pytest.mark.parametrize("inner", [False, True], ids=["whole", "inner"])
def test_constants_of_older_versions_are_left_alone(family: str, inner: bool, tmp_path: Path) -> None:
    model = make_model(family, torch.float32).to(torch.float32)
    model.save_pretrained(tmp_path)
    prefix = f"{model.base_model_prefix}." if inner else ""

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: torch.ones(1, 1, 4, 4).to(dtype) for name, dtype in OLD_BUFFERS[family].items()})
        for name in list(tensors):
            tensors[name.removeprefix(prefix)] = tensors.pop(name)

    edit_tensors(add)(tmp_path)
    assert tint.load(tmp_path).family == model.config.model_type


def test_equal_copies_of_one_weight_are_one(saved: Path) -> None:
    edit(lambda config: config.update(tie_word_embeddings=True))(saved)
    edit_tensors(lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))(saved)
    model = tint.load(saved).model
    assert model.lm_head.weight is model.model.embed_tokens.weight
    edit_tensors(lambda tensors: tensors.pop(EMBEDDING))(saved)  # either of them is enough
    assert tint.load(saved).model.lm_head.weight is not None


def test_other_safetensors_beside_the_weights_are_not_read(saved: Path) -> None:
    (saved / "consolidated.safetensors").write_bytes(b"no safetensors")
    assert tint.load(saved).family == "llama"
    (saved / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(tint.LoadError, match="belongs to an adapter"):
        tint.load(saved)


def test_a_cached_model_of_the_hub_is_checked_as_well(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "a" * 40
    repository = tmp_path / "cache" / "models--ada--tiny"
    shutil.copytree(saved, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    assert tint.load("ada/tiny").name == "ada/tiny"
    _convert(torch.int8)(repository / "snapshots" / commit)
    with pytest.raises(tint.LoadError, match="no floating-point weights"):
        tint.load("ada/tiny")


def test_without_accelerate_the_same_is_found_later(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tintformer.storage.fit.find_spec", lambda name: None)
    assert tint.load(saved).family == "llama"
    for damage, message in [
        (
            edit_tensors(lambda t: t.update(extra=torch.ones(3))),
            "holds 1 tensors that its configuration does not ask for",
        ),
        (edit(lambda c: c.update(num_hidden_layers=3)), "lacks 9 parameters"),
        (edit(lambda c: c.update(num_hidden_layers=9)), "parameters, and its files hold"),
    ]:
        damage(saved)
        with pytest.raises(tint.LoadError, match=message):
            tint.load(saved)
