# pyright: basic
"""`tint` as a user runs it, without the seconds that its imports take: a fork of this process, which has done them.

Exit code, standard output and standard error are those of a process of its own. What depends on a fresh interpreter
(what is imported when, variables that libraries read while they are imported, signals) is tested with `subprocess`, and
so is everything where a fork is not safe: on other systems than Linux, and where torch has threads.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any, NoReturn

from patience import PATIENCE


def tint(*words: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    import torch
    import transformers
    from all_commands import all_commands

    assert all_commands() and transformers, "imported here, so that the fork need not do it"
    arguments = ["tint", *map(str, words)]
    if sys.platform != "linux" or torch.get_num_threads() > 1:
        command = [str(Path(sys.executable).with_name("tint")), *arguments[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, input=stdin)
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write((stdin or "").encode())
        given.seek(0)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be_the_command(arguments, given, out, err)
        code = _end_of(pid)
        return subprocess.CompletedProcess(arguments, code, _text(out), _text(err))


def call(function: Callable[..., Any], *arguments: Any, fresh: bool = False) -> Any:
    """What a function of a module returns in another process: a fork of this one, or a fresh one."""
    import torch

    forks = sys.platform == "linux" and torch.get_num_threads() == 1 and not fresh
    with ProcessPoolExecutor(1, mp_context=get_context("fork" if forks else "spawn")) as pool:
        return pool.submit(function, *arguments).result(PATIENCE)


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


def _be_the_command(arguments: list[str], given: IO[bytes], out: IO[bytes], err: IO[bytes]) -> NoReturn:
    import torch

    code = 1
    try:
        # Behind a fork torch makes its pool anew, once it is used; two threads that load weights would do so at once.
        torch.set_num_threads(torch.get_num_threads())
        for number, file in enumerate((given, out, err)):
            os.dup2(file.fileno(), number)
        # Those of pytest capture; the command has streams of its own.
        sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _forget_the_filters_of_pytest()
        sys.argv = arguments
        code = _main()
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


def _main() -> int:
    from tintformer.cli import main

    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
