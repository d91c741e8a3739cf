"""Files of tensors that know their content: a checksum over metadata, names, dtypes, shapes and every byte.

A flipped bit in a weight is a number like any other, which nothing else would notice. The checksum is SHA-256: the
fastest of hashlib where processors have instructions for it (1.5 GB/s, about what a disk delivers), and the same in
every tool. It finds damage and edits by hand; whoever rewrites the checksum as well is not found by it, which is why
readers check what they read besides.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tintformer.errors import LoadError, cause

CHECKSUM = "checksum"
"""Its key in the metadata of a safetensors file."""


class Checksum:
    """The checksum of a file, one tensor after the other, in the order of their names."""

    def __init__(self, metadata: Mapping[str, str]):
        covered = {key: value for key, value in metadata.items() if key != CHECKSUM}
        self._stored = metadata.get(CHECKSUM)
        self._digest = hashlib.sha256(json.dumps(covered, sort_keys=True).encode())

    def add(self, name: str, tensor: Tensor) -> None:
        add_tensor(self._digest, name, tensor)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def check(self, file: Path) -> None:
        """Compare with what the file says of itself, after the last tensor."""
        if self._stored is None:
            raise LoadError(f"{file} has no checksum, without which damage would not show; write it anew")
        if self._stored != self.hexdigest():
            raise LoadError(
                f"{file} was damaged or changed after it was written: its content does not match its checksum; "
                "copy it again, or write it anew"
            )


def add_tensor(digest: Any, name: str, tensor: Tensor) -> None:
    """Let a digest of hashlib take in a tensor: its name, dtype, shape and bytes, which are not copied."""
    plain = tensor.detach().cpu().contiguous()
    digest.update(f"{name!r} {plain.dtype} {tuple(plain.shape)}\n".encode(errors="backslashreplace"))
    if plain.numel():
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with a checksum; the same content gives the same bytes."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    checksum = Checksum(metadata)
    for name, tensor in plain.items():
        checksum.add(name, tensor)
    save_file(plain, file, metadata={**metadata, CHECKSUM: checksum.hexdigest()})
    _sort_metadata(file)


def read_tensors(
    file: Path, what: str, check_metadata: Callable[[Mapping[str, str], Path], None]
) -> tuple[Mapping[str, str], dict[str, Tensor]]:
    """The metadata of a safetensors file, checked before the tensors are read, and these, which must fit its checksum.

    `what` is what messages call the file.
    """
    from safetensors import SafetensorError, safe_open

    if file.exists() and not file.is_file():
        raise LoadError(f"cannot read the {what} {file}: it is no regular file")
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            check_metadata(metadata, file)
            tensors = {name: opened.get_tensor(name) for name in sorted(opened.keys())}
    except (OSError, SafetensorError) as error:
        raise LoadError(f"cannot read the {what} {file}: {cause(error)}") from error
    checksum = Checksum(metadata)
    for name, tensor in tensors.items():
        checksum.add(name, tensor)
    checksum.check(file)
    return metadata, tensors


def _sort_metadata(file: Path) -> None:
    """Bring the keys of the header into an order: the library writes those of the metadata as they come."""
    # The format: eight bytes with the header's length, the header as JSON filled up with spaces, the tensors.
    with file.open("r+b") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
        assert len(text) == length, "the same text in another order"
        opened.seek(8)
        opened.write(text)
