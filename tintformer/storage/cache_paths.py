"""Where fetched files are kept: one cache directory for models, data sets and notes about the hub."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

VARIABLE = "TINTFORMER_CACHE"


def cache_directory() -> Path:
    """`$TINTFORMER_CACHE`, or `tintformer` in the user's directory for caches."""
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tintformer"


def rows_file(hub_id: str, config: str | None, revision: str | None, split: str, limit: int | None) -> Path:
    """Where the rows of a data set are kept: one file for each way to ask for them."""
    # The readable part of the name drops characters, so two requests could share it: the hash keeps them apart.
    request = json.dumps([hub_id, config, revision, split, limit])
    readable = re.sub(r"[^\w.-]+", "-", f"{hub_id}-{config or ''}-{split}").strip("-")
    return cache_directory() / "data" / f"{readable}-{hashlib.sha256(request.encode()).hexdigest()[:8]}.jsonl"


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
