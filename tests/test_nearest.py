# pyright: basic
"""`make quick` finds the tests of a change in the real tree, and says what it leaves out."""

from __future__ import annotations

from pathlib import Path

import nearest
import pytest


def order(*changed: str) -> list[str]:
    return [path.as_posix() for path in nearest.nearest(map(Path, changed))]


def test_the_tests_of_a_module_come_before_those_of_its_importers() -> None:
    tests = order("tintformer/rule/linear.py")
    assert tests[0] == "tests/rule/test_ops.py"
    assert tests.index("tests/simulator/test_modules.py") < tests.index("tests/network/test_export.py")
    assert "tests/storage/test_fetch.py" not in tests


def test_a_file_of_the_same_name_comes_first() -> None:
    assert order("tintformer/learning/streams.py")[0] == "tests/learning/test_streams.py"
    assert order("tests/learning/test_streams.py") == ["tests/learning/test_streams.py"]


def test_imports_in_functions_and_names_in_registries_count() -> None:
    importers = nearest.importers()
    assert Path("tintformer/learning/engine_registry.py") in importers[Path("tintformer/simulator/simulator.py")]
    assert Path("tests/forked.py") in importers[Path("tintformer/cli/app.py")], "inside a function"


def test_helpers_are_modules_and_other_files_reach_what_names_them() -> None:
    assert order("tests/kills.py") == ["tests/cli/test_kill_points.py"]
    assert set(order("tests/tintlab/reports/conftest.py")) >= {
        "tests/tintlab/reports/test_page.py",
        "tests/tintlab/reports/test_browser.py",
    }
    assert "tests/test_makefile.py" in order("Makefile")
    assert set(order("tintlab/reports/page.css")) >= {
        "tests/study/test_coloured.py",
        "tests/tintlab/reports/test_contrast.py",
    }
    assert order(".ci/run") == ["tests/test_docs.py"]
    assert set(order("docs/symbols.md")) >= {"tests/test_docs.py", "tests/test_site.py"}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages and their tests, in a folder that stands for the repository."""
    files = {
        "tintformer/__init__.py": "",
        "tintformer/study/__init__.py": "",
        "tintformer/study/new.py": "",
        "tintlab/__init__.py": "",
        "tintlab/study/__init__.py": "",
        "tintlab/study/store.py": "def late():\n    from tintformer.study import new",
        "tintlab/study/runner.py": 'ACTS = {"run": "tintlab.study.store:late"}',
        "tests/study/test_new.py": "",
        "tests/lab/study/test_store.py": "",
        "tests/lab/study/test_runner.py": "",
        "tests/lab/study/test_far.py": "from tintlab.study.runner import ACTS",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "table.csv").write_text("file,tests,seconds\ntests/lab/study/test_store.py,7,60.0\n", encoding="utf-8")
    caches = (nearest.python_files, nearest.strings_and_imports, nearest.importers)
    monkeypatch.setattr(nearest, "ROOT", tmp_path)
    monkeypatch.setattr(nearest, "TABLE", tmp_path / "table.csv")
    for function in caches:
        monkeypatch.setattr(nearest, function.__name__, nearest.cache(function.__wrapped__))
    return tmp_path


def test_a_new_module_reaches_two_levels_of_importers_in_another_package(tree: Path) -> None:
    assert order("tintformer/study/new.py") == [
        "tests/study/test_new.py",
        "tests/lab/study/test_store.py",
        "tests/lab/study/test_runner.py",
        "tests/lab/study/test_far.py",
    ]
    assert order("tintlab/study/store.py")[0] == "tests/lab/study/test_store.py"


def test_what_exceeds_the_budget_is_named(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, words: started.append(words))
    monkeypatch.chdir(tree)
    monkeypatch.setattr("sys.argv", ["nearest.py", "--budget", "12", "tintformer/study/new.py"])
    nearest.main()
    (words,) = started
    assert words[-2:] == ["tests/study/test_new.py", "tests/lab/study/test_runner.py"], "two of five seconds each"
    printed = capsys.readouterr().out
    assert "left out: tests/lab/study/test_store.py (7 tests, 60 s)" in printed
    assert "left out: tests/lab/study/test_far.py" in printed
