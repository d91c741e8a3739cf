"""The one way in which files are written: a file, several files or a directory, whole or not at all.

Everything is made in a stage (`staging`) on the same file system and takes its place by renames. Whatever happens, an
error, an interrupt, a full disk, a kill:

- one file, or a whole directory, is the old or the new one at every moment, for every reader;
- several files of a directory that holds others too are each the old or the new one at every moment. After an error or
  an interrupt all are the old ones. A process that is killed between the first rename and the last (well under a
  millisecond) leaves some of each, and the next command or loader of this package that opens the directory puts the
  old ones back, before it reads or writes.

A link that is given as the place is followed; files get the mode that the umask says.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

from tintformer.errors import InputError, LoadError
from tintformer.storage.staging import (
    NEW,
    clean,
    entries,
    file_mode,
    forget_undo,
    locked,
    prepare_undo,
    settle,
    staged,
    undo,
)
from tintformer.storage.untrusted_files import given_path

__all__ = [
    "check_directory",
    "check_file",
    "check_settled",
    "entries",
    "make_directory",
    "whole_directory",
    "whole_file",
    "whole_files",
]


@contextmanager
def whole_file(target: Path, *, parents: bool = False) -> Generator[Path]:
    """A temporary path; what was written there takes the place of `target` when the block ends without an error."""
    target = _followed(target)
    with _made(target.parent if parents else None), staged(target.parent) as stage:
        yield stage / NEW / target.name
        _set_modes(stage)
        os.replace(stage / NEW / target.name, target)


@contextmanager
def whole_files(directory: Path, names: Sequence[str] = ()) -> Generator[Path]:
    """A temporary folder; the files that were written there move into `directory` together when the block ends well.

    `names` are all files that belong together: of an earlier set none stays that was not written anew. They take their
    places in this order, so put the one that people open last. A link among them is replaced, not followed. A folder
    is a set of its own, which takes its place first.
    """
    directory = _followed(directory)
    with _made(directory), staged(directory) as stage:
        yield stage / NEW
        _set_modes(stage)
        for folder in [path for path in (stage / NEW).iterdir() if path.is_dir()]:
            with whole_files(directory / folder.name) as below:
                for path in folder.iterdir():
                    os.replace(path, below / path.name)
            folder.rmdir()
        others = set(os.listdir(stage / NEW)) - set(names)
        _replace_files(stage, [*sorted(others), *names])


@contextmanager
def whole_directory(target: Path) -> Generator[Path]:
    """A temporary folder that takes the place of the directory `target` when the block ends without an error."""
    target = _followed(target)
    if target.is_dir() and not _can_exchange(target):
        with whole_files(target, entries(target)) as new:
            yield new
        return
    with _made(target.parent), staged(target.parent) as stage:
        new = stage / NEW
        yield new
        _set_modes(stage)
        try:
            os.rename(new, target)  # where nothing is, or an empty directory
        except OSError:
            if not target.is_dir():
                raise
            shutil.copymode(target, new)
            _exchange(new, target)  # the old one goes with the stage


def check_settled(directory: Path) -> None:
    """Before files that belong together are read: put back what a killed process had begun to replace."""
    if not settle(given_path(directory, LoadError)):
        raise LoadError(
            f"{directory} holds files of two versions, because a process was killed while it replaced them; open it "
            "once where it can be written, or write it again"
        )


def _replace_files(stage: Path, names: list[str]) -> None:
    """Put the new files where the old ones are, or remove those that are not there anew; the old come back on error."""
    new, directory = stage / NEW, stage.parent
    with locked(directory):
        clean(directory)  # of a process that was killed since
        try:
            prepare_undo(stage, names)
            for name in names:
                if os.path.lexists(new / name):
                    os.replace(new / name, directory / name)
                else:
                    (directory / name).unlink(missing_ok=True)
            forget_undo(stage)
        except BaseException:
            undo(stage)
            raise


def _set_modes(stage: Path) -> None:
    """One mode for all: some libraries let nobody but the owner read what they write."""
    mode = file_mode(stage)
    for path in (stage / NEW).rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def make_directory(directory: Path) -> None:
    """Make a directory and those above it where there is none, also where a link leads."""
    _followed(directory).mkdir(parents=True, exist_ok=True)


@contextmanager
def _made(directory: Path | None) -> Generator[None]:
    """Make a directory and those above it; they go again if the block fails and nothing is in them."""
    above = () if directory is None else (directory, *directory.parents)
    created = [path for path in above if not os.path.lexists(path)]
    try:
        if directory is not None:
            make_directory(directory)
        yield
    except BaseException:
        for path in created:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        raise


def _followed(path: Path) -> Path:
    """Where a path leads, through links, also to what is not there yet."""
    return Path(os.path.realpath(given_path(path)))


def _can_exchange(target: Path) -> bool:
    """Whether a directory can change places with another: not where someone stands in it, or a disk is mounted."""
    if os.path.ismount(target) or target == Path(os.path.realpath(".")):
        return False
    try:
        with staged(target.parent) as stage:
            (stage / "other").mkdir()
            _exchange(stage / NEW, stage / "other")
    except (OSError, AttributeError):
        return False
    return True


def _exchange(one: Path, other: Path) -> None:
    """Let two directories change their names in one step; an OSError or AttributeError where the system has none."""
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin":
        failed = library.renamex_np(*names, ctypes.c_uint(2))
    else:  # AT_FDCWD, because both paths are absolute, and RENAME_EXCHANGE
        failed = library.renameat2(-100, names[0], -100, names[1], ctypes.c_uint(2))
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))


def check_file(target: Path) -> None:
    """Refuse a path that could not be written as a file, before anything is computed; its directory must be there."""
    followed = _followed(target)
    if os.path.exists(followed) and not os.path.isfile(followed):
        raise InputError(f"cannot write {target}: it is no regular file; give the path of a file")
    if not os.path.isdir(followed.parent):
        raise InputError(f"cannot write {target}: there is no directory {followed.parent}; make it first")
    _try(target, followed.parent, followed.parent, [followed.name])


def check_directory(directory: Path, names: Iterable[str] = ()) -> None:
    """Refuse a directory in which files of these names could not be written, before anything is computed."""
    followed = existing = _followed(directory)
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not os.path.isdir(existing):
        raise InputError(f"cannot write into {directory}: {existing} is no directory; choose another one")
    names = list(names)
    _try(directory, followed, existing, names)
    for name in names:
        if (followed / name).exists() and not (followed / name).is_file():
            kind = "a directory" if (followed / name).is_dir() else "no regular file"
            raise InputError(f"cannot write {directory / name}: it is {kind}; remove it or choose another place")


def _try(place: Path, directory: Path, existing: Path, names: Iterable[str]) -> None:
    """Make such files and folders in a stage: neither permissions nor rules say what a file system takes."""
    try:
        with staged(existing) as stage:
            below = stage / NEW / directory.relative_to(existing)
            below.mkdir(parents=True, exist_ok=True)
            for name in names:
                (below / name).touch()
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"cannot write {place}: {reason}; choose a shorter name") from error
        raise InputError(
            f"cannot write into {place}: {existing} is not writable ({reason}); choose another directory"
        ) from error
