"""Stages: hidden folders where files are made before they take their places, and what killed processes left of them.

A stage belongs to one process, which holds a lock inside of it; the system gives up the lock with the process, however
it ends. So whoever gets the lock of a stage knows that nobody works there any more, whatever its process id was:

    .tint-MACHINE-RANDOM.tmp/
        lock            held by the living
        new/            files in the making; nobody takes them from here but the process that made the stage
        undo/old/       while several files take their places: those that stood there before,
        undo/added/     and the names of those that were not there

Commands and loaders that come upon a stage without a living process put back what it had begun to replace, and remove
it. On a disk that machines share, a lock may not be seen from elsewhere: other machines' stages are left for a day.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # no POSIX: stages are made all the same, and those of the dead stay
    fcntl = None

NEW, UNDO = "new", "undo"
_LOCK, _DONE, _OLD, _ADDED = "lock", "done", "old", "added"
_MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
_NAME = re.compile(r"\.tint-([0-9a-f]{8})-[a-z0-9_]{8}\.tmp")
_DAY = 24 * 60 * 60


@contextmanager
def staged(directory: Path) -> Generator[Path]:
    """A new stage in a directory, with an empty folder `new`; it is gone when the block ends."""
    settle(directory)
    path, lock = _create(directory)
    try:
        (path / NEW).mkdir()
        yield path
    finally:
        # A replacement that could be neither finished nor undone waits for the next command.
        if not (path / UNDO).exists():
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def settle(directory: Path) -> bool:
    """Put back what killed processes had begun to replace here, and remove their stages; False if that cannot be."""
    if not _stages(directory):
        return True
    with locked(directory):
        return clean(directory)


def clean(directory: Path) -> bool:
    """As `settle`, for who has the lock of the directory."""
    for path in _stages(directory):
        # Files may vanish at any moment, since others clean up as well.
        with suppress(OSError), _taken_over(path):
            undo(path)
            shutil.rmtree(path, ignore_errors=True)
    return not any((path / UNDO).exists() for path in _stages(directory))


def entries(directory: Path) -> list[str]:
    """The names in a directory, without stages."""
    return sorted(name for name in os.listdir(directory) if not _NAME.fullmatch(name))


@contextmanager
def locked(directory: Path) -> Generator[None]:
    """Keep others from replacing several files of this directory at the same time, where the file system has locks."""
    held = os.open(directory, os.O_RDONLY) if fcntl else None
    try:
        if fcntl and held is not None:
            with suppress(OSError):  # network file systems lock no directories
                fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        if held is not None:
            os.close(held)


def prepare_undo(stage: Path, names: list[str]) -> None:
    """Keep what has these names beside the stage; from here on, whoever finds the stage abandoned puts it back."""
    part, directory = stage / "part", stage.parent
    (part / _OLD).mkdir(parents=True)
    (part / _ADDED).mkdir()
    for name in names:
        if not os.path.lexists(directory / name):
            (part / _ADDED / name).touch()
            continue
        try:
            os.link(directory / name, part / _OLD / name, follow_symlinks=False)
        except OSError:  # a file system without links
            shutil.copy2(directory / name, part / _OLD / name, follow_symlinks=False)
    os.replace(part, stage / UNDO)


def undo(stage: Path) -> None:
    """Put back what stood beside the stage before its process began to replace it. It may be done more than once."""
    # Only plain names inside of real folders: a directory that others wrote must not reach beyond itself.
    if not _is_folder(stage / UNDO):
        return
    if _is_folder(old := stage / UNDO / _OLD):
        for name in os.listdir(old):
            os.replace(old / name, stage.parent / name)
    if _is_folder(added := stage / UNDO / _ADDED):
        for name in os.listdir(added):
            (stage.parent / name).unlink(missing_ok=True)
    forget_undo(stage)


def forget_undo(stage: Path) -> None:
    """From here on the new files stand, or the old ones again."""
    os.replace(stage / UNDO, stage / _DONE)


def file_mode(stage: Path) -> int:
    """The mode of the files that this process makes: 0644, or what its umask says."""
    return (stage / _LOCK).stat().st_mode & 0o777


def _create(directory: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=f".tint-{_MACHINE}-", suffix=".tmp", dir=directory))
        try:
            return path, _lock(path, needed=False)
        except (FileNotFoundError, BlockingIOError):  # somebody who cleans up has taken it before it was locked
            continue
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise


def _lock(stage: Path, *, needed: bool) -> int:
    """The lock of a stage, open; a BlockingIOError if another process has it."""
    file = stage / _LOCK
    lock = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        try:
            if fcntl is None:
                raise OSError("no locks")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks: nothing is known of others, so nothing is taken from them
            if needed:
                raise
        if os.fstat(lock).st_ino != file.stat().st_ino:
            raise FileNotFoundError(file)
    except BaseException:
        os.close(lock)
        raise
    return lock


@contextmanager
def _taken_over(stage: Path) -> Generator[None]:
    """Hold the lock of a stage whose process has ended; an OSError if it lives, or may live on another machine."""
    found = _NAME.fullmatch(stage.name)
    if found is None or (found[1] != _MACHINE and time.time() - stage.stat().st_mtime < _DAY):
        raise BlockingIOError(f"{stage} may be in use on another machine")
    lock = _lock(stage, needed=True)
    try:
        yield
    finally:
        os.close(lock)


def _stages(directory: Path) -> list[Path]:
    try:
        names = [name for name in os.listdir(directory) if _NAME.fullmatch(name)]
    except OSError:  # no directory, or none that can be read
        return []
    return [directory / name for name in names if _is_folder(directory / name)]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
