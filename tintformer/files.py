"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(target: Path) -> Generator[Path]:
    """A temporary path beside `target`; what was written there takes its place when the block ends without an error.

    An interruption at any moment leaves the old file as it was.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
