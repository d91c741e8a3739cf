# pyright: basic
"""`tint export`, run as a user would."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cases import make_model
from tiny import save_model

from tintformer.cli import main

pytest.importorskip("onnxruntime", reason="pip install 'tintformer[export]'")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process, which has imported everything: exit code, output, errors."""

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tint", "export", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    make_model("gpt2", torch.float32).save_pretrained(path)
    return str(path)


def test_a_tiny_model_is_exported(run: Run, model: str, tmp_path: Path) -> None:
    target = tmp_path / "new" / "model.onnx"
    code, output, errors = run(model, "--learning-rate", "1e-3", "--tokens", "6", "-o", str(target), "--json")
    assert code == 0, errors
    record = json.loads(output)
    assert record["engine"] == "network" and record["tokens"] == 6 and record["outputs"] == ["logits"]
    assert record["difference"] < 1e-4 and record["bytes"] == target.stat().st_size
    assert sum(count["embed"] + count["layers"] for count in record["operators"]) == record["nodes"]
    assert [path.name for path in target.parent.iterdir()] == ["model.onnx"]


def test_the_fast_pass_of_a_text_is_exported_and_its_operators_are_listed(run: Run, tmp_path: Path) -> None:
    model = str(save_model(tmp_path / "model"))
    text = "A small fox ran home. A small fox ran home."
    options = ("--learning-rate", "1e-3", "--tokens", "24", "--train-tokens", "5", "--engine", "fast", "--updates")
    code, output, errors = run(model, text, *options, "-o", str(tmp_path / "model.onnx"))
    assert code == 0, errors
    assert "MatMul" in output and "updated weights" in output and "every operator" not in output
    content = json.loads((tmp_path / "model.json").read_text())
    attended = sum(content["attention_mask"][0])
    assert 2 < attended <= 24 == len(content["input_ids"][0]) and sum(content["train_mask"][0]) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--engine", "oracle"), "engine='oracle' cannot be exported; choose one of network, fast"),
        (("--tokens", "65"), "65 tokens are to be exported, but"),
        (("--tokens", "0"), "0 tokens are too few to export"),
        (("--engine", "fast", "--loop"), "--stack and --loop are of the network"),
        (("--dtype", "bfloat16"), "an export computes in float32 or float64"),
        (("--updates", "--dynamic-batch"), "export them without a dynamic batch"),
        (("--loss", "none"), "loss="),
        (("--train-tokens", "3", "--train-fraction", "0.5"), "say the same thing; give one of them"),
        (("--train-tokens", "64"), "the training part would be 64 of"),
        (("--stack", "0"), "stack=0 must be a whole number of at least 1"),
    ],
)
def test_what_is_refused_is_said_in_one_line_and_leaves_nothing(
    run: Run, model: str, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    rate = ("--learning-rate", "1e-3", *(() if "--tokens" in options else ("--tokens", "4")))
    code, output, errors = run(model, *rate, *options, "-o", str(tmp_path / "new" / "model.onnx"))
    assert code == 2 and not output
    assert message in errors and errors.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written_and_missing_packages(
    run: Run, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    code, _, errors = run(model, "--learning-rate", "1e-3", "-o", str(tmp_path / "file" / "model.onnx"))
    assert code == 2 and "is no directory; choose another one" in errors
    code, _, errors = run(model, "--learning-rate", "1e-3", "-o", str(tmp_path / "model.bin"))
    assert code == 2 and "ends in .onnx" in errors
    code, _, errors = run(model, "-o", str(tmp_path / "model.onnx"))
    assert code == 2 and "the learning rate is built in" in errors
    monkeypatch.setattr("tintformer.network.export.find_spec", lambda name: None)
    code, _, errors = run(model, "--learning-rate", "1e-3", "-o", str(tmp_path / "model.onnx"))
    assert code == 2 and "an export needs onnx and onnxruntime" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
