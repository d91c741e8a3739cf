# pyright: basic
"""Update files: whatever is changed in one is refused in one line, or changes nothing in what is loaded."""

from __future__ import annotations

import copy
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import ROUND_OFF, assert_same, every, make_batch, make_model, make_rule
from safetensors import safe_open
from safetensors.torch import save_file
from tiny import TEXT, save_model
from torch import Tensor

import tintformer as tint
from tintformer.cli import main
from tintformer.storage.checksums import write_tensors

Metadata = dict[str, Any]
Tensors = dict[str, Tensor]
LENGTHS = {"factors": 3, "deltas": 30}
"""Few tokens leave matrices as factors; after many, full updates are smaller."""
UP, VALUE = "transformer.h.0.mlp.c_fc", "transformer.h.0.attn.c_attn.weight#2"


@pytest.fixture(params=LENGTHS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save(tmp_path, request.param)


@pytest.fixture
def factors(tmp_path: Path) -> Path:
    return save(tmp_path, "factors")


@pytest.fixture
def deltas(tmp_path: Path) -> Path:
    return save(tmp_path, "deltas")


def learn(form: str) -> tint.Tuned:
    return tint.Tint(make_model("gpt2"), make_rule("default")).adapt(make_batch(lengths=(LENGTHS[form],))["input_ids"])


@cache
def content(form: str) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        learn(form).save(Path(place) / "update")
        return (Path(place) / "update").read_bytes()


def save(place: Path, form: str) -> Path:
    path = place / "update.safetensors"
    path.write_bytes(content(form))
    return path


def read(path: Path) -> tuple[Metadata, Tensors]:
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata()), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)


def rewrite(path: Path, change: Callable[[Metadata, Tensors], Any]) -> None:
    """A change to which the checksum has agreed, as somebody might make it on purpose."""
    metadata, tensors = read(path)
    change(metadata, tensors)
    write_tensors(path, tensors, metadata)


def loaded(path: Path) -> tuple[Any, dict[str, bytes]]:
    """Every bit of what is loaded."""
    tuned = tint.Tuned.load(path, make_model("gpt2"))
    found: dict[str, Tensor] = {}
    for weight, vector in tuned._updates.vectors.items():
        found[f"{weight.name} {weight.part}"] = vector
    for weight, update in tuned._updates.matrices.items():
        parts = [tensor for pair in update.factors for tensor in (pair.x, pair.g, torch.tensor(pair.rate))]
        parts += [] if update.dense is None else [update.dense]
        found |= {f"{weight.name} {weight.part} {number}": part for number, part in enumerate(parts)}
    return tuned.rule, {name: tensor.contiguous().numpy().tobytes() for name, tensor in found.items()}


def refused(path: Path, reason: str = ".") -> None:
    with pytest.raises(tint.LoadError, match=reason) as caught:
        tint.Tuned.load(path, make_model("gpt2"))
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_flipped_bits(path: Path) -> None:
    whole, expected = path.read_bytes(), loaded(path)
    randomly = random.Random(0)
    header = 8 + int.from_bytes(whole[:8], "little")
    places = [*range(8), *(randomly.randrange(header) for _ in range(20))]
    places += [randomly.randrange(len(whole)) for _ in range(24)]
    found = 0
    for place in places:
        content = bytearray(whole)
        content[place] ^= 1 << randomly.randrange(8)
        path.write_bytes(content)
        try:
            assert loaded(path) == expected, place
        except tint.LoadError as error:
            found += 1
            assert "\n" not in str(error), place
    assert found > 0.8 * len(places)


def test_other_bytes_and_lengths(path: Path) -> None:
    whole, expected = path.read_bytes(), loaded(path)
    randomly = random.Random(1)
    for _ in range(24):
        content, place = bytearray(whole), randomly.randrange(len(whole))
        match randomly.randrange(3):
            case 0:
                content[place : place + 8] = randomly.randbytes(8)
            case 1:
                del content[place:]
            case _:
                content[place:place] = randomly.randbytes(4)
        path.write_bytes(content)
        try:
            assert loaded(path) == expected, place
        except tint.LoadError as error:
            assert "\n" not in str(error), place


