# pyright: basic
"""`--device` and `--dtype` on every command that loads a model: the CPU by name, devices that are not there, and one
that does not exist, on which everything is computed as on the CPU (`fake_devices`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from all_commands import all_commands
from cases import some
from fake_devices import CPU, FIRST, Labelled, bare, fake_devices, put
from praise import save_task
from tiny import TEXT, save_model

import tintformer as tint
from tintformer.cli import main
from tintlab.data.models import open_model

RATE = ["--learning-rate", "1e-3"]
EVAL = ["--methods", "auxiliary,fine-tuning,tint", *RATE]
BLOCKS = ["--length", "16", "--blocks", "2", "--tuning", "1", *EVAL]
TESTS = ["--tests", "2", "--tuning", "2", "--seeds", "0", *EVAL]
COMMANDS: dict[str, list[str]] = {
    "run": ["MODEL", TEXT, *RATE, "--generate", "3", "--json"],
    "report": ["MODEL", TEXT, *RATE, "-o", "report", "--json"],
    "adapt": ["MODEL", TEXT, *RATE, "-o", "update", "--json"],
    "build": ["MODEL", *RATE, "-o", "simulator", "--json"],
    "export": ["MODEL", *RATE, "--tokens", "4", "-o", "graph.onnx", "--json"],
    "inspect": ["MODEL", TEXT, *RATE, "--json"],
    "verify": ["MODEL", TEXT, "--tokens", "8", "--preset", "default", "--no-theorems", "--json"],
    "eval lm": ["MODEL", "TEXTS", "--shares", "0.5", "-o", "lm", *BLOCKS, "--json"],
    "eval icl": ["MODEL", "task/praise.yaml", "-o", "icl", *TESTS, "--json"],
}
"""Each with a model of two blocks; of the others, `demo` and `bench` take seconds, and the tables are made of these."""
OTHERS = {"demo", "bench", "eval table-lm", "eval table-icl", "eval table-settings"}
NO_MODEL = {
    "params",
    "plan",
    "models",
    "fetch",
    "lm-eval",
    "eval list",
    "eval table",
    "eval regression",
    "eval constructions",
}
"""Commands that load none, make their own, or leave it to the harness."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("devices")
    save_model(place / "MODEL")
    save_task(place / "task")
    (place / "TEXTS").write_text(TEXT * 3, encoding="utf-8")
    return place


def run(place: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "argv", ["tint", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_every_command_that_loads_a_model_has_both_options() -> None:
    assert set(all_commands()) >= {*COMMANDS, *OTHERS}
    for name, callback in all_commands().items():
        if name not in NO_MODEL:
            assert {"device", "dtype"} <= get_type_hints(callback).keys(), name


@pytest.mark.parametrize("command", some(list(COMMANDS), 3))
def test_the_cpu_by_name_and_devices_that_are_not_there(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*command.split(), *COMMANDS[command]]
    for device in ("cuda:63", "abacus", "meta", "") if command == "run" else ("cuda:63",):
        assert run(place, monkeypatch, *words, "--device", device) == 2
        err = capfd.readouterr().err
        assert err.startswith(f"tint: device='{device}' cannot be used here (") and err.count("\n") == 1, err
        assert "; there are cpu" in err
    assert run(place, monkeypatch, *words, "--device", "cpu") == 0
    plain = capfd.readouterr().out
    assert json.loads(plain)


@pytest.mark.parametrize(
    "command", some(["run", "adapt", "inspect", *sorted(COMMANDS.keys() - {"run", "adapt", "inspect", "export"})], 3)
)
def test_a_device_that_does_not_exist_computes_the_same(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever a command did on the wrong device would raise an error, or show in its numbers."""
    words = [*command.split(), *COMMANDS[command]]
    assert run(place, monkeypatch, *words) == 0
    expected = capfd.readouterr().out
    moved: list[Any] = []
    open_model.cache_clear()

    def to(model: Any, device: Any) -> Any:
        put(model, {"": torch.device(device)})
        moved.append(model)
        return model

    monkeypatch.setattr("transformers.PreTrainedModel.to", to)
    with fake_devices():
        code = run(place, monkeypatch, *words, "--device", str(FIRST))
    found = capfd.readouterr()
    assert code == 0, found.err
    assert all(isinstance(each, Labelled) for model in moved for each in model.parameters()) and moved
    assert without_devices(json.loads(found.out)) == without_devices(json.loads(expected))


def without_devices(record: Any) -> Any:
    if isinstance(record, dict):
        return {key: without_devices(value) for key, value in record.items() if key not in ("device", "seconds")}
    return [without_devices(each) for each in record] if isinstance(record, list) else record


@pytest.mark.parametrize("engine", ["fast", "reference", "oracle", "simulator", "network"])
def test_every_engine_follows_a_model_to_its_device(engine: str, place: Path) -> None:
    ids = torch.arange(2, 14)[None]
    rule = tint.LearningRule.full(learning_rate=1e-3)

    def logits(model: Any) -> Any:
        return tint.Tint(model, rule, engine=engine)(ids, train_mask=ids < 9).logits

    auxiliary = tint.load(place / "MODEL", dtype=torch.float64)
    expected = logits(auxiliary)
    with fake_devices():
        put(auxiliary.model, {"": FIRST})
        found = logits(auxiliary.model)
    assert found.device == FIRST and expected.device == CPU
    torch.testing.assert_close(bare(found), expected, rtol=0, atol=0)


def test_auto_is_a_device_map(place: Path) -> None:
    pytest.importorskip("accelerate", reason="device_map is accelerate's; pip install accelerate")
    assert tint.load(place / "MODEL", device="auto").device == CPU
    with pytest.raises(tint.LoadError, match="device and device_map say the same thing"):
        tint.load(place / "MODEL", device="auto", device_map={"": "cpu"})
