# pyright: basic
"""`make demo` installs what the demo needs, and uses an environment for development where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from patience import PATIENCE
from places import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make; install it")


def make(place: Path, *words: str, **environment: str) -> str:
    """What make prints in a clone, as if it were started by hand: these tests may run below another make."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", *words], cwd=place, capture_output=True, text=True, timeout=PATIENCE, env=inherited | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def would_run(place: Path, target: str) -> str:
    """What make would run in a clone, without running it."""
    return make(place, "-n", target)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_a_fresh_clone_gets_a_light_install_with_visible_progress(clone: Path) -> None:
    words = would_run(clone, "demo")
    assert "-m venv .venv" in words and "-e '.[plots]'" in words and words.endswith(".venv/bin/tint demo\n")
    assert "[dev]" not in words and "--quiet" not in words


def test_what_is_installed_is_used(clone: Path) -> None:
    (clone / ".venv").mkdir()
    (clone / ".venv" / ".light").touch()
    assert would_run(clone, "demo") == ".venv/bin/tint demo\n"
    assert "[dev]" in would_run(clone, "lint"), "development wants its tools all the same"
    (clone / ".venv" / ".light").unlink()
    (clone / ".venv" / ".installed").touch()
    assert would_run(clone, "demo") == ".venv/bin/tint demo\n"


def test_python_keeps_what_it_compiles(clone: Path) -> None:
    """Also where the environment says that it should not: pip has compiled nothing."""
    shown = make(clone, "--eval", 'show: ; @echo "[$$PYTHONDONTWRITEBYTECODE]"', "show", PYTHONDONTWRITEBYTECODE="1")
    assert shown == "[]\n"