def test_the_same_update_gives_the_same_file(path: Path, tmp_path: Path) -> None:
    tint.Tuned.load(path, make_model("gpt2")).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def in_json(key: str, change: Callable[[Any], Any]) -> Callable[[Metadata, Tensors], None]:
    def apply(metadata: Metadata, _: Tensors) -> None:
        content = json.loads(metadata[key])
        replaced = change(content)
        metadata[key] = json.dumps(content if replaced is None else replaced)

    return apply


def drop(key: str) -> Callable[[Metadata, Tensors], Any]:
    return lambda metadata, tensors: metadata.pop(key) if key in metadata else tensors.pop(key)


def tensor(key: str, change: Callable[[Tensor], Tensor]) -> Callable[[Metadata, Tensors], None]:
    return lambda _, tensors: tensors.update({key: change(tensors[key]).contiguous()})


def spoilt(value: float) -> Callable[[Tensor], Tensor]:
    return lambda found: found.index_fill(-1, torch.tensor([0]), value)


METADATA: dict[str, tuple[Callable[[Metadata, Tensors], Any], str]] = {
    "another format": (lambda metadata, _: metadata.update(format="peft"), "is not an update of tintformer"),
    "no format": (drop("format"), r"is not an update of tintformer \(format None\)"),
    "an older format": (
        lambda metadata, _: metadata.update(format="tintformer-update-1"),
        r"is an update of another version \(format 'tintformer-update-1', .*adapt anew",
    ),
    "a newer format": (lambda metadata, _: metadata.update(format="tintformer-update-9"), "of another version"),
    "no base": (drop("base"), r"lacks metadata \(\['base'\]\)"),
    "no name": (drop("base_name"), r"lacks metadata \(\['base_name'\]\)"),
    "no rule": (drop("rule"), "lacks metadata"),
    "no rates": (drop("rates"), "lacks metadata"),
    "no version": (drop("version"), "lacks metadata"),
    "more metadata": (lambda metadata, _: metadata.update(more="1"), r"has unknown metadata \(\['more'\]\)"),
    "another base": (lambda metadata, _: metadata.update(base="0" * 64, base_name="a\nb"), "learnt on other weights"),
    "a rule of no JSON": (lambda metadata, _: metadata.update(rule="{"), "its rule cannot be read"),
    "a nest for a rule": (lambda metadata, _: metadata.update(rule="[" * 10**5), "its rule cannot be read"),
    "a list for a rule": (lambda metadata, _: metadata.update(rule="[1]"), "its rule are a list"),
    "a rule without a rate": (in_json("rule", lambda rule: {"steps": 1}), "other knobs than those of this version"),
    "a rule with a knob more": (in_json("rule", lambda rule: rule.update(patience=1)), r"\['patience'\]"),
    "an unknown loss": (in_json("rule", lambda rule: rule.update(loss="hinge")), "loss='hinge' is unknown"),
    "more layers than there are": (in_json("rule", lambda rule: rule.update(layers=9)), "layers=9 but the model has 2"),
    "a list for rates": (lambda metadata, _: metadata.update(rates="[]"), "its rates are a list"),
    "rates of no JSON": (lambda metadata, _: metadata.update(rates=""), "its rates cannot be read"),
    "a tensor of nobody": (lambda _, tensors: tensors.update(more=torch.ones(1)), "'more' is none of its tensors"),
    "an op of nobody": (
        lambda _, tensors: tensors.update({"transformer.h.9.ln_1.bias|vector": torch.ones(1, 12).double()}),
        "'transformer.h.9.ln_1.bias|vector' is none",
    ),
    "a weight that the rule does not train": (
        lambda _, tensors: tensors.update({"transformer.h.0.ln_1.weight|vector": torch.ones(1, 12).double()}),
        "is none of its tensors",
    ),
    "a rate of nobody": (in_json("rates", lambda rates: rates.update({"a|0": 1.0})), "a rate of 'a|0'"),
    "a vector of NaN": (tensor(f"{UP}.bias|vector", spoilt(float("nan"))), "contains NaN or infinity"),
    "a vector that broadcasts": (
        tensor(f"{UP}.bias|vector", lambda found: found[:, :1]),
        r"c_fc.bias|vector is float64 \[1, 1\], and must be float64 \[1, 48\]",
    ),
    "a vector of two rows": (tensor(f"{UP}.bias|vector", lambda found: found.repeat(2, 1)), r"float64 \[2, 48\]"),
    "a vector without rows": (tensor(f"{UP}.bias|vector", lambda found: found[0]), r"float64 \[48\]"),
    "a vector of another dtype": (tensor(f"{UP}.bias|vector", Tensor.float), "float32 .* must be float64"),
    "a vector of integers": (tensor(f"{UP}.bias|vector", Tensor.int), "int32 .* must be float64"),
    "an empty vector": (tensor(f"{UP}.bias|vector", lambda found: found[:, :0]), r"float64 \[1, 0\]"),
}


