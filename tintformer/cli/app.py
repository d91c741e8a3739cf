"""The command line as typer runs it: commands by name, each imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tintformer.cli.table import COMMANDS, Command
from tintformer.console import working
from tintformer.version import __version__


class _Imported(Mapping[str, Any]):
    """Commands by name, in the order of the list; looking one up imports it."""

    def __init__(self) -> None:
        tables = [COMMANDS, *(each.load() for each in entry_points(group="tintformer.commands"))]
        rows: list[Command] = sorted((row for table in tables for row in table), key=lambda row: row.place)
        self.rows = {row.name: row for row in rows}

    def __getitem__(self, name: str) -> Any:
        return _import_command(self.rows[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


@cache
def _import_command(row: Command) -> Any:
    module, _, name = row.target.partition(":")
    found = getattr(import_module(module), name)
    group = found if isinstance(found, typer.Typer) else typer.Typer(add_completion=False)
    if group is not found:
        group.command(row.name)(found)
    for command in group.registered_commands:
        assert command.callback is not None
        command.callback = working("starting")(command.callback)  # at once: what a command imports takes seconds
    return typer.main.get_command(group)


class _Commands(TyperGroup):
    """The group `tint`; its help lists what the tables say, and imports nothing."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Imported()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.commands = {row.name: TyperCommand(row.name, help=row.help) for row in self.commands.rows.values()}
        super().format_help(ctx, formatter)


app = typer.Typer(
    cls=_Commands,
    name="tint",
    help="Transformers that train another transformer inside one forward pass.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Transformers that train another transformer inside one forward pass."""
