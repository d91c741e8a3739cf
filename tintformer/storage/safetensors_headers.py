"""Weights on disk by the headers of their files: names and shapes, before a tensor is read.

A directory may come from anyone. Headers cost kilobytes, so sizes can be checked before memory is taken for tensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from tintformer.errors import LoadError
from tintformer.storage.checksums import CHECKSUM, Checksum

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# A file name without a folder: an index must not make us open ../../etc/secrets, nor a pickle.
_PLAIN_NAME = re.compile(r"[\w-][\w.-]*\.safetensors")

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class SafetensorsHeaders:
    """The weights of a directory by their headers: which file holds a tensor, and its shape."""

    files: dict[str, Path]
    shapes: Shapes
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return sum(prod(shape) for shape in self.shapes.values())

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """One tensor after the other, so that a model is never in memory twice; behind the last, the checksum.

        Other tools rewrite such files and know of no checksum: it is compared where there is one.
        """
        for file in sorted(set(self.files.values())):
            with _open_safetensors(file) as opened:
                metadata: dict[str, str] = opened.metadata() or {}
                checksum = Checksum(metadata) if CHECKSUM in metadata else None
                for name in sorted(opened.keys()):
                    tensor = opened.get_tensor(name)
                    if checksum is not None:
                        checksum.add(name, tensor)
                    yield name, tensor
                if checksum is not None:
                    checksum.check(file)


def refuse_adapters(directory: Path) -> None:
    """An adapter names a base model of its own, which transformers would open in the place of this one."""
    for file in sorted(directory.glob("adapter_*")):
        raise LoadError(f"{file} belongs to an adapter; merge it into the base model, and give a directory of that")


def read_headers(directory: Path) -> SafetensorsHeaders:
    """Which tensors there are, from the headers of the files alone."""
    single, index = directory / WEIGHTS, directory / INDEX
    if not single.is_file() and not index.is_file():
        raise LoadError(f"{directory} holds neither {WEIGHTS} nor {INDEX}")
    files: dict[str, Path] = {}
    shapes: Shapes = {}
    num_bytes = 0
    # transformers prefers the single file as well: what is checked must be what is loaded.
    for file in [single] if single.is_file() else _read_index(index):
        num_bytes += file.stat().st_size
        with _open_safetensors(file) as opened:
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                if name in files:
                    raise LoadError(f"{file} holds {name}, which is in {files[name].name} already")
                files[name], shapes[name] = file, tuple(opened.get_slice(name).get_shape())
    return SafetensorsHeaders(files, shapes, num_bytes)


def _read_index(index: Path) -> list[Path]:
    """The files that an index names, all of them beside it."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"cannot read {index}: {error}") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise LoadError(f"{index} has no weight_map, which says where the tensors are")
    for name in weight_map.values():
        if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
            raise LoadError(f"{index} names {name!r}; only safetensors files beside it are read")
    files = [index.parent / name for name in sorted(set(weight_map.values()))]
    if missing := [file.name for file in files if not file.is_file()]:
        raise LoadError(f"{index.parent} lacks {', '.join(missing)}, which {index.name} names")
    return files


@contextmanager
def _open_safetensors(file: Path) -> Generator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        raise LoadError(
            f"cannot read {file}: {error}; if it is damaged or incomplete, copy or download it again"
        ) from error
    with opened as entered:
        yield entered
