# pyright: basic
"""What the commands of the recipe share: bad input ends them with one line and exit code 2."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer

from tintformer.errors import TintError


def one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Print an error that the input caused as one line; its signature stays, for typer to read."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except (TintError, OSError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error

    return run


def quiet_libraries() -> None:
    """Keep advice and progress bars of transformers out of a command's own lines."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
