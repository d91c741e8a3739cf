"""GGUF files by their headers: counts, lengths, dimensions and offsets against the size of the file.

The readers of transformers and of the package gguf believe every number that a file holds: sixty bytes make them walk
through 2^63 strings. Here nothing is allocated, and a walk ends where the file does.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tintformer.errors import LoadError
from tintformer.storage.untrusted_files import check_regular

_VERSIONS = (2, 3)
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a metadata value, by its type."""
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_MAX_KEYS, _MAX_TENSORS, _MAX_DIMENSIONS = 4096, 2**16, 4
_MAX_ELEMENTS = 2**20
"""Of all arrays together; a vocabulary of 262,144 with scores and types, as Gemma's, is three quarters of it. Readers
make an object of each."""
_MAX_KEY = 2**16


class _Faulty(Exception):
    """What is wrong with a file; never leaves this module."""


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file holds, by its header."""

    num_tensors: int
    num_elements: int
    num_bytes: int
    """Of the file."""


def read_gguf_header(file: Path) -> GgufHeader:
    """The header of a GGUF file; one that is not true of the file is refused."""
    size = check_regular(file)
    if size < 24:
        raise LoadError(f"{file} is no GGUF file: it has {size} bytes, fewer than a header; download it again")
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(data).check()
    except OSError as error:
        raise LoadError(f"cannot read {file}: {error.strerror or error}") from error
    except (_Faulty, struct.error, UnicodeDecodeError) as error:
        reason = str(error) if isinstance(error, _Faulty) else "it ends within its header or holds no text there"
        raise LoadError(f"{file} is no GGUF file that can be read: {reason}; download it again") from error


class _Walk:
    """A walk through the header of a file that is mapped into memory."""

    def __init__(self, data: Any):
        self.data, self.size, self.at, self.num_elements = data, len(data), 0, 0

    def check(self) -> GgufHeader:
        if self.data[:4] != b"GGUF":
            raise _Faulty("it does not begin with GGUF")
        self.at = 4
        version, num_tensors, num_keys = self.unpack("<IQQ")
        if version not in _VERSIONS:
            raise _Faulty(f"it has version {version}, and 2 and 3 are read")
        if num_keys > _MAX_KEYS or num_tensors > _MAX_TENSORS:
            raise _Faulty(f"it announces {num_keys} keys and {num_tensors} tensors in {self.size} bytes")
        alignment, names = 32, set[bytes]()
        for _ in range(num_keys):
            name = self.read_name(names)
            (kind,) = self.unpack("<I")
            if name == b"general.alignment" and kind == _UINT32:
                (alignment,) = struct.unpack_from("<I", self.data, self.at)
            self.skip_value(kind)
        if not 0 < alignment <= 2**20 or alignment & (alignment - 1):
            raise _Faulty(f"it has an alignment of {alignment}")
        return GgufHeader(num_tensors, self.check_tensors(num_tensors, alignment), self.size)

    def check_tensors(self, count: int, alignment: int) -> int:
        """The elements of all tensors, each of which lies within the file."""
        from gguf.constants import GGML_QUANT_SIZES

        sizes = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
        found: list[tuple[bytes, int, int, int]] = []
        names = set[bytes]()
        for _ in range(count):
            name = self.read_name(names)
            (num_dimensions,) = self.unpack("<I")
            if not 0 < num_dimensions <= _MAX_DIMENSIONS:
                raise _Faulty(f"{_shown(name)} has {num_dimensions} dimensions")
            shape = self.unpack(f"<{num_dimensions}Q")
            kind, offset = self.unpack("<IQ")
            if kind not in sizes:
                raise _Faulty(f"{_shown(name)} has the unknown type {kind}")
            block, width = sizes[kind]
            if shape[0] % block:
                raise _Faulty(f"{_shown(name)} has rows of {shape[0]}, no multiple of {block}")
            found.append((name, offset, prod(shape), prod(shape) // block * width))
        start = -(-self.at // alignment) * alignment
        for name, offset, _, length in found:
            if start + offset + length > self.size:
                raise _Faulty(f"{_shown(name)} goes beyond the end of the file, at {self.size} bytes")
        if sum(length for *_, length in found) > self.size:
            raise _Faulty("its tensors overlap")
        end = max((start + offset + length for _, offset, _, length in found), default=start)
        # A sparse file takes no room on the disk and is read to its end all the same, to know it again.
        if self.size > (padded := -(-end // alignment) * alignment):
            raise _Faulty(f"{self.size - padded} bytes follow the last of its tensors")
        return sum(elements for _, _, elements, _ in found)

    def unpack(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values

    def skip(self, length: int) -> None:
        if length > self.size - self.at:
            raise _Faulty(f"it announces {length} bytes where {self.size - self.at} are left")
        self.at += length

    def read_name(self, taken: set[bytes]) -> bytes:
        (length,) = self.unpack("<Q")
        start = self.at
        self.skip(length)
        name = bytes(self.data[start : start + min(length, _MAX_KEY + 1)])
        if length > _MAX_KEY:
            raise _Faulty(f"it has a name of {length} bytes")
        name.decode("utf-8")
        if name in taken:
            raise _Faulty(f"it has {_shown(name)} twice")
        taken.add(name)
        return name

    def skip_value(self, kind: int) -> None:
        if kind in _SCALARS:
            self.skip(_SCALARS[kind])
        elif kind == _STRING:
            self.skip(self.unpack("<Q")[0])
        elif kind == _ARRAY:
            self.skip_array()
        else:
            raise _Faulty(f"it has a value of the unknown type {kind}")

    def skip_array(self) -> None:
        kind, count = self.unpack("<IQ")
        self.num_elements += count
        if self.num_elements > _MAX_ELEMENTS:
            raise _Faulty(f"it announces {self.num_elements} elements of arrays, and at most {_MAX_ELEMENTS} are read")
        if kind in _SCALARS:
            self.skip(count * _SCALARS[kind])
        elif kind == _STRING:
            for _ in range(count):
                self.skip(self.unpack("<Q")[0])
        else:
            raise _Faulty(f"it has an array of type {kind}")


def _shown(name: bytes) -> str:
    return name[:60].decode("utf-8", errors="replace")
