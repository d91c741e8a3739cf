# pyright: basic
"""`verify` and `tint verify`: one report, judged; sound engines pass, broken ones fail and are named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from cases import covering, make_model
from tiny import TEXT, save_model
from typer.testing import CliRunner

import tintformer as tint
from tintformer.engines.reference import ReferenceEngine, TensorExecutor
from tintformer.errors import TintError
from tintformer.execution.output import EngineResult
from tintlab.checks.verify import verify_settings as defaults
from tintlab.checks.verify.verification import verify
from tintlab.checks.verify.verified_engine import VerifiedEngine, find_verified_engine
from tintlab.checks.verify.verify_settings import (
    FLOAT32,
    FLOAT32_DIFFERENCES,
    FLOAT64,
    FLOAT64_DIFFERENCES,
    VerifySettings,
    tolerance_for,
)
from tintlab.cli.verify import verify as command

IDS = torch.tensor([[5, 9, 3, 17, 22, 8, 11, 4, 26, 7, 13, 19]])
TRAIN = torch.arange(12)[None] < 8


@pytest.mark.parametrize(
    ("engine", "name"), covering(["network", "simulator", "reference", "fast"], ["gpt2", "llama-grouped"])
)
def test_sound_engines_pass(name: str, engine: str) -> None:
    shares: list[float] = []
    report = verify(
        tint.load(make_model(name)),
        IDS,
        TRAIN,
        find_verified_engine(engine),
        progress=lambda text, share: shares.append(share),
    )
    assert report.failures() == []
    assert shares == sorted(shares) and shares[0] == 0 and len(shares) == 6
    record = json.loads(json.dumps(report.record(), allow_nan=False))
    assert record["passed"] and record["engine"] == engine and record["dtype"] == "float64"
    assert (record["layers"], record["layers_of_model"], record["tokens"], record["train_tokens"]) == (2, 2, 12, 8)
    for part in ("modules", "passes", "gradients", "tolerances", "rules"):
        assert list(record[part]) == ["default", "paper", "full"]
    assert record["gradients"]["full"]["everything"]["cosine"] > 1 - 1e-9
    assert record["gradients"]["default"]["everything"]["cosine"] < 0.9999
    assert {check["name"] for check in record["theorems"]} >= {"hard attention, keys", "value-only gradient"}
    assert {error["form"] for error in record["linear_as_softmax"]} == {"printed", "pair"}


def test_a_simulator_of_softmax_attentions_is_reported_and_not_judged() -> None:
    auxiliary, settings = tint.load(make_model("gpt2")), VerifySettings(presets=("default",), steps=2, theorems=False)
    subject = find_verified_engine("simulator", attention="softmax", layout="paper", stack=2)
    report = verify(auxiliary, IDS, TRAIN, subject, settings)
    assert report.failures() == []
    record = json.loads(json.dumps(report.record(), allow_nan=False))
    assert record["construction"] == {"attention": "softmax", "layout": "paper", "stack": 2}
    assert record["tolerances"]["default"]["module"] is None
    assert 1e-9 < max(error["relative"] for error in record["modules"]["default"]) < 1e-3
    strict = verify(auxiliary, IDS, TRAIN, subject, replace(settings, tolerance=1e-9))
    assert strict.failures()
    with pytest.raises(TintError, match="attention: knobs of the simulator; leave them out with engine='fast'"):
        find_verified_engine("fast", attention="softmax")


class FourfoldBias(TensorExecutor):
    """The bias of the second feed-forward matrix moves as if each of four shards carried it."""

    def descend(self, op: Any, saved: Any, gradient: torch.Tensor) -> None:
        super().descend(op, saved, gradient)
        if op.name == "blocks.1.down":
            self.updates[op.bias] = 4 * self.updates[op.bias]


class FourfoldBiasEngine(ReferenceEngine):
    """The whole engine with the same defect in its updates; what it predicts is right."""

    def run(self, *arguments: Any, **knobs: Any) -> EngineResult:
        result = super().run(*arguments, **knobs)
        name = "transformer.h.1.mlp.c_proj.bias"
        return replace(result, updates=lambda row: {**result.updates(row), name: 4 * result.updates(row)[name]})


def test_a_broken_engine_fails_and_is_named() -> None:
    broken = VerifiedEngine(name="broken", engine=FourfoldBiasEngine, executor=FourfoldBias)
    settings = VerifySettings(presets=("default", "full"), theorems=False)
    report = verify(tint.load(make_model("gpt2")), IDS, TRAIN, broken, settings)
    failures = report.failures()
    assert [line.split(" errs by")[0] for line in failures if "errs by" in line] == [
        "default: descent of blocks.1.down",
        "default: updated of blocks.1.down",
        "full: descent of blocks.1.down",
        "full: updated of blocks.1.down",
    ]
    whole = [line for line in failures if "whole pass" in line]
    assert len(whole) == 2 and all("weights" in line and "h.1.mlp.c_proj.bias" in line for line in whole)
    assert failures[-1].startswith("full: cosine with the true gradient is 0.9")
    assert len(failures) == 7
    assert not report.record()["passed"] and report.record()["theorems"] == []


def test_in_float32_and_with_the_first_block_alone() -> None:
    auxiliary = tint.load(make_model("llama", torch.float32))
    settings = VerifySettings(presets=("default",), learning_rate=1e-3, steps=2)
    report = verify(auxiliary, IDS, TRAIN, find_verified_engine("fast"), settings, layers=1)
    assert report.failures() == []
    record = report.record()
    assert (record["layers"], record["layers_of_model"], record["dtype"]) == (1, 2, "float32")
    assert record["rules"]["default"]["steps"] == 2 and record["rules"]["default"]["learning_rate"] == 1e-3
    assert {error["layer"] for error in record["modules"]["default"]} == {0, None}


def test_what_is_too_strict_fails() -> None:
    settings = VerifySettings(presets=("default",), tolerance=0.0, theorems=False)
    report = verify(tint.load(make_model("gpt2")), IDS, TRAIN, find_verified_engine("fast"), settings)
    assert any("tolerance 0e+00" in line for line in report.failures())


def test_tolerances_follow_the_number_format_and_the_rule() -> None:
    default, paper, full = (make(learning_rate=1.0) for make in defaults.PRESETS.values())
    assert tolerance_for(default, torch.float64) == FLOAT64
    assert tolerance_for(paper, torch.float64) == tolerance_for(full, torch.float64) == FLOAT64_DIFFERENCES
    assert tolerance_for(default, torch.float32) == tolerance_for(full, torch.float32) == FLOAT32
    assert tolerance_for(paper, torch.float32) == FLOAT32_DIFFERENCES
    assert tolerance_for(full, torch.float32, 0.5).loss == 0.5
    with pytest.raises(TintError, match=r"tolerance=-1\.0 must be"):
        VerifySettings(tolerance=-1.0)


def test_bfloat16_is_refused() -> None:
    auxiliary = tint.load(make_model("gpt2", torch.bfloat16))
    with pytest.raises(tint.InputError, match="load it in float32 or float64"):
        verify(auxiliary, IDS, TRAIN, find_verified_engine("fast"))


def test_something_must_be_left_to_evaluate() -> None:
    with pytest.raises(tint.InputError, match="no token to evaluate"):
        verify(tint.load(make_model("gpt2")), IDS, TRAIN | True, find_verified_engine("fast"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


def call(*arguments: Any) -> Any:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(word) for word in arguments], env={"COLUMNS": "100"})


def test_command_for_people(model: Path) -> None:
    done = call(model, TEXT, "--tokens", "40", "--train-tokens", "30")
    assert done.exit_code == 0, done.output
    for words in (
        "40 tokens, 30 of them",
        "all 2 blocks, engine simulator",
        "attention_norm",
        "descent",
        "against the true gradient",
        "first-order LayerNorm",
        "hard attention, keys",
        "factor of T/2",
        "linear attention as softmax",
        "everything is within tolerance",
    ):
        assert words in done.stdout, words


def test_command_for_programs_reads_its_own_text(model: Path, tmp_path: Path) -> None:
    options = ("--engine", "reference", "--preset", "default", "--preset", "full", "--no-theorems", "--json")
    done = call(model, "--layers", "1", "--dtype", "float64", *options)
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["passed"] and record["layers"] == 1 and list(record["rules"]) == ["default", "full"]
    assert (record["tokens"], record["train_tokens"]) == (128, 64)
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    record = json.loads(call(model, "--file", file, *options).stdout)
    assert record["dtype"] == "float32" and record["tokens"] < 128


def test_command_exits_with_one_outside_of_tolerance(model: Path) -> None:
    done = call(model, TEXT, "--engine", "fast", "--preset", "default", "--no-theorems", "--tolerance", "1e-12")
    assert done.exit_code == 1
    assert " !" in done.stdout and "outside of tolerance:" in done.stdout
    done = call(model, TEXT, "--engine", "fast", "--preset", "full", "--no-theorems", "--tolerance", "1e-12", "--json")
    assert done.exit_code == 1 and not json.loads(done.stdout)["passed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "simulator", "--layout", "fat"], "layout='fat' is unknown"),
        (["--stack", "2", "--untied"], "stack, tie_blocks: knobs of the simulator"),
        (["--engine", "oracle"], "cannot be verified; choose one of"),
        (["--preset", "best"], "preset='best' is unknown; choose one of default, paper, full"),
        (["--layers", "3"], "layers=3 but"),
        (["--learning-rate", "0"], "moves nothing"),
        (["--learning-rate", "-1"], "learning_rate=-1.0 must be"),
        (["--steps", "0"], "steps=0 must be"),
        (["--train-fraction", "2"], "must lie between 0 and 1"),
        (["--tolerance", "-1"], "tolerance=-1.0 must be"),
        (["--dtype", "bfloat16"], "load it in float32 or float64"),
        (["--dtype", "int"], "dtype='int' is unknown"),
        (["--file", "nowhere.txt"], "there is a text and a --file"),
        (["--tokens", "200", "--file", "-"], "there is a text and a --file"),
    ],
)
def test_bad_input_gets_one_line(model: Path, arguments: list[str], message: str) -> None:
    engine = [] if "--engine" in arguments else ["--engine", "fast"]
    done = call(model, TEXT, *engine, *arguments)
    assert isinstance(done.exception, TintError) and message in str(done.exception)
    assert len(str(done.exception).splitlines()) == 1 and done.stdout == ""