@pytest.mark.parametrize("change", METADATA)
def test_what_no_update_holds(change: str, factors: Path) -> None:
    edit, reason = METADATA[change]
    rewrite(factors, edit)
    refused(factors, reason)


@pytest.mark.parametrize("change", every(4, list(METADATA)))
def test_a_change_without_a_checksum_of_its_own(change: str, factors: Path) -> None:
    metadata, tensors = read(factors)
    METADATA[change][0](metadata, tensors)
    save_file(tensors, factors, metadata=metadata)
    refused(factors)


RATE = f"{VALUE}|0"
FACTORS: dict[str, tuple[Callable[[Metadata, Tensors], Any], str]] = {
    "no rate at all": (lambda metadata, _: metadata.update(rates="{}"), "is none of its tensors"),
    "a rate missing": (in_json("rates", lambda rates: rates.pop(RATE) and None), "is none of its tensors"),
    "a rate of NaN": (in_json("rates", lambda rates: rates.update({RATE: float("nan")})), "is nan, and must be a fin"),
    "an infinite rate": (in_json("rates", lambda rates: rates.update({RATE: float("inf")})), "must be a finite number"),
    "a text for a rate": (in_json("rates", lambda rates: rates.update({RATE: "0.1"})), "must be a finite number"),
    "true for a rate": (in_json("rates", lambda rates: rates.update({RATE: True})), "must be a finite number"),
    "null for a rate": (in_json("rates", lambda rates: rates.update({RATE: None})), "must be a finite number"),
    "a rate too many": (in_json("rates", lambda rates: rates.update({f"{VALUE}|1": 1.0})), "x1 is missing"),
    "a rate that counts on": (in_json("rates", lambda rates: rates.update({f"{VALUE}|7": 1.0})), "finite number"),
    "one factor of two": (drop(f"{VALUE}|g0"), "g0 is missing"),
    "a factor transposed": (tensor(f"{VALUE}|x0", lambda found: found.mT), r"\[1, \d+, \d+\], and must be"),
    "a factor of another rank": (tensor(f"{VALUE}|g0", lambda found: found[:, :1]), "must be float64"),
    "a factor of one column": (tensor(f"{VALUE}|g0", lambda found: found[..., :1]), "must be float64"),
    "a factor of infinity": (tensor(f"{VALUE}|g0", spoilt(float("inf"))), "contains NaN or infinity"),
    "a factor without rows": (tensor(f"{VALUE}|x0", lambda found: found[0]), "must be float64"),
    "factors of another dtype": (tensor(f"{VALUE}|g0", Tensor.half), "float16 .* must be float64"),
}


@pytest.mark.parametrize("change", FACTORS)
def test_factors_that_do_not_fit(change: str, factors: Path) -> None:
    edit, reason = FACTORS[change]
    rewrite(factors, edit)
    refused(factors, reason)


DELTA = f"{UP}.weight|delta"
DELTAS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "transposed": (lambda found: found.mT, r"float64 \[1, 12, 48\], and must be float64 \[1, 48, 12\]"),
    "that broadcasts": (lambda found: found[:, :1], r"float64 \[1, 1, 12\], and must be"),
    "of one number": (lambda found: found[:, :1, :1], "must be float64"),
    "without rows": (lambda found: found[0], "must be float64"),
    "of NaN": (spoilt(float("nan")), "contains NaN or infinity"),
    "of another dtype": (Tensor.bfloat16, "bfloat16 .* must be float64"),
}


