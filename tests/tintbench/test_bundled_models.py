# pyright: basic
"""The benchmark of the bundled models, run as a user would on a text of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import forked
import pytest

from tintbench.bundled_models import main
from tintbench.results import run_as_script
from tintformer.bundled import read_text

pytestmark = forked.needs_fork


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and standard error of `python -m tintbench.bundled_models`."""

    def work() -> None:
        sys.argv = ["bundled_models", *arguments]
        run_as_script("bundled_models", main)

    process = forked.Fork(work)
    _, errors = process.communicate()
    return process.wait(), errors


@pytest.mark.slow
@pytest.mark.sweep
def test_it_measures_every_method_and_writes_the_table(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(read_text("visit"))
    sizes = ("--tokens", "96", "--segments", "2", "--tuning", "2", "--model", "nano-llama")
    code, errors = run(str(text), *sizes, "--output", str(tmp_path / "new"))
    assert code == 0, errors
    (model,) = json.loads((tmp_path / "new" / "bundled-models.json").read_text())["models"]
    losses = {method["method"]: method["losses"] for method in model["methods"]}
    assert list(losses)[:2] == ["model as it is", "explicit fine-tuning"] and len(losses) == 6
    # The exact gradient inside the pass and autograd are one thing, at one rate.
    assert losses["inside the pass, exact gradient of all"] == pytest.approx(losses["explicit fine-tuning"], abs=1e-3)
    table = (tmp_path / "new" / "bundled-models.md").read_text()
    assert all(f"| {name} |" in table for name in losses)


def test_a_text_that_is_too_short_is_one_line(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Too short.")
    code, errors = run(str(text), "--output", str(tmp_path / "out"))
    assert code == 2
    assert errors.count("\n") == 1 and "70 are needed" in errors
    assert not (tmp_path / "out").exists()
