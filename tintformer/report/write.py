"""`write`: a report as files, all of them or none."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from tintformer.errors import InputError, TintError
from tintformer.files import whole_file
from tintformer.report.collect import Report
from tintformer.report.figures import NAMES, draw
from tintformer.report.page import page

PAGE = "report.html"


def write(report: Report, directory: Path) -> Path:
    """Write `report.html` and a PNG of each of its figures; returns the page's path.

    The files take their places when all are written: after an interruption the directory is as it was.
    """
    check_directory(directory)
    figures = draw(report)
    contents = {PAGE: page(report, figures).encode()} | {f"{name}.png": each.png for name, each in figures.items()}
    try:
        _write_all(directory, contents)
    except OSError as error:
        raise TintError(f"cannot write the report into {directory}: {error.strerror or error}") from error
    return directory / PAGE


def _write_all(directory: Path, contents: dict[str, bytes]) -> None:
    new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        # Left in reverse order, so that the page, which is first, takes its place last.
        with ExitStack() as files:
            for name, content in contents.items():
                files.enter_context(whole_file(directory / name)).write_bytes(content)
    except BaseException:
        if new and not any(directory.iterdir()):
            directory.rmdir()
        raise
    for name in NAMES:  # a figure of an earlier report that this one does not have
        if f"{name}.png" not in contents:
            (directory / f"{name}.png").unlink(missing_ok=True)


def check_directory(directory: Path) -> None:
    """Refuse a directory that cannot be written to, before anything is computed."""
    place = directory
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise InputError(f"cannot write into {directory}: {place} is no directory")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"cannot write into {directory}: {place} is not writable")
    if directory.is_dir() and (directory / PAGE).is_dir():
        raise InputError(f"cannot write {directory / PAGE}: it is a directory")
