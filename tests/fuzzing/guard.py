# pyright: basic
"""Hostile input in a process of its own: forked, watched, and told apart from its harmless kin by what it did.

The parent has imported everything that is heavy and computes nothing itself; a case costs a fork. Linux alone says how
much memory a process takes and lets it set the mark back.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuzzing.kinds import Finding, Kind
from tintformer.errors import TintError

MAX_BYTES = 2 * 2**30
"""Of memory, on top of what the interpreter and its libraries take."""
MAX_CPU = 20.0
"""Seconds of CPU time of a case: a busy machine does not change it."""
MAX_IDLE = 15.0
"""Seconds on the clock that a process sleeps without computing or ending: it waits for what never comes."""
MAX_MESSAGE = 4000
"""Characters of an error: what a file holds is not to be repeated in full."""
_PAGE = resource.getpagesize()
_TICKS = os.sysconf("SC_CLK_TCK")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.link", "os.symlink")
_FOLLOW = ("os.truncate", "os.chmod")
"""What changes the file that a link points to."""
_RUNS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn")
_CONNECTS = ("socket.connect", "socket.getaddrinfo", "socket.bind", "socket.sendto")


@dataclass(frozen=True)
class Report:
    """What came of a case."""

    seed: int
    outcome: str
    finding: str | None
    cpu: float
    """Seconds."""
    memory: int
    """Bytes at most, on top of what was there before."""


def run_forked(kind: Kind, seeds: Sequence[int], sandbox: Path) -> Iterator[Report]:
    """Run cases one after the other in a process of their own; one that it does not survive is a finding."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        gc.freeze()  # a collection would touch, and so copy, every page with an object
        os.close(reading)
        _be_child(kind, seeds, sandbox, writing)
    os.close(writing)
    left = list(seeds)
    stopped = None
    try:
        for event in _events(reading, pid):
            if isinstance(event, Stopped):
                stopped = event
                os.kill(pid, signal.SIGKILL)
            else:
                left.remove(event.seed)
                yield event
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
    if left:  # it has ended in the middle of a case
        how = stopped.reason if stopped else _ending(status)
        cpu, memory = used.ru_utime + used.ru_stime, stopped.memory if stopped else 0
        yield Report(left[0], "killed", how, cpu, memory)


@dataclass(frozen=True)
class Stopped:
    reason: str
    memory: int


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return (
            f"took more than {MAX_CPU:g} s" if number == signal.SIGXCPU else f"ended by {signal.Signals(number).name}"
        )
    return f"the process left with exit code {os.waitstatus_to_exitcode(status)}"


def _events(pipe: int, pid: int) -> Iterator[Report | Stopped]:
    """Reports as they come in, until the process ends; or why it must be stopped."""
    text, first = b"", _resident(pid)
    last_cpu, since = -1.0, time.monotonic()
    while True:
        ready, _, _ = select.select([pipe], [], [], 0.02)
        if ready:
            if not (more := os.read(pipe, 65536)):
                return
            *lines, text = (text + more).split(b"\n")
            yield from (Report(**json.loads(line)) for line in lines)
        memory, (state, cpu) = _resident(pid) - first, _activity(pid)
        if memory > MAX_BYTES:
            yield Stopped(f"took more than {MAX_BYTES / 2**30:g} GB", memory)
        if cpu != last_cpu or state != "S":  # one that is kept from computing by others does not sleep
            last_cpu, since = cpu, time.monotonic()
        elif time.monotonic() - since > MAX_IDLE:
            yield Stopped(f"waits for ever: no CPU time in {MAX_IDLE:g} s", max(memory, 0))


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _activity(pid: int) -> tuple[str, float]:
    """Whether a process runs (R), sleeps (S) or waits for a disk (D), and the seconds that it has computed."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, IndexError):
        return "", 0.0


# In the child.


def _be_child(kind: Kind, seeds: Sequence[int], sandbox: Path, pipe: int) -> None:
    """Never returns."""
    code = 1
    try:
        sys.dont_write_bytecode = True
        seconds = int(MAX_CPU * len(seeds)) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        warnings.simplefilter("ignore")
        watch = Watch() if kind.guarded else None
        for seed in seeds:
            report = _run(kind, seed, sandbox / f"{kind.name}-{seed}", watch)
            os.write(pipe, json.dumps(asdict(report)).encode() + b"\n")
        code = 0
    finally:
        os._exit(code)  # no clean-up that belongs to the parent


def _run(kind: Kind, seed: int, folder: Path, watch: Watch | None) -> Report:
    place = folder / "case"
    place.mkdir(parents=True)
    with (folder / "output.txt").open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    kind.arrange(seed, place)
    _forget_peak()
    before, started = _peak(), time.process_time()
    outcome, finding = "refused", None
    try:
        if watch:
            watch.place = str(place)
        outcome = kind.run(seed, place)
    except Finding as error:
        finding = str(error)
    except TintError as error:
        finding = _wrong_refusal(error) if kind.guarded else _trace(error)
    except BaseException as error:  # a panic of a library in Rust is no Exception
        finding = _trace(error)
    cpu, memory = time.process_time() - started, max(0, _peak() - before)
    if watch:
        finding = finding or watch.finding(folder)
    if finding is None and memory > MAX_BYTES:
        finding = f"took {memory / 2**30:.1f} GB"
    if finding is None and kind.guarded and cpu > MAX_CPU:
        finding = f"took {cpu:.0f} s"
    return Report(seed, outcome, finding, cpu, memory)


def _wrong_refusal(error: BaseException) -> str | None:
    """A refusal is one clear message; behind it no memory was asked for that nobody has."""
    if len(str(error)) > MAX_MESSAGE:
        return f"an error of {len(str(error))} characters: {str(error)[:200]} ..."
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or "can't allocate memory" in str(cause):
            return f"it asked for more memory than there is:\n{_trace(error)}"
        cause = cause.__cause__ or cause.__context__
    return None


def _trace(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error, limit=-12)).splitlines()
    return "\n".join(line[:400] for line in lines[-60:])


def _forget_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """The most memory since it was last forgotten."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


