# pyright: basic
"""`tint` as a user runs it, without the seconds that its imports take: a fork of this process, which has done them.

Exit code, standard output and standard error are those of a process of its own, and so are its directory, the variables
that it is given and the signals that it is sent. What depends on a fresh interpreter (what is imported when, variables
that libraries read while they are imported, launchers) is tested with `subprocess`, and so is every command where a
fork is not safe: on other systems than Linux, and where torch has threads.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import import_module, reload
from pathlib import Path
from typing import IO, Any, NoReturn

import pytest
from patience import PATIENCE

Variables = Mapping[str, str]
TINT = Path(sys.executable).with_name("tint")
COMMANDS_IMPORT = (
    "tintformer.transformers.model",
    "transformers.generation",
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
    *words: object, stdin: str | None = None, cwd: Path | None = None, variables: Variables | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a directory and with variables on top of those of this process."""
    if is_safe():
        return start(*words, stdin=stdin, cwd=cwd, variables=variables).end()
    return subprocess.run(
        [str(TINT), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        input=stdin,
        cwd=cwd,
        env={**os.environ, **(variables or {})},
    )


def start(*words: object, **more: Any) -> Fork:
    """Start a command and return at once."""
    from tintformer.cli import main

    import_what_commands_import()

    def command() -> None:
        sys.argv = ["tint", *map(str, words)]
        main()

    return Fork(command, **more)


def call(work: Callable[[], object]) -> subprocess.CompletedProcess[str]:
    """Call a function in a process of its own, where it may do what would harm this one."""
    return Fork(work).end()


def result_of(function: Callable[..., Any], *arguments: Any, fresh: bool = False) -> Any:
    """Return what a function of a module returns in another process: a fork of this one, or a fresh one."""
    method = "fork" if is_safe() and not fresh else "spawn"
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        return pool.submit(function, *arguments).result(PATIENCE)


def fork_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the pools of the runner fork their processes, which spares each of these the imports."""
    import transformers

    assert transformers, "imported here, so that no process need do it"
    context = multiprocessing.get_context("fork" if is_safe() else "spawn")
    monkeypatch.setattr("tintlab.study.runner.get_context", lambda _: context)


@cache
def import_what_commands_import() -> None:
    """Import once what most commands import: it takes three seconds, the commands of the tests a tenth."""
    from all_commands import all_commands
    from typer.testing import CliRunner

    from tintformer.cli.app import app

    assert all_commands()  # each in a module of its own
    for module in COMMANDS_IMPORT:
        with suppress(ImportError):  # of an extra
            import_module(module)
    assert CliRunner().invoke(app, ["models"]).exit_code == 0  # what typer and rich import as a command runs


class Fork:
    """A fork of this process that does some work, with the part of `subprocess.Popen` that tests need.

    `own_group` puts it into a process group of its own, as a terminal does.
    """

    def __init__(
        self,
        work: Callable[[], object],
        *,
        stdin: str | None = None,
        cwd: Path | None = None,
        variables: Variables | None = None,
        own_group: bool = False,
    ):
        if not is_safe():
            pytest.skip("forks where torch has one thread: run it on Linux with OMP_NUM_THREADS=1")
        self.returncode: int | None = None
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        with tempfile.TemporaryFile() as given:
            given.write((stdin or "").encode())
            given.seek(0)
            sys.stdout.flush()
            sys.stderr.flush()
            with warnings.catch_warnings():  # a server of a test may run in a thread, which the child does not need
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pid = os.fork()
            if self.pid == 0:
                _be_the_child(work, (given, self._out, self._err), cwd, variables or {}, own_group)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
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
        """Wait for its end; return what it has written to standard output and standard error."""
        self.wait(timeout)
        return self._written

    def end(self) -> subprocess.CompletedProcess[str]:
        """Wait for its end; return what `subprocess.run` would."""
        out, err = self.communicate()
        assert self.returncode is not None
        return subprocess.CompletedProcess(["tint"], self.returncode, out, err)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _be_the_child(
    work: Callable[[], object],
    streams: tuple[IO[bytes], ...],
    cwd: Path | None,
    variables: Variables,
    own_group: bool,
) -> NoReturn:
    import torch

    code = 1
    gc.freeze()  # a collection would touch, and so copy, every page with an object
    try:
        if own_group:
            os.setsid()
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
    """Do as a process of its own would, when it imports what is imported here already."""
    if "huggingface_hub.hf_api" in sys.modules:
        from huggingface_hub import constants, hf_api

        hf_api.api.endpoint = reload(constants).ENDPOINT


def _code_of(work: Callable[[], object]) -> int:
    try:
        ended = work()
    except SystemExit as end:
        ended = end.code if isinstance(end.code, int) else int(end.code is not None)
    return ended if isinstance(ended, int) else 0
