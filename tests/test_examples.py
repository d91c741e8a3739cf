# pyright: basic
"""The examples: they run from top to bottom as they stand, and what they claim holds."""

from __future__ import annotations

import ast
import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from patience import PATIENCE

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


INSTALLS = """\
# A hosted notebook gets the package here. Where tintformer can be imported, this does nothing.
from importlib.util import find_spec

if find_spec("tintformer") is None:
    %pip install --quiet "tintformer[plots]"\
"""
MORE = {"adapt_a_real_model": " gguf"}
"""What else a notebook needs: its model is a GGUF file."""
HOLDS: dict[str, Callable[[Any], bool]] = {
    "adapt_a_real_model": lambda perplexity: perplexity["after"] < perplexity["before"],
    "compare_rules": lambda losses: len(losses) == 3 and min(losses.values()) > 0,
    "what_an_update_stores": lambda sizes: sizes[8] < sizes[64] < sizes[384],
    "what_is_learnt": lambda gains: len(gains) == 6 and min(gains.values()) > 0,
}
"""What holds of the last result of each, on every machine."""
QUICK = ("what_an_update_stores",)
"""The others take longer, and are run by the sweep."""


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: Any) -> set[str]:
    """What a cell has put out: names of streams, formats of results. A stream may come in any number of pieces."""
    return {kind for output in cell.outputs for kind in ([output.name] if "name" in output else output.data)}


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(HOLDS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_saved_as_it_ran(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run it from the top, then save"
    assert path.stat().st_size < 300_000, "make the figures smaller"
    assert not [cell.source for cell in cells if "stderr" in kinds(cell)], "a warning has been saved"
    assert sum("image/png" in kinds(cell) for cell in cells) >= 1
    assert "/tmp/" not in nbformat.writes(notebook) and "/home/" not in nbformat.writes(notebook), "a path was saved"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_installs_what_is_missing_and_nothing_else(path: Path) -> None:
    first = code_cells(nbformat.read(path, as_version=4))[0]
    assert first.source == INSTALLS + MORE.get(path.stem, "") and first.outputs == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_takes_nothing_but_public_names(path: Path) -> None:
    """From the package itself; the bundled texts are the one module beside it."""
    source = "\n".join(cell.source for cell in code_cells(nbformat.read(path, as_version=4)))
    assert set(re.findall(r"(?:from|import) (tintformer[\w.]*)", source)) <= {"tintformer", "tintformer.bundled"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem in QUICK else pytest.mark.sweep) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_the_cells_of_a_notebook_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fork, which spares each the start of a kernel; cells that assert are cells that may fail."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOTEBOOK_MODEL", "nano-llama")
    translate = TransformerManager().transform_cell  # `%pip` is no Python
    *cells, last = [ast.parse(translate(cell.source)) for cell in code_cells(nbformat.read(path, as_version=4))]
    result = last.body.pop()
    assert isinstance(result, ast.Expr)

    def run() -> None:
        namespace: dict[str, Any] = {}
        for cell in (*cells, last):
            exec(compile(cell, path.name, "exec"), namespace)
        print(eval(compile(ast.Expression(result.value), path.name, "eval"), namespace))

    forked.import_what_commands_import()
    done = forked.call(run)
    assert done.returncode == 0, done.stderr
    assert HOLDS[path.stem](ast.literal_eval(done.stdout.splitlines()[-1]))


@pytest.mark.sweep
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel of this environment and a directory of its own, offline."""
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    # The bundled model in the place of the real one: the claims are the same, the numbers are not.
    more = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "NOTEBOOK_MODEL": "nano-llama"}
    notebook = nbformat.read(path, as_version=4)
    saved = [kinds(cell) for cell in code_cells(notebook)]
    client = NotebookClient(
        notebook, kernel_name="python3", timeout=PATIENCE, resources={"metadata": {"path": tmp_path}}
    )
    client.execute(env={**os.environ, **more})
    assert [kinds(cell) for cell in code_cells(notebook)] == saved
    assert HOLDS[path.stem](ast.literal_eval(code_cells(notebook)[-1].outputs[-1].data["text/plain"]))


def test_a_study_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a bundled model, in this process; it takes at most 15 lines."""
    script = ROOT / "examples" / "first_study.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 15
    monkeypatch.setattr(sys, "argv", [str(script), "nano-llama"])
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(script))
    assert found["result"].perplexity < found["result"].perplexity_before
    assert {row.rule for row in found["study"].rows} == {"default", "paper", "full"}
    assert found["study"].best.loss < found["study"].loss_before
    printed = capsys.readouterr().out
    assert "before: " in printed and "after: " in printed and "best" in printed
    assert (tmp_path / "first_study.png").read_bytes().startswith(b"\x89PNG")
