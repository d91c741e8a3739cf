"""Records: one file a unit of work, named after what it depends on, there whole or not at all.

Several processes may use one directory. A record that is there stays: whoever has the same work done again leaves it as
it is, and of two that finish in the same moment either is whole. NaN and the infinities survive, as strict JSON.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tintformer.errors import InputError, TintWarning
from tintformer.experiments.identity import canonical, from_json, key_of, sha256, to_json
from tintformer.storage.whole_files import whole_file

_WRITING = threading.Lock()
"""Threads of one process would share the temporary file of a record."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was done and what came out."""

    key: str
    identity: dict[str, Any]
    result: dict[str, Any]


class Store:
    """A directory of records; it is made when the first one is saved."""

    def __init__(self, directory: str | os.PathLike[str]):
        self.directory = Path(directory)

    def find(self, identity: dict[str, Any]) -> dict[str, Any] | None:
        """The result that is stored for this identity, or None; a corrupted one is set aside and counts as missing."""
        key = key_of(identity)
        record = self._whole(self._path(key))
        return None if record is None else record.result

    def save(self, identity: dict[str, Any], result: dict[str, Any]) -> None:
        """Keep a result, unless there is one for this identity already."""
        content = {"identity": to_json(identity, "identity"), "result": to_json(result, "result")}
        text = json.dumps(content | {"checksum": _checksum(identity, result)}, allow_nan=False) + "\n"
        path = self._path(key_of(identity))
        with _WRITING:
            if self._whole(path) is not None:
                return
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(path) as temporary, temporary.open("w", encoding="ascii") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())  # a rename may outlive a loss of power that the content does not
            except OSError as error:
                raise InputError(f"cannot write {path}: {error.strerror}; choose another directory") from error

    def __iter__(self) -> Iterator[Record]:
        """All whole records, by key."""
        for path in sorted(self.directory.glob("[0-9a-f][0-9a-f]/[!.]*.json")):
            if (record := self._whole(path)) is not None:
                yield record

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key}.json"

    def _whole(self, path: Path) -> Record | None:
        try:
            return _read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}; make it readable or remove it") from error
        except ValueError as error:
            return self._set_aside(path, str(error))

    def _set_aside(self, path: Path, reason: str) -> Record | None:
        """Move a corrupted record out of the way and say so; the one who moves it is the one who says it."""
        aside = self.directory / "corrupt" / f"{path.stem}.{os.getpid()}.{threading.get_ident()}.json"
        try:
            aside.parent.mkdir(exist_ok=True)
            while aside.exists():
                aside = aside.with_stem(aside.stem + "-")
            os.rename(path, aside)
        except FileNotFoundError:  # another process was faster
            return None
        except OSError as error:
            raise InputError(f"cannot move {path} aside: {error.strerror}; it is corrupted, so remove it") from error
        try:  # Another process may have set the bad one aside and written a good one since it was read.
            record = _read(aside, path.stem)
        except ValueError:
            warnings.warn(f"{path} {reason}; it is set aside as {aside} and done again", TintWarning, stacklevel=4)
            return None
        os.replace(aside, path)
        return record


def _checksum(identity: Any, result: Any) -> str:
    return sha256(canonical([identity, result]))


def _read(path: Path, key: str | None = None) -> Record:
    """A record that is what its name and its checksum say; any other raises a ValueError with the reason."""
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8
        raise ValueError("is no JSON: it is truncated or damaged") from error
    if not isinstance(record, dict) or set(record) != {"identity", "result", "checksum"}:
        raise ValueError("is no record: it must hold identity, result and checksum")
    try:
        identity, result = from_json(record["identity"]), from_json(record["result"])
        checksum = _checksum(identity, result)
    except (TypeError, ValueError) as error:
        raise ValueError("holds what no record holds") from error
    if record["checksum"] != checksum:
        raise ValueError("has another checksum than its content")
    if not isinstance(identity, dict) or not isinstance(result, dict) or key_of(identity) != (key or path.stem):
        raise ValueError("is the record of another identity than its name says")
    return Record(key=key or path.stem, identity=identity, result=result)
