# pyright: basic
"""Cut a stretch of lines out of a text, so that a model can be trained on the rest and judged on the stretch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from tintformer.errors import InputError
from tintformer.learning.text import read_text
from tintformer.storage.whole_files import whole_file
from training.console import one_line_errors


def split_lines(lines: list[str], start: str, end: str | None = None) -> tuple[list[str], list[str]]:
    """The lines to train on and those held out: from the one line that matches `start` to before `end`, or to the last.

    A `start` that matches several lines is an error, because a heading quoted in the text would cut at the wrong place.
    """
    starts = _matches(lines, start)
    if len(starts) != 1:
        places = ", ".join(str(index + 1) for index in starts[:5])
        found = f"{len(starts)} lines ({places})" if starts else "no line"
        raise InputError(f"the start pattern {start!r} matches {found}; it must match one line")
    first = starts[0]
    last = len(lines)
    if end is not None:
        later = [index for index in _matches(lines, end) if index > first]
        if not later:
            raise InputError(f"the end pattern {end!r} matches no line after line {first + 1}")
        last = later[0]
    return lines[:first] + lines[last:], lines[first:last]


def _matches(lines: list[str], pattern: str) -> list[int]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InputError(f"{pattern!r} is no regular expression: {error}") from error
    return [index for index, line in enumerate(lines) if compiled.search(line.rstrip())]


@one_line_errors
def main(
    text: Annotated[Path, typer.Argument(help="The text to cut.")],
    start: Annotated[str, typer.Option(help="Regular expression of the first line held out; it must match one line.")],
    into: Annotated[Path, typer.Option(help="Folder for NAME.train.txt and NAME.held-out.txt.")],
    end: Annotated[str | None, typer.Option(help="Regular expression of the first line to train on again.")] = None,
) -> None:
    """Cut the lines from --start to before --end out of a text and write both parts."""
    kept, held = split_lines(read_text(file=text).splitlines(keepends=True), start, end)
    into.mkdir(parents=True, exist_ok=True)
    for part, lines in (("train", kept), ("held-out", held)):
        target = into / f"{text.stem}.{part}.txt"
        with whole_file(target) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")
        typer.echo(f"{target}: {len(lines):,} lines, {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    typer.run(main)
