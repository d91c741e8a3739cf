# pyright: basic
"""Every command of `tint` by its words (`run`, `eval lm`), found as the command line finds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from tintformer.cli.app import app


def walk(command: Any = None, words: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a command, which is the whole of `tint` at first, and all below it; lazy ones are imported."""
    if command is None:
        command = app if hasattr(app, "list_commands") else typer.main.get_command(app)
    yield words, command
    if is_group(command):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), f"{words} {name}".strip())


def is_group(command: Any) -> bool:
    return hasattr(command, "list_commands")


def all_commands() -> dict[str, Any]:
    """The function of every command, so that one that is added and forgotten in a table of the tests fails there."""
    # Without what typer has put around it, which needs a command line.
    return {words: command.callback.__wrapped__ for words, command in walk() if not is_group(command)}
