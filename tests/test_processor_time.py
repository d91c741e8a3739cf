# pyright: basic
"""`make cost` measures the test files that are run, and leaves the rows of the others."""

from __future__ import annotations

import time
from collections import Counter

import nearest
import processor_time
import pytest

pytest_plugins = ["pytester"]


def test_the_table_has_every_file_with_its_tests_and_seconds(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = "import time\ndef test_busy():\n    while time.process_time() < %f: pass\n"
    pytester.makepyfile(
        test_busy=busy % (time.process_time() + 0.3), test_idle="def test_one(): pass\ndef test_two(): pass\n"
    )
    table = pytester.path / "table.csv"
    table.write_text("file,tests,seconds\ntest_busy.py,9,9.0\ntest_other.py,4,5.0\ntest_gone.py,1,1.0\n")
    (pytester.path / "test_other.py").touch()
    for module, name, value in (
        (nearest, "ROOT", pytester.path),
        (nearest, "TABLE", table),
        (processor_time, "ROOT", pytester.path),
        (processor_time, "TABLE", table),
        (processor_time, "SECONDS", Counter()),
        (processor_time, "TESTS", Counter()),
    ):
        monkeypatch.setattr(module, name, value)
    done = pytester.runpytest_inprocess("-p", "processor_time", "test_busy.py", "test_idle.py")
    done.stdout.fnmatch_lines(["*processor time*"])
    rows = {path.name: row for path, row in nearest.table().items()}
    assert {name: count for name, (count, _) in rows.items()} == {
        "test_busy.py": 1,
        "test_idle.py": 2,
        "test_other.py": 4,
    }
    assert rows["test_busy.py"][1] >= 0.2 and rows["test_other.py"][1] == 5
