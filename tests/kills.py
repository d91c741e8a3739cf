# pyright: basic
"""Faults wherever a command or a save touches files: `python tests/kills.py FOLDER [CASES or all] [WRITER ...]`.

Every writer runs once over its own earlier output while its opens for writing, renames, removals and the like are
counted by an audit hook. Then it runs once more for each of these points and each fault:

    kill        the process dies at once (SIGKILL)
    interrupt   Ctrl-C
    full        the disk is full
    cut, shot   the same in the middle of a write, also of libraries in C: no file may grow beyond so many bytes

After each the earlier output must stand bit by bit, or the new one, complete; after a kill, a further run must succeed
and leave nothing else behind. A run is forked from a process that has computed everything and stands before its first
write, so that a fault takes milliseconds. With CASES, so many of each writer's faults are drawn, by a fixed seed.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patience import PATIENCE

GROWS = ("open", "os.mkdir", "os.rename", "os.link", "os.symlink")
"""What needs space on the disk."""
TOUCHES = (*GROWS, "os.remove", "os.rmdir", "os.chmod", "os.truncate")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
Files = dict[str, tuple[bytes, int]]
"""Content and mode by path."""


@dataclass(frozen=True)
class Writer:
    """Something that writes files: `write(folder, version)` twice with different content."""

    name: str
    write: Callable[[Path, int], None]
    group: Callable[[str], str] = lambda path: ""
    """What a file belongs to: files of one group are old or new together."""
    atomic: bool = False
    """One file, or a directory: nothing has to be put back before it is read."""
    repeatable: bool = True
    """Whether the same content comes out each time; of the others, files must be there and end as they should."""
    stays: tuple[str, ...] = ()
    """Names that may be there in addition."""


@dataclass
class Fault:
    kind: str
    point: int = -1
    size: int = 0


@dataclass
class Watch:
    """What the audit hook does in this process."""

    root: str = ""
    on: bool = False
    count: int = 0
    events: list[tuple[str, float]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    fault: Fault | None = None
    at: int | None = None
    serve: Callable[[], None] | None = None

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or not self._touches(event, arguments):
            return
        self.on = False
        self.events.append((event, time.monotonic()))
        point, self.count = self.count, self.count + 1
        if self.serve is not None and point == self.at:
            self.serve()  # returns in each child that it forks
        self.on = True
        if self.fault is not None and self.fault.point == point:
            self.strike(event)

    def strike(self, event: str) -> None:
        assert self.fault is not None
        if self.fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault.kind == "interrupt":
            raise KeyboardInterrupt
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _touches(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "ctypes.dlsym":  # the exchange of two directories
            return str(arguments[1]) in ("renameat2", "renamex_np")
        if event not in TOUCHES or (event == "open" and not (arguments[2] or 0) & WRITES):
            return False
        path = arguments[0]
        if isinstance(path, int):
            return False
        path = os.fsdecode(path)
        if path.startswith(("/dev/", "/proc/")) or "__pycache__" in path:
            return False
        folder = arguments[1] if event in ("os.remove", "os.rmdir") else arguments[2] if event == "os.mkdir" else -1
        if isinstance(folder, int) and folder >= 0:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
        if not os.path.abspath(path).startswith(self.root):
            return False
        self.paths.append(path)
        return True


WATCH = Watch()


def snapshot(root: Path) -> Files:
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def restore(root: Path, files: Files) -> None:
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name, (content, mode) in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
        (root / name).chmod(mode)


def stages(root: Path) -> list[Path]:
    return [path for path in root.rglob(".tint-*.tmp") if path.is_dir()]


def fresh_folders(root: Path) -> list[Path]:
    """Stages, and folders that hold nothing yet: `restore` would remove them behind the back of who has made them."""
    empty = [path for path in root.rglob("*") if path.is_dir() and not any(path.iterdir())]
    return [*stages(root), *empty]


def without_stages(files: Files) -> Files:
    return {name: file for name, file in files.items() if ".tint-" not in name}


def in_child(work: Callable[[], None]) -> int:
    """Do it in a forked process; returns its exit code, negative for a signal."""
    sys.stdout.flush()
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 70
    try:
        signal.alarm(PATIENCE)
        code = ended(work)
    finally:
        os._exit(code)


def ended(work: Callable[[], None]) -> int:
    try:
        work()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        return 130
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


class Trial:
    """One writer and all its faults."""

    def __init__(self, writer: Writer, root: Path):
        self.writer, self.root = writer, root
        self.failures: list[str] = []
        self.cases = 0
        root.mkdir(parents=True)
        WATCH.root = str(root)

    def run(self, limit: int | None) -> dict[str, Any]:
        expect(in_child(lambda: self.writer.write(self.root, 0)) == 0, f"{self.writer.name} fails on empty ground")
        self.old = snapshot(self.root)
        log = self.root.parent / f"{self.root.name}.log"
        expect(in_child(lambda: self._count(log)) == 0, f"{self.writer.name} fails over its own output")
        self.new = snapshot(self.root)
        if odd := [name for name in set(self.old) & set(self.new) if self.writer.repeatable and self.old == self.new]:
            self.failures.append(f"both versions are the same: {odd}")
        self._check_modes()
        counted = json.loads(log.read_text())
        faults, late = list(self._faults(counted["events"])), counted["late"]
        if limit is not None:  # a fault before the work, which is never among these, takes a whole run
            faults = [fault for fault in faults if fault.size or fault.point >= late]
            faults = random.Random(self.writer.name).sample(faults, min(limit, len(faults)))
        for start in sorted({0, late}):
            chosen = [fault for fault in faults if (fault.size > 0 or fault.point >= late) == (start == late)]
            if chosen:
                self._serve(start, chosen)
        return {
            "writer": self.writer.name,
            "points": len(counted["events"]),
            "cases": self.cases,
            "failures": self.failures[:20],
        }

    def _count(self, log: Path) -> None:
        """Run once and note every point; the last one before which nothing has changed and most is computed is late."""
        WATCH.events, WATCH.count, started = [], 0, time.monotonic()
        same: list[bool] = []

        class Noting(list):  # called for each event: is everything as it was?
            def append(noted, event: Any) -> None:  # pyright: ignore[reportSelfClsParameterName]
                list.append(noted, event)
                same.append(not fresh_folders(self.root) and snapshot(self.root) == self.old)

        WATCH.events, WATCH.on = Noting(), True
        try:
            self.writer.write(self.root, 1)
        finally:
            WATCH.on = False
        times = [moment for _, moment in WATCH.events]
        gaps = [after - before for before, after in zip([started, *times], times, strict=False)]
        late = max((index for index in range(len(gaps)) if same[index]), key=lambda index: gaps[index], default=0)
        log.write_text(json.dumps({"events": [event for event, _ in WATCH.events], "late": late}))

    def _faults(self, events: list[str]) -> Iterable[Fault]:
        for point, event in enumerate(events):
            for kind in ("kill", "interrupt", *(["full"] if event in (*GROWS, "ctypes.dlsym") else [])):
                yield Fault(kind, point)
        sizes = sorted({len(content) for content, _ in self.new.values()})
        for size in sorted({1, *(size // 2 for size in sizes), *(size - 1 for size in sizes if size)}):
            yield Fault("cut", size=size)
            yield Fault("shot", size=size)

    def _serve(self, start: int, faults: list[Fault]) -> None:
        report = self.root.parent / f"{self.root.name}.results"

        def server() -> None:
            for fault in faults:
                if self._case(fault):
                    return  # in the child, which goes on
            report.write_text(json.dumps([self.cases, self.failures]))
            os._exit(0)

        def work() -> None:
            WATCH.count, WATCH.at, WATCH.serve, WATCH.on = 0, start, server, True
            self.writer.write(self.root, 1)

        restore(self.root, self.old)
        expect(in_child(work) == 0, f"{self.writer.name}: no results")
        cases, failures = json.loads(report.read_text())
        self.cases, self.failures = cases, failures

    def _case(self, fault: Fault) -> bool:
        """True in the child that is to run on; otherwise the fault has struck and what is left has been judged."""
        restore(self.root, self.old)
        self.cases += 1
        code = self._fork(fault)
        if code is None:
            return True
        self._judge(fault, code)
        if fault.kind in ("kill", "shot"):
            code = self._fork(Fault("none"))
            if code is None:
                return True
            self._judge_rerun(fault, code)
        return False

    def _fork(self, fault: Fault) -> int | None:
        if pid := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        signal.alarm(PATIENCE)
        WATCH.serve, WATCH.fault = None, fault
        if fault.size:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL if fault.kind == "shot" else signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (fault.size, resource.RLIM_INFINITY))
        return None

    def _judge(self, fault: Fault, code: int) -> None:
        from tintformer.storage.staging import settle

        killed = fault.kind in ("kill", "shot")
        if (fault.kind == "kill" and code != -signal.SIGKILL) or code == -signal.SIGALRM or code == 70:
            self._fail(fault, f"ended with {code}")
        for stage in [] if self.writer.atomic or not killed else stages(self.root):
            settle(stage.parent)  # as every loader of the package does
        found = without_stages(snapshot(self.root))
        for group in {self.writer.group(name) for name in (*found, *self.old, *self.new)}:
            here, old, new = (self._of(group, files) for files in (found, self.old, self.new))
            if here not in ([new] if code == 0 else [old, new]):
                self._fail(
                    fault, f"exit {code}: {group or 'the output'} is neither old nor new: {differing(here, old, new)}"
                )

    def _judge_rerun(self, fault: Fault, code: int) -> None:
        found = snapshot(self.root)
        if code:
            self._fail(fault, f"the next run ends with {code}")
        if left := stages(self.root):
            self._fail(fault, f"the next run leaves {[path.name for path in left]}")
        if self._of(None, without_stages(found)) != self._of(None, self.new):
            self._fail(fault, f"the next run leaves {sorted(set(found) ^ set(self.new))}")

    def _of(self, group: str | None, files: Files) -> dict[str, Any]:
        """The files of a group, or all, as they are compared."""
        chosen = {name: file for name, file in files.items() if group is None or self.writer.group(name) == group}
        chosen = {name: file for name, file in chosen.items() if Path(name).name not in self.writer.stays}
        if self.writer.repeatable:
            return {name: content for name, (content, _) in chosen.items()}
        return {unstamped(name): is_whole(name, content) for name, (content, _) in chosen.items()}

    def _check_modes(self) -> None:
        usual = self.root.parent / "usual"
        usual.touch()
        wanted = usual.stat().st_mode & 0o777
        if odd := {
            name: oct(mode) for name, (_, mode) in self.new.items() if mode != wanted and name not in self.writer.stays
        }:
            self.failures.append(f"modes other than {wanted:o}: {odd}")

    def _fail(self, fault: Fault, what: str) -> None:
        self.failures.append(f"{fault}: {what}")


def unstamped(name: str) -> str:
    """A path without the time that is in it."""
    return "".join("0" if letter.isdigit() else letter for letter in name)


def is_whole(name: str, content: bytes) -> bool:
    if name.endswith(".json"):
        return bool(json.loads(content))
    if name.endswith(".png"):
        return content.endswith(b"IEND\xaeB`\x82")
    return content.endswith(b"\n")


def differing(here: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> str:
    kinds = {
        name: "old" if here.get(name) == old.get(name) else "new" if here.get(name) == new.get(name) else "odd"
        for name in {*here, *old, *new}
    }
    return ", ".join(f"{name} {kind}{'' if name in here else ' (absent)'}" for name, kind in sorted(kinds.items()))


def expect(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def touched(read: Callable[[], None], report: Path) -> list[str]:
    """All files anywhere that a command has touched."""

    def work() -> None:
        WATCH.root, WATCH.on = "/", True
        try:
            read()
        finally:
            WATCH.on = False
            report.write_text(json.dumps(WATCH.paths))

    code = in_child(work)
    return [*json.loads(report.read_text()), *([f"exit {code}"] if code else [])]


def main(folder: Path, limit: int | None, names: list[str]) -> None:
    from writers import READERS, WRITERS, prepare, tint

    results = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    prepare(folder / "inputs")
    os.chdir(folder / "inputs")
    sys.addaudithook(WATCH.hook)
    for name, words in READERS.items():
        if not names or f"reads: {name}" in names:
            found = touched(lambda words=words: tint(*words), folder / "touched")
            print(json.dumps({"writer": f"reads: {name}", "failures": found}), file=results, flush=True)
    for number, writer in enumerate(WRITERS):
        if names and writer.name not in names:
            continue
        started = time.monotonic()
        try:
            found = Trial(writer, folder / f"writer-{number}").run(limit)
        except (RuntimeError, OSError) as error:
            found = {"writer": writer.name, "points": 0, "cases": 0, "failures": [f"{type(error).__name__}: {error}"]}
        print(json.dumps(found | {"seconds": round(time.monotonic() - started, 1)}), file=results, flush=True)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]).resolve(),
        int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2] != "all" else None,
        sys.argv[3:],
    )
