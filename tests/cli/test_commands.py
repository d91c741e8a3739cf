# pyright: basic
"""The command line, run as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

import tintformer
from tintformer.auxiliary.families import families

TINT = Path(sys.executable).with_name("tint")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(TINT), *arguments], capture_output=True, text=True, timeout=PATIENCE)


def test_help_lists_the_commands() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "demo" in done.stdout and "models" in done.stdout


def test_version() -> None:
    assert run("--version").stdout.strip() == tintformer.__version__


def test_help_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\nsys.argv = ['tint', '--help']\nfrom tintformer.cli import main\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "tintformer" in loaded
    assert not loaded & {"torch", "transformers", "numpy", "matplotlib", "huggingface_hub", "jaxtyping"}


def test_importing_the_package_is_light_and_every_name_resolves() -> None:
    code = (
        "import sys, tintformer\nprint('torch' in sys.modules)\n"
        "print(all(hasattr(tintformer, name) for name in tintformer.__all__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.split() == ["False", "True"]
    with pytest.raises(AttributeError, match="No tintformer attribute nothing"):
        _ = tintformer.nothing  # type: ignore[attr-defined]


def test_models_lists_every_family() -> None:
    done = run("models", "--json")
    assert done.returncode == 0
    rows = json.loads(done.stdout)
    assert [row["model_type"] for row in rows] == list(families())
    table = run("models").stdout
    assert all(row["family"].split()[0] in table for row in rows)


def test_the_readme_lists_every_family() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    for row in json.loads(run("models", "--json").stdout):
        line = next(line for line in readme.splitlines() if line.startswith(f"| {row['family']} "))
        for key in ("norm", "positions", "feed_forward"):
            assert row[key] in line, (row["family"], key)


@pytest.mark.slow
def test_the_demo_learns_on_both_models_and_texts_and_its_engines_agree(tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    command = [str(TINT), "demo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert [(result["model"], result["text"]) for result in results] == [
        (model, text) for model in ("nano-gpt2", "nano-llama") for text in ("address", "visit")
    ]
    for result in results:
        before, explicit, fast, simulator = result["perplexities"].values()
        assert explicit < before and fast < before
        assert simulator == pytest.approx(fast, rel=1e-4)
        assert result["engines_differ_by"] < 1e-3
        assert 0.7 < result["cosine"] <= 1
        assert result["simulator"] < result["auxiliary"] < result["paper"]
        assert len(result["gained_most"]) == 5
    reports = [Path(result["report"]) for result in results if result["report"]]
    assert [path.parent.name for path in reports] == ["nano-gpt2-address", "nano-llama-visit"]
    assert all((tmp_path / path).read_text().startswith("<!doctype html>") for path in reports)


@pytest.mark.parametrize("arguments", [("nonsense",), ("models", "--nonsense"), ("demo", "extra")])
def test_bad_arguments_exit_with_two(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
