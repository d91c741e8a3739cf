# pyright: basic
"""The version of the code: it follows what computes, and neither layout, words nor presentation."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import tintformer
from tintlab.study.code_version import COMPUTES, DECIDES_NOTHING, PACKAGES, code_version, computes, source_hash

ROOT = Path(tintformer.__file__).parent.parent
UNITS = (
    "tintlab.kinds.lm",
    "tintlab.kinds.icl",
    "tintlab.kinds.text_sweep",
    "tintlab.kinds.document_streams",
    "tintlab.kinds.regression",
    "tintlab.kinds.comparison",
    "tintlab.kinds.context_probe",
)
"""Whose `run` runs a unit."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The sources of both packages, to be changed."""
    for path in (each for package in PACKAGES for each in (ROOT / package).rglob("*.py")):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{path} has no {old!r}"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_it_is_the_same_in_every_process() -> None:
    version, _, digest = code_version().partition("+")
    assert version == tintformer.__version__ and len(digest) == 16
    command = "from tintlab.study.code_version import code_version; print(code_version())"
    found = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == code_version()


def test_layout_and_words_decide_nothing(root: Path) -> None:
    before = source_hash(root)
    head = root / "tintformer" / "rule" / "head.py"
    edit(head, '"""', '"""In other words: ')
    edit(head, "\n\n\n", "\n\n\n# A comment.\n\n\n")
    edit(head, "from __future__ import annotations\n", "from __future__ import annotations\n\nimport math as _math\n")
    assert source_hash(root) == before
    head.rename(root / "tintformer" / "rule" / "the_loss.py")
    (root / "tintformer" / "rule" / "norm.py").rename(root / "tintformer" / "auxiliary" / "norm.py")
    assert source_hash(root) == before
    # A function that moves from one file to another.
    source, target = root / "tintformer" / "execution" / "walk.py", root / "tintformer" / "execution" / "batch.py"
    text = source.read_text(encoding="utf-8")
    function = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    lines = text.splitlines(keepends=True)
    moved = lines[function.lineno - 1 : function.end_lineno]
    source.write_text("".join(lines[: function.lineno - 1] + lines[function.end_lineno :]), encoding="utf-8")
    target.write_text(target.read_text(encoding="utf-8") + "\n\n" + "".join(moved), encoding="utf-8")
    assert source_hash(root) == before


@pytest.mark.parametrize(
    "file", ["tintformer/cli/app.py", "tintlab/show/tables.py", "tintlab/reports/drawing.py", "tintlab/study/runner.py"]
)
def test_presentation_decides_nothing(root: Path, file: str) -> None:
    before = source_hash(root)
    (root / file).write_text((root / file).read_text(encoding="utf-8") + "\nANSWER = 42\n", encoding="utf-8")
    assert source_hash(root) == before


def test_every_number_of_the_rule_decides(root: Path) -> None:
    before, tried = source_hash(root), 0
    for path in sorted((root / "tintformer" / "rule").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.split("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and type(node.value) in (int, float):
                assert node.end_lineno == node.lineno
                line = lines[node.lineno - 1].encode()
                changed = (line[: node.col_offset] + b"7351" + line[node.end_col_offset :]).decode()
                path.write_text(
                    "\n".join([*lines[: node.lineno - 1], changed, *lines[node.lineno :]]), encoding="utf-8"
                )
                assert source_hash(root) != before, f"{path} line {node.lineno}"
                tried += 1
        path.write_text(text, encoding="utf-8")
    assert tried > 20 and source_hash(root) == before


def test_what_computes_is_listed() -> None:
    """All that a unit's code imports, at any time, either computes or is known to decide nothing."""
    listed = {*COMPUTES, *DECIDES_NOTHING}
    unlisted = [name for name in sorted(closure()) if not any(f"{name}.".startswith(f"{entry}.") for entry in listed)]
    assert not unlisted, f"add to COMPUTES or DECIDES_NOTHING of code_version.py: {', '.join(unlisted)}"
    assert computes("tintformer.rule.head") and computes("tintformer.auxiliary")
    assert not computes("tintformer.simulator.checkpoint")
    assert not computes("tintformer.ruler") and not computes("tintformer.cli.app")


def closure() -> set[str]:
    """Modules that are imported, directly or not, by what runs a unit or by any other that computes.

    Those that are imported by name, as engines are, stand in the code as strings.
    """
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    waiting = [*UNITS, *(name for name in graph.modules if computes(name))]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in PACKAGES or name in found:
            continue
        found.add(name)
        if computes(name):
            waiting += [*graph.find_modules_directly_imported_by(name), *by_name(name, graph.modules)]
    return found


def by_name(module: str, modules: set[str]) -> list[str]:
    path = ROOT.joinpath(*module.split("."))
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return [value for value in strings if isinstance(value, str) and value in modules]


def test_every_entry_is_a_module() -> None:
    for entry in (*COMPUTES, *DECIDES_NOTHING):
        path = ROOT.joinpath(*entry.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), f"{entry} is gone; take it from code_version.py"
    assert not set(COMPUTES) & set(DECIDES_NOTHING)


def test_a_module_that_is_missing_from_the_lists_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    left = tuple(entry for entry in COMPUTES if entry != "tintlab.data.packing")
    monkeypatch.setattr(sys.modules[__name__], "COMPUTES", left)
    monkeypatch.setattr("tintlab.study.code_version.COMPUTES", left)
    with pytest.raises(
        AssertionError, match=r"add to COMPUTES or DECIDES_NOTHING of code_version\.py: tintlab\.data\.packing"
    ):
        test_what_computes_is_listed()
