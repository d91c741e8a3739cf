"""Files that are written whole or not at all, one or several together.

They are written beside their target and renamed: a rename within one file system is atomic, so that no reader and no
killed process ever leaves or sees half a file.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tintformer.errors import InputError


@contextmanager
def whole_file(target: Path) -> Generator[Path]:
    """A temporary path beside `target`; what was written there takes its place when the block ends without an error.

    An interruption at any moment leaves the old file as it was.
    """
    temporary = _temporary(target)
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_files(directory: Path, names: Sequence[str]) -> Generator[Path]:
    """A temporary folder; what was written there moves into `directory` together when the block ends without an error.

    `names` are all files that belong together: of an earlier set none stays that was not written anew. An error or an
    interruption leaves the directory as it was, absent if it was absent. Only a process that is killed between two
    renames leaves files of both sets, so put the one that people open last: they take their places in this order.
    """
    created = [path for path in (directory, *directory.parents) if not os.path.lexists(path)]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(directory / "files")
        try:
            new, old = temporary / "new", temporary / "old"
            new.mkdir(parents=True)
            old.mkdir()
            yield new
            _replace_files(directory, new, old, names)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except BaseException:
        for path in created:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        raise


def _replace_files(directory: Path, new: Path, old: Path, names: Sequence[str]) -> None:
    """Put the new files where the old ones are; if that fails half-way, the old ones come back."""
    # Copies, so that no name is ever missing; a full disk shows here, before anything has changed.
    for name in names:
        if os.path.lexists(directory / name):
            shutil.copy2(directory / name, old / name, follow_symlinks=False)
    started: list[str] = []
    try:
        for name in names:
            started.append(name)
            _move(new / name, directory / name)
    except BaseException:
        for name in started:
            _move(old / name, directory / name)
        raise


def _move(source: Path, target: Path) -> None:
    """Give `target` the file at `source`, or remove it if there is none."""
    if os.path.lexists(source):
        os.replace(source, target)
    else:
        target.unlink(missing_ok=True)


def check_directory(directory: Path, names: Sequence[str] = ()) -> None:
    """Refuse a directory in which files of these names could not be written, before anything is computed."""
    existing = directory
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"cannot write into {directory}: {existing} is no directory; choose another one")
    try:  # tried, because neither permissions nor the kind of a file system say whether it works
        os.rmdir(tempfile.mkdtemp(prefix=".", suffix=f".{os.getpid()}.tmp", dir=existing))
    except OSError as error:
        raise InputError(
            f"cannot write into {directory}: {existing} is not writable ({error.strerror}); choose another directory"
        ) from error
    for name in names:
        if (directory / name).is_dir():
            raise InputError(f"cannot write {directory / name}: it is a directory; remove it or choose another place")


def _temporary(target: Path) -> Path:
    """A path beside `target` for this process alone; what killed processes have left of theirs is removed."""
    # With the machine's name: on a shared disk only its own machine knows whether a process is alive.
    start = f".{target.name}.{platform.node()}-"
    temporary = target.with_name(f"{start}{os.getpid()}.tmp")
    pattern = re.compile(rf"{re.escape(start)}(\d+)\.tmp")
    for path in target.parent.iterdir() if target.parent.is_dir() else ():
        if (match := pattern.fullmatch(path.name)) and not _is_another_process(int(match[1])):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return temporary


def _is_another_process(pid: int) -> bool:
    """Whether a process of this id is running and is not this one; in doubt it is, so that nothing of it is removed."""
    if pid == os.getpid():
        return False
    if os.name != "posix":  # signal 0 asks whether a process exists; on Windows it would end it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # a process of another user, or no valid id
        return True
    return True
