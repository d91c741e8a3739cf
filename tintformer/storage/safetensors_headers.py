"""Weights on disk, by the headers of their files: what there is, before a tensor is read.

An index names the files of a large model. It may come from anyone, so only safetensors beside it are opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from tintformer.errors import LoadError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_BESIDE = re.compile(r"[\w-][\w.-]*\.safetensors")

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Stored:
    """The weights of a directory by their headers: which file holds a tensor, and its shape."""

    files: dict[str, Path]
    shapes: Shapes
    num_bytes: int

    @property
    def num_numbers(self) -> int:
        return sum(prod(shape) for shape in self.shapes.values())

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """One tensor after the other."""
        for file in sorted(set(self.files.values())):
            with _opened(file) as opened:
                yield from ((name, opened.get_tensor(name)) for name in opened.keys())  # noqa: SIM118 (not a dict)


def refuse_adapters(directory: Path) -> None:
    """An adapter names a base model of its own, which transformers would open in the place of this one."""
    for file in sorted(directory.glob("adapter_*")):
        raise LoadError(f"{file} belongs to an adapter; merge it into the base model, and give a directory of that")


def read_headers(directory: Path) -> Stored:
    """Which tensors there are, from the headers of the files alone."""
    single, index = directory / WEIGHTS, directory / INDEX
    if not single.is_file() and not index.is_file():
        raise LoadError(f"{directory} holds neither {WEIGHTS} nor {INDEX}")
    files: dict[str, Path] = {}
    shapes: Shapes = {}
    num_bytes = 0
    for file in [single] if single.is_file() else _shards(index):
        num_bytes += file.stat().st_size
        with _opened(file) as opened:
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                if name in files:
                    raise LoadError(f"{file} holds {name}, which is in {files[name].name} already")
                files[name], shapes[name] = file, tuple(opened.get_slice(name).get_shape())
    return Stored(files, shapes, num_bytes)


def _shards(index: Path) -> list[Path]:
    """The files that an index names, all of them beside it."""
    content = _json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places:
        raise LoadError(f"{index} has no weight_map, which says where the tensors are")
    for name in places.values():
        if not isinstance(name, str) or not _BESIDE.fullmatch(name):
            raise LoadError(f"{index} names {name!r}; only safetensors files beside it are read")
    files = [index.parent / name for name in sorted(set(places.values()))]
    if missing := [file.name for file in files if not file.is_file()]:
        raise LoadError(f"{index.parent} lacks {', '.join(missing)}, which {index.name} names")
    return files


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"cannot read {file}: {error}") from error


class _opened:
    """A safetensors file; whatever is wrong with it is told in our words."""

    def __init__(self, file: Path):
        self.file = file

    def __enter__(self) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            self.opened: Any = safe_open(self.file, framework="pt")
            return self.opened.__enter__()
        except (OSError, SafetensorError) as error:
            raise LoadError(
                f"cannot read {self.file}: {error}; if it is damaged or incomplete, copy or download it again"
            ) from error

    def __exit__(self, *error: object) -> None:
        self.opened.__exit__(*error)
