# pyright: basic
"""Commands, their parameters and the public Python names are those that are frozen; what changes is written down."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from all_commands import walk
from public_names import SNAPSHOTS, differences, frozen, now
from typer.core import TyperCommand, TyperGroup


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_what_users_type_is_as_it_was(name: str) -> None:
    changed = "\n".join(differences(frozen(name), now(name)))
    assert not changed, f"{changed}\nif this is meant: python tests/public_names.py record"


def test_a_difference_is_one_line() -> None:
    old = {"tint run": {"help": "Run."}, "tint run --rate": {"default": 3}, "tint update": {}, "tint update --by": {}}
    new = {"tint run": {"help": "Run."}, "tint run --rate": {"default": 4, "hidden": True}, "tint up": {}}
    assert differences(old, old) == []
    assert differences(old, new) == [
        "tint run --rate: default 3 -> 4",
        "tint run --rate: hidden None -> True",
        "tint up: new",
        "tint update: gone",
    ]


def test_commands_that_are_imported_when_they_are_asked_for_are_found() -> None:
    class Lazy(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return ["late"]

        def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand:
            return TyperCommand(cmd_name)

    app = typer.Typer(cls=Lazy)
    app.callback()(lambda: None)
    assert [words for words, _ in walk(typer.main.get_command(app))] == ["", "late"]
