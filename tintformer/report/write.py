"""`write`: a report as files, all of them or none."""

from __future__ import annotations

from pathlib import Path

from tintformer.errors import TintError
from tintformer.report.collect import Report
from tintformer.report.figures import NAMES, draw
from tintformer.report.page import page
from tintformer.storage.whole_files import check_directory as check
from tintformer.storage.whole_files import whole_files

PAGE = "report.html"
FILES = (*(f"{name}.png" for name in NAMES), PAGE)
"""All that a report can consist of; the page takes its place last."""


def write(report: Report, directory: Path) -> Path:
    """Write `report.html` and a PNG of each of its figures; returns the page's path.

    The files take their places when all are written: after an error or an interruption the directory is as it was.
    """
    check_directory(directory)
    figures = draw(report)
    contents = {f"{name}.png": each.png for name, each in figures.items()} | {PAGE: page(report, figures).encode()}
    try:
        with whole_files(directory, FILES) as folder:
            for name, content in contents.items():
                (folder / name).write_bytes(content)
    except OSError as error:
        raise TintError(
            f"cannot write the report into {directory}: {error.strerror or error}; make room or choose another place"
        ) from error
    return directory / PAGE


def check_directory(directory: Path) -> None:
    """Refuse a directory that a report cannot be written into, before anything is computed."""
    check(directory, FILES)
