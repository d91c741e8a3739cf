"""Where fetched files are kept: one cache directory for models, data sets and notes about the hub."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from tintformer.storage.untrusted_files import user_path

VARIABLE = "TINTFORMER_CACHE"
_READABLE = 150
"""Characters of a file's name that say what it holds: a description may name a data set of any length."""


def cache_directory() -> Path:
    """`$TINTFORMER_CACHE`, or `tintformer` in the user's directory for caches."""
    if given := os.environ.get(VARIABLE):
        return user_path(given).absolute()
    return user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "tintformer"


def rows_file(hub_id: str, config: str | None, revision: str | None, split: str, limit: int | None) -> Path:
    """Where the rows of a data set are kept: one file for each way to ask for them."""
    # The readable part of the name drops characters, so two requests could share it: the hash keeps them apart.
    request = json.dumps([hub_id, config, revision, split, limit])
    readable = re.sub(r"[^\w.-]+", "-", f"{hub_id}-{config or ''}-{split}").strip("-")[:_READABLE]
    return cache_directory() / "data" / f"{readable}-{hashlib.sha256(request.encode()).hexdigest()[:8]}.jsonl"


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
