# pyright: basic
"""Updates as adapters of PEFT: PEFT itself loads them onto the plain model, and predicts as `to_hf` does."""

from __future__ import annotations

import copy
import json
import sys
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import FIRST, covering, every, make_batch, make_model, make_rule
from safetensors.torch import load_file
from test_tuned import true_logits
from torch import nn

import tintformer as tint
from tintformer.learning.peft_files import FILES, LowRank

RULE = make_rule("full", steps=2)
IDS = make_batch(seed=5)["input_ids"]


def adapted(name: str, length: int = 4, rule: tint.LearningRule = RULE, dtype: Any = torch.float64) -> tint.Tuned:
    return tint.Tint(make_model(name, dtype), rule).adapt(make_batch(lengths=(length,))["input_ids"])


def by_peft(name: str, directory: Path, dtype: Any = torch.float64) -> Any:
    """The plain model with the adapter, merged by PEFT; a warning of PEFT's is an error."""
    peft = pytest.importorskip("peft", reason="adapters are loaded by the package peft")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return peft.PeftModel.from_pretrained(copy.deepcopy(make_model(name, dtype)), directory).eval()


@pytest.mark.parametrize(("name", "length"), every(3, list(product(FIRST, [4, 30]))))  # factors and matrices
def test_peft_predicts_what_to_hf_does(name: str, length: int, tmp_path: Path) -> None:
    tuned = adapted(name, length)
    export = tuned.to_peft(tmp_path)
    assert export.kept == pytest.approx(1.0, abs=1e-12) and not export.left_out
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    loaded = by_peft(name, tmp_path)
    with torch.no_grad():
        # One class of model on both sides, so its casts to float32 are on both.
        difference = (loaded(IDS).logits - tuned.to_hf()(IDS).logits).abs().max()
    assert float(difference) < 1e-5
    merged = loaded.merge_and_unload()
    parameters, expected = dict(merged.named_parameters()), dict(tuned.to_hf().named_parameters())
    assert parameters.keys() == expected.keys()
    for parameter, value in expected.items():
        torch.testing.assert_close(parameters[parameter], value, rtol=0, atol=1e-12)
    torch.testing.assert_close(true_logits(merged, IDS), true_logits(tuned.to_hf(), IDS), rtol=0, atol=1e-9)


def test_ranks_differ_from_layer_to_layer(tmp_path: Path) -> None:
    """Trained tokens and small sides bound the rank of each matrix; here a fused one has less than its parts would."""
    tuned = adapted("gpt2", 4).without("blocks.1.up.weight")
    tuned = tuned.adapt(make_batch(lengths=(3,))["input_ids"])
    export = tuned.to_peft(tmp_path)
    config = json.loads((tmp_path / FILES[1]).read_text())
    assert len(set(export.ranks.values())) > 1
    assert config["rank_pattern"] == config["alpha_pattern"]
    for module, rank in export.ranks.items():
        assert config["rank_pattern"].get(module, config["r"]) == rank
    assert config["fan_in_fan_out"] is True and config["lora_alpha"] == config["r"]
    layers = dict(by_peft("gpt2", tmp_path).named_modules())
    for module, rank in export.ranks.items():
        layer = layers[f"base_model.model.{module}"]
        assert layer.r["default"] == rank and layer.scaling["default"] == 1.0


@pytest.mark.parametrize(("name", "length"), covering(["gpt2", "llama", "bloom"], [4, 30]))
def test_a_higher_rank_keeps_more(name: str, length: int, tmp_path: Path) -> None:
    tuned, ids = adapted(name, length), make_batch(lengths=(length,))["input_ids"]
    exports = [tuned.to_peft(tmp_path / str(rank), rank=rank, input_ids=ids) for rank in (1, 2, 4, 8, 64)]
    kept = [export.kept for export in exports]
    assert kept == sorted(kept) and 0 < kept[0] < kept[1] and kept[-1] == pytest.approx(1.0, abs=1e-12)
    assert exports[-1].gain_kept == pytest.approx(1.0, abs=1e-9)
    low = exports[1]
    assert max(low.ranks.values()) == 2 and low.gain_kept is not None and low.gain_kept != 1.0
    # The loss that is reported is that of the files.
    files = by_peft(name, tmp_path / "2").merge_and_unload()
    loss = -true_logits(files, ids)[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).mean()
    assert low.loss_exported == pytest.approx(float(loss), abs=1e-9)


