"""`tint fetch`: models and data sets into the local caches, for use without a connection."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tintformer.cli.options import Json
from tintformer.console import print_json, print_table, progress_bar
from tintformer.errors import InputError


def fetch(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="smollm2-135m, the id of a model on the hub, or data such as sst2 (see --list).", show_default=False
        ),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List what has a name here and whether it is there.")] = False,
    json: Json = False,
) -> None:
    """Bring models and data sets into the local caches; what is there and whole is left alone."""
    if names and listing:
        raise InputError(f"--list stands alone; leave out {' '.join(names)}")
    if not sys.stderr.isatty():  # read when the libraries are imported
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    if names:
        _fetch(names, json)
    else:
        _list(json)


def _fetch(names: list[str], json: bool) -> None:
    from dataclasses import asdict

    from tintformer.cli.fetch_names import fetch, kind_of

    for name in names:  # a wrong name is refused before anything is downloaded
        kind_of(name)
    outcomes = []
    for name in dict.fromkeys(names):
        outcome = fetch(name, progress_bar)
        outcomes.append(asdict(outcome))
        if not json:
            said = {"fetched": "fetched to", "present": "is there already:", "bundled": "comes with the package:"}
            print(f"{name} {said[outcome.status]} {outcome.path}{outcome.note and f'; {outcome.note}'}")
    if json:
        print_json(outcomes)


def _list(json: bool) -> None:
    from tintformer.cli.fetch_names import known
    from tintformer.storage.cache_paths import cache_directory

    rows = known()
    if json:
        print_json(rows)
        return
    print_table([{**row, "present": "yes" if row["present"] else "no"} for row in rows])
    print(f"Fetched to {cache_directory()} (TINTFORMER_CACHE). Models of the hub by their id, such as gpt2, too.")
