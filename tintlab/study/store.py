"""Records: one file a unit of work, named after what it depends on, there whole or not at all.

Several processes may use one directory. A record that is there stays: whoever has the same work done again leaves it as
it is, and of two that finish in the same moment either is whole. NaN and the infinities survive, as strict JSON.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
import stat
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tintformer.errors import InputError, TintWarning
from tintformer.storage.staging import settle
from tintformer.storage.untrusted_files import read_foreign_json
from tintformer.storage.whole_files import whole_file

FLOAT = "$float"
"""The one key of the object that stands for NaN or an infinity, which JSON itself cannot write."""
UnitResult = dict[str, Any]
"""What comes out of a unit, as JSON can keep it."""
_WRITING = threading.Lock()
"""Of the threads of one process the first keeps its record, as whoever has read it expects."""


def to_json(value: Any, where: str = "") -> Any:
    """A value as strict JSON has it: NaN and the infinities become {"$float": "nan" | "inf" | "-inf"}, tuples lists.

    What would come back as something else (a key that is no string, a tensor, a path) is an error, because a result
    that changes on its way through a file cannot be trusted.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {FLOAT: str(float(value))}
    if isinstance(value, list | tuple):
        return [to_json(item, f"{where}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key == FLOAT:
                raise InputError(f"{where or 'the record'} has the key {key!r}; keys are strings other than {FLOAT!r}")
        return {key: to_json(item, f"{where}.{key}" if where else key) for key, item in value.items()}
    kind = type(value).__name__
    raise InputError(f"{where or 'the record'} is a {kind}, which JSON cannot keep; make it a number, string or list")


def from_json(value: Any) -> Any:
    """The inverse of `to_json`, but that tuples come back as lists."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if isinstance(value, dict):
        return float(value[FLOAT]) if set(value) == {FLOAT} else {key: from_json(item) for key, item in value.items()}
    return value


def canonical(value: Any) -> str:
    """The one spelling of a value: sorted keys, no spaces, ASCII, numbers as Python's shortest round trip."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256(text: str) -> str:
    """Of the text's UTF-8 bytes, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def key_of(identity: dict[str, Any]) -> str:
    """The name of the record of this identity."""
    return sha256(canonical(identity))


@dataclass(frozen=True, kw_only=True)
class ExperimentRecord:
    """What was done and what came out."""

    key: str
    identity: dict[str, Any]
    result: UnitResult


class RecordStore:
    """A directory of records; it is made when the first one is saved."""

    def __init__(self, directory: str | os.PathLike[str]):
        self.directory = Path(directory)

    def find(self, identity: dict[str, Any]) -> UnitResult | None:
        """The result that is stored for this identity, or None; a corrupted one is set aside and counts as missing."""
        path = self._path(key_of(identity))
        settle(path.parent)  # a process may have been killed between its record's last byte and its own end
        record = self._whole(path)
        return None if record is None else record.result

    def save(self, identity: dict[str, Any], result: UnitResult) -> None:
        """Keep a result, unless there is one for this identity already."""
        # The checksum tells a record that was damaged later from one that was never whole, which cannot be.
        content = {"identity": to_json(identity, "identity"), "result": to_json(result, "result")}
        text = json.dumps(content | {"checksum": _checksum(identity, result)}, allow_nan=False) + "\n"
        path = self._path(key_of(identity))
        with _WRITING:
            # The first record stays: whoever has read it has computed with its digits.
            if self.find(identity) is not None:
                return
            try:
                with whole_file(path, parents=True) as temporary, temporary.open("w", encoding="ascii") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())  # a rename may outlive a loss of power that the content does not
            except OSError as error:
                raise InputError(f"cannot write {path}: {error.strerror}; choose another directory") from error

    def __iter__(self) -> Iterator[ExperimentRecord]:
        """All whole records, by key."""
        for path in self.paths():
            if (record := self._whole(path)) is not None:
                yield record

    def paths(self) -> list[Path]:
        """The files of all records, damaged ones included, by key."""
        return sorted(self.directory.glob("[0-9a-f][0-9a-f]/[!.]*.json"))

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key}.json"

    def _whole(self, path: Path) -> ExperimentRecord | None:
        try:
            return read_record(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}; make it readable or remove it") from error
        except ValueError as error:
            return self._set_aside(path, str(error))

    def _set_aside(self, path: Path, reason: str) -> ExperimentRecord | None:
        """Move a corrupted record out of the way and say so; the one who moves it is the one who says it."""
        aside = self.directory / "corrupt" / f"{path.stem}.{secrets.token_hex(8)}.json"
        try:
            aside.parent.mkdir(exist_ok=True)
            os.rename(path, aside)
        except FileNotFoundError:  # another process was faster
            return None
        except OSError as error:
            raise InputError(f"cannot move {path} aside: {error.strerror}; it is corrupted, so remove it") from error
        try:  # Another process may have set the bad one aside and written a good one since it was read.
            record = read_record(aside, path.stem)
        except ValueError:
            warnings.warn(f"{path} {reason}; it is set aside as {aside} and done again", TintWarning, stacklevel=4)
            return None
        os.replace(aside, path)
        return record


def _checksum(identity: Any, result: Any) -> str:
    return sha256(canonical([identity, result]))


def read_record(path: Path, key: str | None = None) -> ExperimentRecord:
    """A record that is what its name and its checksum say; any other raises a ValueError with the reason."""
    if stat.S_ISDIR(path.stat().st_mode):  # no record was ever there, and what is there stays
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        record = read_foreign_json(path, error=InputError)
    except InputError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from error
        raise ValueError("is no JSON: it is truncated or damaged") from error
    if not isinstance(record, dict) or set(record) != {"identity", "result", "checksum"}:
        raise ValueError("is no record: it must hold identity, result and checksum")
    try:
        identity, result = from_json(record["identity"]), from_json(record["result"])
        checksum = _checksum(identity, result)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError("holds what no record holds") from error
    if record["checksum"] != checksum:
        raise ValueError("has another checksum than its content")
    if not isinstance(identity, dict) or not isinstance(result, dict) or key_of(identity) != (key or path.stem):
        raise ValueError("is the record of another identity than its name says")
    return ExperimentRecord(key=key or path.stem, identity=identity, result=result)
