# pyright: basic
"""Every hostile file of the corpus is refused in one line, within bounds of memory and time, and does nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from corpus import CORPUS, kind_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks and reads /proc: run it on Linux")
ROOT = Path(__file__).parent.parent.parent
MAX_CPU, MAX_BYTES = 10.0, 256 * 2**20
"""Much less than the attack allows, and still several times what is needed: see docs/security.md."""


@pytest.fixture(scope="module")
def prepared() -> set[str]:
    """Kinds of directories that have been opened once without damage, so that imports count for none."""
    return set()


@pytest.mark.parametrize("name", CORPUS)
def test_opened_as_a_user_would(name: str, prepared: set[str], tmp_path: Path) -> None:
    from fuzzing.guard import run_forked

    row = CORPUS[name]
    kind = kind_of(row)
    if row.base not in prepared:
        kind.prepare()
        prepared.add(row.base)
    (report,) = run_forked(kind, [0], tmp_path)
    assert report.finding is None, report.finding
    assert row.outcome in (None, report.outcome)
    assert report.cpu < MAX_CPU and report.memory < MAX_BYTES
    assert not list(tmp_path.rglob("it-ran"))


def test_the_page_has_every_file() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| (\w+: [^|]+?) \|", page, flags=re.MULTILINE)
    assert named == list(CORPUS), "print the table again: python tests/corpus.py"
