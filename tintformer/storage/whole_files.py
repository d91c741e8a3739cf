"""Files that are there whole or not at all, one or several together."""

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
    absent = [place for place in (directory, *directory.parents) if not os.path.lexists(place)]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(directory / "files")
        try:
            new, old = temporary / "new", temporary / "old"
            new.mkdir(parents=True)
            old.mkdir()
            yield new
            _exchange(directory, new, old, names)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except BaseException:
        for place in absent:
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
        raise


def _exchange(directory: Path, new: Path, old: Path, names: Sequence[str]) -> None:
    """Put the new files where the old ones are; if that fails half-way, the old ones come back."""
    # Copies, so that no name is ever missing; they need room on the disk, so they are made before anything changes.
    for name in names:
        if os.path.lexists(directory / name):
            shutil.copy2(directory / name, old / name, follow_symlinks=False)
    begun: list[str] = []
    try:
        for name in names:
            begun.append(name)
            _move(new / name, directory / name)
    except BaseException:
        for name in begun:
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
    place = directory
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise InputError(f"cannot write into {directory}: {place} is no directory; choose another one")
    try:  # tried, because neither permissions nor the kind of a file system tell whether it works
        os.rmdir(tempfile.mkdtemp(prefix=".", suffix=f".{os.getpid()}.tmp", dir=place))
    except OSError as error:
        raise InputError(
            f"cannot write into {directory}: {place} is not writable ({error.strerror}); choose another directory"
        ) from error
    for name in names:
        if (directory / name).is_dir():
            raise InputError(f"cannot write {directory / name}: it is a directory; remove it or choose another place")


def _temporary(target: Path) -> Path:
    """A path beside `target` of this process alone; what killed processes have left there for it is removed."""
    # With the machine's name: on a shared disk only its own machine knows whether a process is alive.
    start = f".{target.name}.{platform.node()}-"
    temporary = target.with_name(f"{start}{os.getpid()}.tmp")
    pattern = re.compile(rf"{re.escape(start)}(\d+)\.tmp")
    for path in target.parent.iterdir() if target.parent.is_dir() else ():
        if (match := pattern.fullmatch(path.name)) and not _is_another_process(int(match[1])):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return temporary


def _is_another_process(number: int) -> bool:
    if number == os.getpid():
        return False
    if os.name != "posix":  # elsewhere signal 0 is no question
        return True
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # there, but not ours, or no number of a process
        return True
    return True
