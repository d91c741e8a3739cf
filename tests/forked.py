# pyright: basic
"""`tint` as a user runs it, without the seconds that its imports take: a fork of this process, which has done them.

Exit code, standard output and standard error are those of a process of its own, and so are its directory, the variables
that it is given and the signals that it is sent. What depends on a fresh interpreter (what is imported when, variables
that libraries read while they are imported) is tested with `subprocess`, and so is every command where a fork is not
safe: on other systems than Linux, and where torch has threads.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import reload
from pathlib import Path
from typing import IO, NoReturn

import pytest
from patience import PATIENCE

Variables = Mapping[str, str]


def tint(
    *words: object, stdin: str | None = None, cwd: Path | None = None, variables: Variables | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a directory and with variables on top of those of this process."""
    arguments = ["tint", *map(str, words)]
    if not _can_fork():
        command = [str(Path(sys.executable).with_name("tint")), *arguments[1:]]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            input=stdin,
            cwd=cwd,
            env={**os.environ, **(variables or {})},
        )
    return start(*words, stdin=stdin, cwd=cwd, variables=variables).end()


def start(
    *words: object, stdin: str | None = None, cwd: Path | None = None, variables: Variables | None = None
) -> Forked:
    """Start a command and return at once; on other systems than Linux the test is skipped."""
    from tintformer.cli import main

    import_what_commands_import()

    def command() -> None:
        sys.argv = ["tint", *map(str, words)]
        main()

    return start_call(command, stdin=stdin, cwd=cwd, variables=variables)


def call(work: Callable[[], object]) -> subprocess.CompletedProcess[str]:
    """Call a function in a process of its own, where it may do what would harm this one."""
    return start_call(work).end()


def start_call(
    work: Callable[[], object],
    *,
    stdin: str | None = None,
    cwd: Path | None = None,
    variables: Variables | None = None,
) -> Forked:
    """Start a function in a process of its own and return at once."""
    if not _can_fork():
        pytest.skip("forks where torch has one thread: run it on Linux with OMP_NUM_THREADS=1")
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
    with tempfile.TemporaryFile() as given:
        given.write((stdin or "").encode())
        given.seek(0)
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():  # a server of a test may run in a thread, which the child does not need
            warnings.simplefilter("ignore", DeprecationWarning)
            gc.freeze()  # a collection in the child would touch, and so copy, every page with an object
            pid = os.fork()
        if pid == 0:
            _be_the_child(work, (given, out, err), cwd, variables or {})
        gc.unfreeze()
    return Forked(pid, out, err)


@dataclass
class Forked:
    """A child at work, with what it has written until now."""

    pid: int
    out: IO[bytes]
    err: IO[bytes]

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> subprocess.CompletedProcess[str]:
        """Wait for the end; the exit code is negative for a signal."""
        with self.out, self.err:
            return subprocess.CompletedProcess(["tint"], _end_of(self.pid), _text(self.out), _text(self.err))


@cache
def import_what_commands_import() -> None:
    """Import here, once, what every fork would import for itself otherwise: a command does that as it runs."""
    import transformers.generation
    from typer.testing import CliRunner

    import tintformer.transformers.model
    from tintformer.cli.app import app

    assert transformers and tintformer
    assert CliRunner().invoke(app, ["models"]).exit_code == 0


def _can_fork() -> bool:
    import torch

    return sys.platform == "linux" and torch.get_num_threads() == 1


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _end_of(pid: int) -> int:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"the command did not end within {PATIENCE} s")


def _be_the_child(
    work: Callable[[], object], streams: tuple[IO[bytes], ...], cwd: Path | None, variables: Variables
) -> NoReturn:
    import torch

    code = 1
    try:
        # Behind a fork torch makes its pool anew, once it is used; two threads that load weights would do so at once.
        torch.set_num_threads(torch.get_num_threads())
        for number, file in enumerate(streams):
            os.dup2(file.fileno(), number)
        # Those of pytest capture; the command has streams of its own.
        sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _forget_the_filters_of_pytest()
        os.environ.update(variables)
        _read_the_settings_of_the_hub()
        if cwd is not None:
            os.chdir(cwd)
        code = _code_of(work)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _forget_the_filters_of_pytest() -> None:
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)


def _read_the_settings_of_the_hub() -> None:
    """As a process of its own would, when it imports what is imported here already."""
    if "huggingface_hub.hf_api" in sys.modules:
        from huggingface_hub import constants, hf_api

        hf_api.api.endpoint = reload(constants).ENDPOINT


def _code_of(work: Callable[[], object]) -> int:
    try:
        ended = work()
    except SystemExit as end:
        ended = end.code if isinstance(end.code, int) else int(end.code is not None)
    return ended if isinstance(ended, int) else 0
