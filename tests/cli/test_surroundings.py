# pyright: basic
"""What surrounds a command, as real processes: closed and broken outputs, odd variables, other encodings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import some
from patience import PATIENCE

TINT = Path(sys.executable).with_name("tint")


def shell(line: str, tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TINT": str(TINT), **variables}
    return subprocess.run(["bash", "-c", line], capture_output=True, env=environment, cwd=tmp_path, timeout=PATIENCE)


CASES: dict[str, tuple[str, dict[str, str], int, bytes, bytes]] = {
    "closed output": ("$TINT eval list >&-", {}, 0, b"", b""),
    "closed errors": ("$TINT eval table . 2>&-", {}, 2, b"", b""),
    "closed input": ("$TINT run nano-gpt2 - <&-", {}, 2, b"", b"tint: standard input is"),
    "a reader that leaves": ("$TINT eval list --json | head -1", {}, 0, b"{\n", b""),
    "no width": ("$TINT eval list", {"COLUMNS": "0"}, 0, b"wikitext", b""),
    "a word for a width": ("$TINT eval list", {"COLUMNS": "wide"}, 0, b"wikitext", b""),
    "ASCII": (
        "$TINT eval list",
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "200"},
        0,
        b"wikitext",
        b"",
    ),
    "closed output, and an error": ("$TINT eval table . >&-", {}, 2, b"", b"holds no runs"),
    "ASCII, and a text in UTF-8": (
        "$TINT eval table $'caf\\xc3\\xa9'",
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        2,
        b"",
        b"tint: caf",
    ),
    "a cache of nobody": ("$TINT fetch --list", {"TINTFORMER_CACHE": "~nobody-here/x"}, 0, b"smollm2", b""),
    "a cache that is a device": (
        "$TINT fetch smollm2-135m",
        {"TINTFORMER_CACHE": "/dev/null"},
        2,
        b"",
        b"tint: cannot",
    ),
    "a text that is no UTF-8": ("$TINT run nano-gpt2 $'a \\xff text'", {}, 2, b"", b"tint: the text holds half a"),
    "a path that is no UTF-8": (
        "$TINT run $'./\\xff\\x1b[31m' x",
        {},
        2,
        b"",
        b"tint: no directory ./\\udcff\\x1b[31m;",
    ),
    "a name that is no UTF-8": ("$TINT params $'\\xff'", {}, 2, b"", b"tint: no configuration for '\\udcff'"),
    "an endless input": ("$TINT run nano-gpt2 - < /dev/zero", {}, 2, b"", b"tint: standard input holds more than"),
}


@pytest.mark.parametrize("case", some(list(CASES), 7))
def test_what_surrounds_a_command(case: str, tmp_path: Path) -> None:
    line, variables, code, out, err = CASES[case]
    done: Any = shell(line, tmp_path, **variables)
    assert done.returncode == code, done.stderr
    assert out in done.stdout and err in done.stderr, (done.stdout, done.stderr)
    assert b"Traceback" not in done.stderr and done.stderr.count(b"\n") <= 1
    assert not list(tmp_path.iterdir())


ENDING = """
import atexit, sys
from tintformer import cli

class Late:
    def __del__(self):
        print("taken apart")

late, run = Late(), cli.main

def main():
    atexit.register(print, "cleaned up")
    run()

cli.main, sys.argv = main, ["tint", *sys.argv[1:]]
cli.command()
"""


@pytest.mark.parametrize(("word", "code"), [("--version", 0), ("no-such-command", 2)])
def test_the_process_ends_when_all_is_said_and_cleaned_up(word: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", ENDING, word], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == code and (done.stdout + done.stderr).count("\n") >= 2
    assert done.stdout.endswith("cleaned up\n"), "and modules are not taken apart after that"


def test_waiting_threads_sleep_unless_it_is_too_late_or_somebody_has_said_otherwise() -> None:
    code = "import os, sys{}; import tintformer; print(os.environ.get('OMP_WAIT_POLICY'), 'torch' in sys.modules)"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    cases = {
        ("", ""): "passive False",
        ("OMP_WAIT_POLICY", "active"): "active False",
        ("GOMP_SPINCOUNT", "1000"): "None False",
    }
    for (name, value), expected in cases.items():
        variables = plain | ({name: value} if name else {})
        done = subprocess.run([sys.executable, "-c", code.format("")], capture_output=True, text=True, env=variables)
        assert done.stdout.strip() == expected, done.stderr
    late = code.format("; sys.modules['torch'] = sys")  # torch would read nothing any more
    done = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True, env=plain)
    assert done.stdout.strip() == "None True", done.stderr