@pytest.mark.parametrize("change", DELTAS)
def test_deltas_that_do_not_fit(change: str, deltas: Path) -> None:
    edit, reason = DELTAS[change]
    rewrite(deltas, tensor(DELTA, edit))
    refused(deltas, reason)


def test_a_vector_taken_away_is_noticed(path: Path) -> None:
    metadata, tensors = read(path)
    tensors.pop(f"{UP}.bias|vector")
    save_file(tensors, path, metadata=metadata)
    refused(path, "does not match its checksum; copy it again, or write it anew")


def test_an_update_of_some_weights_comes_back(tmp_path: Path) -> None:
    """Which is why a missing tensor is the checksum's to notice."""
    ids = make_batch(seed=5)["input_ids"]
    for form in LENGTHS:
        for part in (learn(form).without("*.up.bias"), learn(form).only("*.bias"), learn(form).only()):
            part.save(tmp_path / "some")
            back = tint.Tuned.load(tmp_path / "some", make_model("gpt2"))
            assert back.update_views().keys() == part.update_views().keys()
            assert_same(back.score(ids, logits="all").logits, part.score(ids, logits="all").logits)  # type: ignore


def test_the_bias_beside_factors_is_read(factors: Path) -> None:
    """Scores follow what the file holds, as the plain model does that is made of it."""
    rewrite(factors, tensor(f"{UP}.bias|vector", lambda found: found + 1.0))
    tuned, ids = tint.Tuned.load(factors, make_model("gpt2")), make_batch(seed=5)["input_ids"]
    score: Any = tuned.score(ids, logits="all").logits
    with torch.no_grad():
        expected = tuned.to_hf()(input_ids=ids).logits
    torch.testing.assert_close(score, expected, rtol=0, atol=1e-4)
    plain: Any = learn("factors").score(ids, logits="all").logits
    assert float((score - plain).abs().max()) > 0.1


def test_what_could_not_be_loaded_is_not_written(tmp_path: Path) -> None:
    tuned = learn("deltas")
    next(iter(tuned._updates.vectors.values())).fill_(float("nan"))
    with pytest.raises(tint.TintError, match=r"cannot write .*: .* contains NaN or infinity"):
        tuned.save(tmp_path / "update")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    model = copy.deepcopy(make_model("gpt2", torch.float32)).to(dtype)
    for length in LENGTHS.values():
        ids = make_batch(lengths=(length,))["input_ids"]
        # Factors of two rates, each of which is stored.
        tuned = tint.Tint(model, make_rule("full", steps=2, schedule=(1.0, 0.5))).adapt(ids)
        tuned.save(tmp_path / "update")
        back = tint.Tuned.load(tmp_path / "update", model)
        for name, update in tuned.updates().items():
            assert_same(back.updates()[name], update)
        found, expected = (each.score(ids, logits="all").logits for each in (back, tuned))
        assert found is not None and expected is not None
        torch.testing.assert_close(found, expected, rtol=0, atol=ROUND_OFF[dtype] * float(expected.abs().max()))


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "."):
        refused(tmp_path / name, "it is no regular file")


def test_the_command_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model, update = str(save_model(tmp_path / "model")), tmp_path / "update.safetensors"

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["tint", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0)

    assert run("adapt", model, TEXT, "--learning-rate", "1e-3", "-o", str(update)) == 0
    whole = update.read_bytes()
    changes: dict[str, Callable[[], Any]] = {
        "does not match its checksum": lambda: update.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1])),
        "lacks metadata": lambda: rewrite(update, drop("rule")),
        "cannot read the update": lambda: update.write_bytes(whole[:100]),
        "of another version": lambda: rewrite(update, lambda found, _: found.update(format="tintformer-update-1")),
    }
    for reason, change in changes.items():
        update.write_bytes(whole)
        change()
        capfd.readouterr()
        assert run("run", model, TEXT, "--adapted", str(update)) == 2
        error = capfd.readouterr().err
        assert reason in error and len(error.strip().splitlines()) == 1
