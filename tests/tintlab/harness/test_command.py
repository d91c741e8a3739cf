# pyright: basic
"""`tint lm-eval` as a user types it, and what is wrong with its arguments in one line."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
from films import harness, save_reviews
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager
from places import ROOT

from tintformer.errors import TintError
from tintlab.cli import lm_eval as command
from tintlab.harness import TintLM


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.tint("lm-eval", *arguments)


@pytest.mark.parametrize("defaults", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_the_command_evaluates_and_writes_what_it_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defaults: bool
) -> None:
    """Without the harness's own tasks, the search for which takes five seconds, and with them."""
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=defaults))
    reviews = save_reviews(tmp_path / "my reviews")
    done = run(
        *("--model", "tint", "--model_args", "pretrained=nano-gpt2,learning_rate=1e-4", "--tasks", "tint_sst2"),
        *("--data", str(reviews / "sst2"), "--tests", "6", "--batch_size", "3", "--log_samples"),
        *("--output_path", str(tmp_path / "out"), "--json"),
    )
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(file.read_text())
    assert json.loads(done.stdout) == found
    metrics, samples = harness(TintLM(pretrained="nano-gpt2", learning_rate=1e-4), {"data": str(reviews), "tests": 6})
    for name in ("acc", "acc_calibrated", "cross_entropy"):
        assert found["results"]["tint_sst2"][f"{name},none"] == pytest.approx(metrics[name], abs=1e-5)
    assert found["config"]["learning_rule"]["learning_rate"] == 1e-4 and found["config"]["model_identity"]["weights"]
    (lines,) = (tmp_path / "out").rglob("samples_*.jsonl")
    logged = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [line["doc"] for line in logged] == [sample["doc"] for sample in samples]


@pytest.mark.sweep
def test_a_bad_argument_is_one_line(tmp_path: Path) -> None:
    done = run("--model", "tint", "--model_args", "pretrained=nano-gpt2,learning_rat=1", "--tasks", "tint_sst2")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "tint: unknown model args of tint: learning_rat; known are pretrained"
    )


def test_without_the_harness_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(TintError, match=r"lm-eval is not installed; pip install 'tintformer\[eval\]'"):
        command.lm_eval(None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("arguments", [[], ["--model", "tint", "--limit", "4"], ["run", "--model", "tint"]])
def test_without_a_task_it_says_so_in_one_line(arguments: list[str]) -> None:
    with pytest.raises(TintError, match="there is no task; give --tasks, such as --tasks tint_sst2"):
        command.lm_eval(SimpleNamespace(args=arguments), json=True)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "arguments", [["--tasks=a"], ["-t", "a", "b"], ["-C", "run.yaml"], ["run", "--help"], ["ls", "tasks"]]
)
def test_what_names_tasks_or_needs_none_is_left_to_the_harness(arguments: list[str]) -> None:
    command._check_tasks(arguments)


def test_help_is_quick_and_names_the_options_of_the_harness() -> None:
    done = run("--help")
    assert done.returncode == 0
    for name in ("--data", "--tests", "--variant", "--model_args"):
        assert name in done.stdout


def test_releases_that_read_an_entry_point_find_the_model() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["lm_eval.models"] == {"tint": f"{TintLM.__module__}:{TintLM.__name__}"}


def test_the_example_of_the_documentation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "harness.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    exec(compile(code.replace("path/to/tasks", str(save_reviews(tmp_path))), "harness.md", "exec"), {})
    assert 0 <= float(capsys.readouterr().out) <= 1


def test_importing_it_registers_it_beside_the_models_of_the_harness() -> None:
    assert get_model("tint") is TintLM
    assert get_model("dummy").__name__ == "DummyLM"


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "there is no model"),
    ({"pretrained": "nano-gpt2"}, "learning_rate is missing"),
    ({"learning_rate": 1e-4, "trust_remote_code": True}, "unknown model args of tint: trust_remote_code"),
    ({"learning_rate": "auto"}, "learning_rate='auto' is chosen for each text, but an evaluation of the harness holds"),
    ({"learning_rate": 1e-4, "preset": "best"}, "preset='best' is unknown"),
    ({"learning_rate": 1e-4, "engine": "oracle"}, "engine='oracle' is unknown here; choose one of fast, simulator"),
    ({"learning_rate": 1e-4, "dtype": "int8"}, "dtype='int8' is unknown"),
    ({"learning_rate": 1e-4, "batch_size": "auto"}, "batch_size='auto' must be a whole number"),
    ({"learning_rate": 1e-4, "max_length": 0}, "max_length=0 must be a whole number"),
    ({"learning_rate": 1e-4, "max_length": 9999}, "max_length=9999, but nano-gpt2 has learned 512 positions"),
    ({"learning_rate": 1e-4, "layers": 99}, "layers=99 but the model has"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_bad_model_args_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TintError, match=message.replace("(", r"\(")) as caught:
        TintLM(**({"pretrained": "nano-gpt2"} if "learning_rate" in given else {}) | given)
    assert "\n" not in str(caught.value)


def test_what_is_said_of_the_model_wins_over_the_options_of_the_harness() -> None:
    lm = TintLM.create_from_arg_string(
        "pretrained=nano-gpt2,learning_rate=0,batch_size=3,preset=full,layers=1",
        {"batch_size": 1, "device": "cuda:0", "max_batch_size": None},
    )
    assert lm.arguments.batch_size == 3 and lm.arguments.rule.update_query_key and lm.arguments.rule.layers == 1
    assert lm.tokenizer_name == "nano-gpt2" and lm.eot_token_id == lm.tokenizer.eos_token_id
