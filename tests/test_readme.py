# pyright: basic
"""What the README and the pages say works: their examples, and the commands they name."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import forked
import pytest
import torch
from cases import some
from patience import PATIENCE
from transformers import LlamaConfig, LlamaForCausalLM

import tintformer as tint
from tintformer.bundled import BUNDLED
from tintformer.learning.text import find_tokenizer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
INSIDE = (ROOT / "docs" / "interpretability.md").read_text(encoding="utf-8")
HOME = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
QUICK_START = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
INSTALLS = "pip install 'tintformer[plots]'\nuv add 'tintformer[plots]'\nuv pip install 'tintformer[plots]'"
NOT_HERE = ("pip install '.[plots]'", INSTALLS, "tint demo")
"""Blocks that are not run: the tests run in what is installed already, and tests/cli/test_commands.py runs the demo."""


def blocks(page: str) -> list[tuple[str, str]]:
    """The code of a page in its order, each with its language."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)


def run_python(page: str, namespace: dict[str, object], name: str) -> None:
    """Run the examples of a page one after the other, as if they stood in one file."""
    for language, code in blocks(page):
        if language == "python":
            exec(compile(code, name, "exec"), namespace)


def run_shell(code: str) -> str:
    """Run commands as a user would paste them, each `tint` behind the others in a fork that spares it its imports."""
    lines = code.strip().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("tint "))
    if first:
        words = ["bash", "-euo", "pipefail", "-c", "\n".join(lines[:first])]
        subprocess.run(words, check=True, timeout=PATIENCE)
    printed = ""
    for line in lines[first:]:
        assert line.startswith("tint ") and not set(line) & set("|<>$`\\;&"), f"this is more than a command: {line}"
        done = forked.tint(*shlex.split(line, comments=True)[1:])
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        printed += done.stdout
    return printed


def save_small_model(directory: Path) -> None:
    """A model with the tokenizer and the length of nano-llama, and a fraction of its size."""
    nano = tint.load("nano-llama").model.config
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(**{**nano.to_dict(), **small, "num_key_value_heads": 2, "head_dim": 16})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(directory)
    find_tokenizer("nano-llama").save_pretrained(directory)


@pytest.mark.parametrize("model", some(list(BUNDLED)))
def test_the_examples_run_with_every_bundled_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    assert 'tint.load("nano-llama")' in README
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    run_python(README.replace('"nano-llama"', f'"{model}"'), namespace, "README.md")
    printed = capsys.readouterr().out
    assert "->" in printed and "5.mlp." in printed
    assert (tmp_path / "update.safetensors").exists()
    out = namespace["out"]
    assert float(out.loss) != float(out.loss_before)  # type: ignore[attr-defined]


def test_the_home_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_python(HOME, {}, "index.md")
    assert "->" in capsys.readouterr().out


@pytest.mark.sweep
def test_the_page_on_audits_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_python((ROOT / "docs" / "audit.md").read_text(encoding="utf-8"), {}, "audit.md")
    assert "moves the score of token" in capsys.readouterr().out and (tmp_path / "certificate.json").exists()


def test_the_page_on_probes_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_python((ROOT / "docs" / "probe.md").read_text(encoding="utf-8"), {}, "probe.md")
    assert "gloomy both" in capsys.readouterr().out


def test_the_page_on_looking_inside_runs() -> None:
    namespace: dict[str, object] = {}
    run_python(INSIDE, namespace, "interpretability.md")
    sim = namespace["sim"]
    named = re.findall(r"^\| `(blocks\.3\.[\w.]+)`", INSIDE, flags=re.MULTILINE)
    assert len(named) == 5 and set(named) <= {point.name for point in sim.points()}  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["./small", pytest.param("nano-llama", marks=pytest.mark.sweep)])
def test_the_quick_start_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    save_small_model(tmp_path / "small")
    namespace: dict[str, object] = {}
    commands: list[str] = []
    for language, code in blocks(QUICK_START.replace("nano-llama", model)):
        if language == "python":
            exec(compile(code, "quick-start.md", "exec"), namespace)
        elif code.strip() not in NOT_HERE:
            assert language == "sh", f"a block in {language} is not run: {code}"
            commands.append(code)
            assert run_shell(code).strip(), f"this printed nothing: {code}"
    named = set(re.findall(r"^tint (\w+)", "\n".join(commands), flags=re.MULTILINE))
    assert named == {"run", "audit", "report", "sweep", "stream", "adapt", "build", "inspect", "params", "verify"}
    assert capsys.readouterr().out.count("->") == 3
    for written in (
        "report/report.html",
        "report-again/report.html",
        "update.safetensors",
        "adapted.safetensors",
        "adapter/adapter_config.json",
        "simulator/config.json",
    ):
        assert (tmp_path / written).exists(), written
    out, inside = namespace["out"], namespace["inside"]
    assert float(out.loss) != float(out.loss_before)  # type: ignore[attr-defined]
    torch.testing.assert_close(inside.logits, out.logits, rtol=1e-3, atol=1e-3)  # type: ignore[attr-defined]


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"make ([a-z]+)", README))
    assert {"demo", "test"} <= targets
    for target in targets | set(re.findall(r"`make ([a-z]+)`", QUICK_START)):
        assert re.search(rf"^{target}(?: [a-z]+)*:", makefile, flags=re.MULTILINE), target