def test_no_other_matrix_of_that_rank_is_nearer() -> None:
    update = adapted("gpt2", 4)._updates.matrices
    weight, matrix = next(item for item in update.items() if item[1].factors)
    left, values, right = torch.linalg.svd(matrix.row(0), full_matrices=False)
    low = LowRank.of({weight: matrix}, 2)
    found = low.b @ low.a
    best = (left[:, :2] * values[:2]) @ right[:2]
    start = 0 if weight.part is None else weight.part.index * len(best)
    torch.testing.assert_close(found[start : start + len(best)], best, rtol=0, atol=1e-12)
    assert low.kept_squares == pytest.approx(float(values[:2].square().sum()))
    assert low.squares == pytest.approx(float(values.square().sum()))


def test_what_is_left_out_is_named_and_counted(tmp_path: Path) -> None:
    tuned, ids = adapted("gpt2", 30), make_batch(lengths=(30,))["input_ids"]
    whole = tuned.to_peft(tmp_path / "whole", input_ids=ids)
    bare = tuned.to_peft(tmp_path / "bare", biases=False, norms=False, input_ids=ids)
    assert all(name.endswith("bias") or ".ln_" in name for name in bare.left_out) and len(bare.left_out) > 8
    assert bare.kept < whole.kept and bare.loss_exported is not None and bare.loss_after is not None
    assert bare.loss_exported > bare.loss_after == whole.loss_after and bare.size < whole.size
    config = json.loads((tmp_path / "bare" / FILES[1]).read_text())
    assert config["bias"] == "none" and config["modules_to_save"] is None
    assert all(".lora_" in name for name in load_file(tmp_path / "bare" / FILES[0]))
    only_norms = tuned.to_peft(tmp_path / "norms", biases=False)
    assert bare.kept < only_norms.kept < whole.kept


def test_parts_of_an_update_are_held_too(tmp_path: Path) -> None:
    """A bias whose matrix has not changed, and a fused matrix of which one part has."""
    tuned = adapted("gpt2", 4).only("*.value.weight", "blocks.0.up.bias", "blocks.1.*.weight")
    config = tuned.to_peft(tmp_path) and json.loads((tmp_path / FILES[1]).read_text())
    assert config["bias"] == "all"
    merged = by_peft("gpt2", tmp_path).merge_and_unload()
    torch.testing.assert_close(true_logits(merged, IDS), true_logits(tuned.to_hf(), IDS), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_models(dtype: torch.dtype, tmp_path: Path) -> None:
    tuned = adapted("gpt2", 4, dtype=dtype)
    export = tuned.to_peft(tmp_path, input_ids=IDS)
    assert export.kept == pytest.approx(1.0, abs=1e-5)
    assert export.loss_exported == pytest.approx(
        export.loss_after, abs={torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    )
    assert load_file(tmp_path / FILES[0])["base_model.model.transformer.h.0.mlp.c_fc.lora_A.weight"].dtype == (
        torch.float32
    )
    merged = by_peft("gpt2", tmp_path, dtype).merge_and_unload()
    with torch.no_grad():
        found, expected = merged(IDS).logits.float(), tuned.to_hf()(IDS).logits.float()
    assert float((found - expected).abs().max()) <= {torch.float32: 1e-4, torch.bfloat16: 0.5}[dtype]


def test_peft_is_not_needed_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    assert adapted("llama").to_peft(tmp_path, rank=1).ranks


def test_the_same_update_gives_the_same_bytes(tmp_path: Path) -> None:
    for place in ("one", "two"):
        adapted("gpt2").to_peft(tmp_path / place, rank=2)
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    tuned = adapted("gpt2")
    for rank in (0, -1, 1.5, "all"):
        with pytest.raises(tint.InputError, match="rank="):
            tuned.to_peft(tmp_path / "adapter", rank=rank)  # type: ignore[arg-type]
    with pytest.raises(tint.InputError, match="biases="):
        tuned.to_peft(tmp_path / "adapter", biases="none")  # type: ignore[arg-type]
    for nothing in (tuned.only(), tuned.only("*.bias"), adapted("gpt2", rule=make_rule("default", learning_rate=0.0))):
        with pytest.raises(tint.TintError, match="nothing of the update is in a linear layer"):
            nothing.to_peft(tmp_path / "adapter")
    (tmp_path / "file").touch()
    with pytest.raises(tint.TintError):
        tuned.to_peft(tmp_path / "file" / "below")
    with pytest.raises(tint.InputError):
        tuned.to_peft(tmp_path / "adapter", input_ids=[[1, 10_000]])
    assert not (tmp_path / "adapter").exists()


def test_layers_that_peft_does_not_adapt_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = adapted("llama")
    module = tuned.auxiliary.model.get_submodule
    monkeypatch.setattr(
        tuned.auxiliary.model, "get_submodule", lambda name: nn.Identity() if "down" in name else module(name)
    )
    with pytest.raises(
        tint.TintError, match=r"PEFT adapts layers of type Linear and Conv1D, and .*down_proj is a Identity"
    ):
        tuned.to_peft(tmp_path)
    assert not any(tmp_path.iterdir())
