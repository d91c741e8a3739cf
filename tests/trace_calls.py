# pyright: basic
"""Count the files that a batch passes through: files of the package whose code runs in a call, and calls between files.

    python tests/trace_calls.py            # prints a table; docs/architecture.md quotes it

What runs at import (definitions, decorators) is not counted: everything is imported by a first, uncounted call.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

import tintformer as tint
from tintformer.bundled import read_text

PACKAGE = str(Path(tint.__file__).parent) + os.sep


class Trace:
    """Which files of the package ran, and which called which."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.edges: set[tuple[str, str]] = set()

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event != "call" or not (callee := frame.f_code.co_filename).startswith(PACKAGE):
            return
        self.files.add(callee)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != callee:
            self.edges.add((caller.f_code.co_filename, callee))

    def of(self, call: Callable[[], Any]) -> Trace:
        call()
        sys.setprofile(self)
        try:
            call()
        finally:
            sys.setprofile(None)
        return self


def one_call(engine: str) -> Callable[[], Any]:
    """Train on the first half of a few tokens and score the second, from the user's call to the output."""
    model = tint.load("nano-llama")
    ids = torch.arange(10, 34)[None]
    rule = tint.LearningRule(learning_rate=1e-3)
    return lambda: tint.Tint(model, rule, engine=engine)(ids, train_mask=torch.arange(24)[None] < 12)


def command(*words: str) -> Callable[[], Any]:
    from tintformer.cli.app import app

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as directory:
            done = CliRunner().invoke(app, [word.replace("DIR", directory) for word in words])
            assert done.exit_code == 0, done.exception or done.output

    return run


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        text, long_text = Path(directory) / "text.txt", Path(directory) / "long.txt"
        text.write_text(read_text("visit"), encoding="utf-8")
        long_text.write_text(read_text("visit") + "\n" + read_text("address"), encoding="utf-8")
        calls = {
            "`Tint(...)(...)`, fast": one_call("fast"),
            "`Tint(...)(...)`, simulator": one_call("simulator"),
            "`tint run`": command("run", "nano-llama", "--file", str(text), "--learning-rate", "1e-3"),
            "`tint eval lm`": command(
                *("eval", "lm", "nano-llama", str(long_text), "--shares", "0.5", "--length", "64", "--blocks", "2"),
                *("--tuning", "1", "--learning-rate", "1e-4,1e-3", "--methods", "auxiliary,tint", "-o", "DIR"),
            ),
        }
        print("| call | files | file-to-file calls |\n|---|---|---|")
        for name, call in calls.items():
            trace = Trace().of(call)
            print(f"| {name} | {len(trace.files)} | {len(trace.edges)} |")


if __name__ == "__main__":
    main()
