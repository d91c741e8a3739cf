# pyright: basic
"""`tint` as a user runs it, without the seconds that its imports take: a fork of this process, which has done them.

Exit code, standard output and standard error are those of a process of its own, which can be killed and interrupted.
What depends on a fresh interpreter (what is imported when, variables that libraries read while they are imported,
launchers) is tested with `subprocess`, and so is every command where a fork is not safe: on other systems than Linux,
and where torch has threads.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

import pytest
from patience import PATIENCE

TINT = Path(sys.executable).with_name("tint")
COMMANDS_IMPORT = (
    "tintformer.cli.app",
    "transformers.models.auto.modeling_auto",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "matplotlib.figure",
    "pydantic",
    "zoneinfo",
)
needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="a fork is safe on Linux only")


def is_safe() -> bool:
    """Whether a fork can be trusted; where it cannot, commands are processes of their own."""
    import torch

    return sys.platform == "linux" and torch.get_num_threads() == 1


def tint(
    *words: object, stdin: str | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; `environment` is added to that of this process."""
    arguments = ["tint", *map(str, words)]
    if not is_safe():
        command, surroundings = [str(TINT), *arguments[1:]], os.environ | (environment or {})
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, input=stdin, env=surroundings)
    process = _fork_of_tint(arguments, stdin=stdin, environment=environment)
    out, err = process.communicate()
    assert process.returncode is not None
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def start_tint(*words: object, environment: dict[str, str] | None = None) -> Fork | subprocess.Popen[str]:
    """Start a command, to be killed or waited for."""
    arguments = ["tint", *map(str, words)]
    if is_safe():
        return _fork_of_tint(arguments, environment=environment)
    pipe, surroundings = subprocess.PIPE, os.environ | (environment or {})
    return subprocess.Popen([str(TINT), *arguments[1:]], stdout=pipe, stderr=pipe, text=True, env=surroundings)


def _fork_of_tint(arguments: list[str], **more: Any) -> Fork:
    _import_what_commands_import()

    def work() -> None:
        from tintformer.cli import main

        sys.argv = arguments
        main()

    return Fork(work, **more)


@cache
def _import_what_commands_import() -> None:
    """Spare each fork the imports of most commands: they take three seconds, the commands of the tests a tenth."""
    for module in COMMANDS_IMPORT:
        with suppress(ImportError):  # of an extra
            import_module(module)


class Fork:
    """A fork of this process that does some work, with the part of `subprocess.Popen` that tests need.

    `own_group` puts it into a process group of its own, as a terminal does.
    """

    def __init__(
        self,
        work: Callable[[], object],
        *,
        stdin: str | None = None,
        environment: dict[str, str] | None = None,
        own_group: bool = False,
    ):
        assert is_safe(), "mark the test with needs_fork"
        self.returncode: int | None = None
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        with tempfile.TemporaryFile() as given:
            given.write((stdin or "").encode())
            given.seek(0)
            sys.stdout.flush()
            sys.stderr.flush()
            self.pid = os.fork()
            if self.pid == 0:
                _do(work, (given, self._out, self._err), environment or {}, own_group)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
                with self._out as out, self._err as err:
                    self._written = _text(out), _text(err)
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for its end; one that takes longer is killed."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                self.wait()
                raise TimeoutError(f"the fork did not end within {timeout} s")
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        """Wait for its end; returns what it has written to standard output and standard error."""
        self.wait(timeout)
        return self._written

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the pools of the runner fork their processes, which spares each of these the imports."""
    import transformers

    assert transformers, "imported here, so that no process need do it"
    context = multiprocessing.get_context("fork" if is_safe() else "spawn")
    monkeypatch.setattr("tintlab.study.runner.get_context", lambda _: context)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _do(
    work: Callable[[], object], streams: tuple[IO[bytes], ...], environment: dict[str, str], own_group: bool
) -> NoReturn:
    import torch

    code = 1
    try:
        if own_group:
            os.setsid()
        os.environ.update(environment)
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
        _heed_the_environment()
        code = _ended(work)
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


def _heed_the_environment() -> None:
    """Read again what a library has read while it was imported."""
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        from huggingface_hub import constants

        constants.HF_HUB_OFFLINE = True


def _ended(work: Callable[[], object]) -> int:
    try:
        work()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
