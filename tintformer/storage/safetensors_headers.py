"""Weights on disk by the headers of their files: names and shapes, before a tensor is read.

A directory may come from anyone. Headers cost kilobytes, so sizes can be checked before memory is taken for tensors.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from tintformer.errors import LoadError, cause
from tintformer.storage.checksums import CHECKSUM, Checksum
from tintformer.storage.untrusted_files import check_regular, read_foreign_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# A file name without a folder: an index must not make us open ../../etc/secrets, nor a pickle.
_PLAIN_NAME = re.compile(r"[\w-][\w.-]*\.safetensors")

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class SafetensorsHeaders:
    """The weights of a directory by their headers: which file holds a tensor, its shape and its dtype."""

    files: dict[str, Path]
    shapes: Shapes
    dtypes: dict[str, str]
    """As safetensors call them: F32, BF16, I8."""
    num_bytes: int

    @property
    def num_tensors(self) -> int:
        return len(self.shapes)

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
    if not single.exists() and not index.exists():
        raise LoadError(f"{directory} holds neither {WEIGHTS} nor {INDEX}")
    # transformers prefers the single file as well: what is checked must be what is loaded.
    places = None if single.exists() else _read_index(index)
    result = SafetensorsHeaders({}, {}, {}, 0)
    for file in [single] if places is None else sorted(set(places.values())):
        result = _with_file(result, file)
    if places is not None and (odd := sorted(places.items() ^ result.files.items())):
        raise LoadError(
            f"{index} is not the index of the files beside it: {len({name for name, _ in odd})} tensors are not where "
            f"it says, the first of them {odd[0][0]}; put all files of one model there"
        )
    return result


def _with_file(headers: SafetensorsHeaders, file: Path) -> SafetensorsHeaders:
    """The headers of one file more."""
    files, shapes, dtypes = dict(headers.files), dict(headers.shapes), dict(headers.dtypes)
    num_bytes = headers.num_bytes + check_regular(file)
    with _open_safetensors(file) as opened:
        for name in opened.keys():  # noqa: SIM118 (not a dict)
            if name in files:
                raise LoadError(f"{file} holds {name}, which is in {files[name].name} already; keep one of them")
            held = opened.get_slice(name)
            files[name], shapes[name], dtypes[name] = file, tuple(held.get_shape()), str(held.get_dtype())
    return SafetensorsHeaders(files, shapes, dtypes, num_bytes)


def _read_index(index: Path) -> dict[str, Path]:
    """Where an index says that tensors are, in files beside it."""
    content = read_foreign_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise LoadError(f"{index} has no weight_map, which says where the tensors are")
    for name in weight_map.values():
        if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
            raise LoadError(f"{index} names {repr(name)[:80]}; only safetensors files beside it are read")
    places = {name: index.parent / file for name, file in weight_map.items()}
    if missing := sorted({file.name for file in places.values() if not file.exists()}):
        raise LoadError(f"{index.parent} lacks {shorten(missing)}, which {index.name} names")
    return places


def shorten(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@contextmanager
def _open_safetensors(file: Path) -> Generator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        raise LoadError(
            f"cannot read {file}: {cause(error)}; if it is damaged or incomplete, copy or download it again"
        ) from error
    with opened as entered:
        yield entered