class Watch:
    """An audit hook: what a process must not do is noted, and what would reach others is prevented."""

    def __init__(self) -> None:
        self.place = ""
        self.noted: list[str] = []
        sys.addaudithook(self._audit)

    def finding(self, folder: Path) -> str | None:
        """What was done that must not be."""
        self.place, noted = "", list(self.noted)
        self.noted.clear()
        noted += [f"wrote {path.name} beside its directory" for path in folder.iterdir() if path.name not in _OWN]
        foreign = [name for name, module in list(sys.modules.items()) if _file(module).startswith(str(folder))]
        noted += [f"imported {name} from its directory" for name in foreign]
        return "\n".join(dict.fromkeys(noted)) or None

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.place:
            return
        if event == "open":
            self._opened(*args)
        elif event in _CHANGES:
            count = 2 if event in ("os.rename", "os.link", "os.symlink") else 1
            # Behind the paths come, last, the open directories that they are relative to; -1 is the current one.
            folders = args[-count:] if event in ("os.rename", "os.link") else args[-1:] * count
            for path, folder in zip(args[:count], folders, strict=True):
                relative_to = os.readlink(f"/proc/self/fd/{folder}") if _is_open(folder) else ""
                # A link that is renamed or removed is changed itself, and not what it points to.
                parent, name = os.path.split(os.path.join(relative_to, os.fsdecode(path)))
                self._changed(os.path.join(os.path.realpath(parent), name), event, follow=event in _FOLLOW)
        elif event in _RUNS or event in _CONNECTS:
            self.noted.append(f"{event} {str(args)[:200]}")
            raise PermissionError(f"{event} is not allowed here")
        elif event == "pickle.find_class":
            self.noted.append(f"opened a pickle that names {args}")
        elif event == "exec" and _code_file(args[0]).startswith(self.place):
            self.noted.append(f"ran {_code_file(args[0])}")
        elif event == "ctypes.dlopen" and str(args[0]).startswith(self.place):
            self.noted.append(f"loaded the library {args[0]}")

    def _opened(self, path: Any, mode: str | None, flags: int) -> None:
        writes = any(letter in mode for letter in "wax+") if mode else bool((flags or 0) & _WRITES)
        if writes:
            self._changed(path, "wrote")

    def _changed(self, path: Any, what: str, *, follow: bool = True) -> None:
        if isinstance(path, int):
            return
        found = os.path.realpath(os.fsdecode(path)) if follow else os.fsdecode(path)
        # A model in a GGUF file is unpacked into the cache.
        cache = os.path.realpath(os.environ["TINTFORMER_CACHE"]) if "TINTFORMER_CACHE" in os.environ else self.place
        if not found.startswith((self.place, os.path.realpath(self.place), cache, "/dev/")):
            self.noted.append(f"{what} {found}, outside of its directory")
            raise PermissionError(f"{found} is outside of the directory")


_OWN = ("case", "output.txt")


def _file(module: Any) -> str:
    return str(getattr(module, "__file__", None) or "")


def _is_open(folder: Any) -> bool:
    return isinstance(folder, int) and folder >= 0 and os.path.exists(f"/proc/self/fd/{folder}")


def _code_file(code: Any) -> str:
    return str(getattr(code, "co_filename", ""))
