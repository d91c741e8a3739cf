"""Every command of `tint` by its words (`run`, `eval lm`), and the function that it calls."""

from __future__ import annotations

from typing import Any

from tintformer.cli.app import app


def all_commands(group: Any = app, before: str = "") -> dict[str, Any]:
    """What the registry has, so that a command that is added and forgotten in a table of the tests fails there."""
    found = {f"{before}{each.name}": each.callback for each in group.registered_commands}
    for each in group.registered_groups:
        found |= all_commands(each.typer_instance, f"{before}{each.name} ")
    return found
