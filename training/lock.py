# pyright: basic
"""One process at a time in the folder of a run: two would overwrite each other's checkpoints and losses."""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tintformer.errors import InputError

LOCK = "lock"


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Make the folder if it is not there, and keep other processes out of it until the block ends.

    The system gives up the lock with the process, however it ends. The file stays: removed, two could hold it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"another process is training in {folder}; wait until it ends or choose another --run folder"
            ) from error
        yield
