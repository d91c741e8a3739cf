"""Data sets of the Hugging Face hub, or of its local cache; needs the package `datasets`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tintformer.errors import InputError, cause
from tintformer.experiments.described import a_string, checked
from tintformer.experiments.rows import EXTRA, Row, read_rows
from tintformer.storage.cache_paths import rows_file


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Where a data set is on the hub."""

    id: str
    """Owner and name, as in `stanfordnlp/sst2`."""
    config: str | None = None
    """The configuration, for data sets that have several."""
    revision: str | None = None
    """A commit or tag; without one the data may change between two runs (records show it: they hold their hash)."""


def to_hub(value: Any, source: str) -> Hub:
    """The key `hub` of a description: an id, or an id with its configuration and revision."""
    where = f"{source}: hub"
    keys = {"id": value} if isinstance(value, str) else checked(Hub, value, where)
    return Hub(**{key: a_string(item, f"{where}.{key}") for key, item in keys.items() if item is not None})


def read_hub(hub: Hub, split: str, limit: int | None = None) -> list[Row]:
    """The first `limit` rows of a split (all of them without a limit), from what `tint fetch` has kept or the hub."""
    kept = kept_rows(hub, split, limit)
    return read_rows(kept) if kept.is_file() else download_rows(hub, split, limit)


def kept_rows(hub: Hub, split: str, limit: int | None) -> Path:
    """Where `tint fetch` keeps these rows: `datasets` itself keeps none of a split that is read up to a limit."""
    return rows_file(hub.id, hub.config, hub.revision, split, limit)


def download_rows(hub: Hub, split: str, limit: int | None = None) -> list[Row]:
    """The rows from the hub, or from the cache of `datasets`."""
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    except ImportError as error:
        raise InputError(
            f"the data set {hub.id} needs the package datasets; install it ({EXTRA}) or give local files with --data"
        ) from error
    try:
        # With a limit nothing but the first rows is fetched.
        rows: Any = load_dataset(hub.id, hub.config, split=split, revision=hub.revision, streaming=limit is not None)
        found = [Row(f"{hub.id} {split} row {number}", values) for number, values in enumerate(islice(rows, limit), 1)]
    except Exception as error:  # whatever the network, the hub and its readers raise
        raise InputError(
            f"cannot load the data set {hub.id} ({split}): {cause(error)}; "
            "check the name and the network, or give local files with --data"
        ) from error
    if not found:
        raise InputError(f"the data set {hub.id} has no rows in the split {split}; choose another one")
    return found
