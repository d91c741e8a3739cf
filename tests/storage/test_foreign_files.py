# pyright: basic
"""Files that others wrote: regular, bounded, and JSON that is nothing but JSON."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tintformer.errors import InputError, LoadError
from tintformer.storage.foreign_files import MAX_JSON, check_regular, given_path, parse_foreign_json, read_foreign_json


def _socket(path: Path) -> None:
    # The path of a socket is bounded to a hundred bytes, so it is bound from inside its folder.
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.fchdir(before)
        os.close(before)


def _sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(MAX_JSON + 1)


ODD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda path: None, "there is no"),
    "a folder": (Path.mkdir, "is a directory, and only regular files are read"),
    "a pipe": (os.mkfifo, "is a pipe"),
    "a socket": (_socket, "is a socket"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is a device"),
    "a link to itself": (lambda path: path.symlink_to(path), "cannot read"),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), "there is no"),
    "too large": (_sparse, "at most"),
    "what the kernel calls empty": (lambda path: path.symlink_to("/proc/self/environ"), "as JSON"),
}


@pytest.mark.parametrize("case", ODD_FILES)
def test_only_regular_files_of_a_bounded_size_are_read(case: str, tmp_path: Path) -> None:
    make, message = ODD_FILES[case]
    make(tmp_path / "x.json")
    with pytest.raises(LoadError, match=message) as caught:
        read_foreign_json(tmp_path / "x.json")
    assert len(str(caught.value).splitlines()) == 1


NO_PATHS = {
    "too long a name": ("n" * 300, "File name too long; choose a shorter name"),
    "too long a path": ("n/" * 3000, "File name too long; choose a shorter name"),
    "a zero byte": ("a\0b", "null byte; give the path"),
    "half a character": ("\ud800", "surrogates not allowed; give the path"),
    "nothing": (None, "None cannot be a path"),
    "a number": (3, "3 cannot be a path"),
    "bytes": (b"x", "b'x' cannot be a path"),
}


@pytest.mark.parametrize("case", NO_PATHS)
def test_what_can_be_no_path(case: str) -> None:
    path, message = NO_PATHS[case]
    for error in (InputError, LoadError):
        with pytest.raises(error, match=message) as caught:
            given_path(path, error)  # type: ignore[arg-type]
        assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 300


def test_a_path_need_not_be_there(tmp_path: Path) -> None:
    assert given_path(str(tmp_path / "nowhere" / "x")) == tmp_path / "nowhere" / "x"


ODD_JSON: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "as JSON"),
    "nested arrays": (b"[" * 100_000, "nested too deeply"),
    "nested objects": (b'{"a":' * 100_000, "nested too deeply"),
    "a long integer": (b'{"a": ' + b"9" * 5000 + b"}", "integer of 5000 digits"),
    "an integer that Python would read": (b"-" + b"9" * 4000, "integer of 4001 digits"),
    "latin-1": ('{"a": "é"}'.encode("latin-1"), "byte 7 is no UTF-8"),
    "utf-16": ('{"a": 1}'.encode("utf-16"), "no UTF-8"),
    "half a character": (rb'{"a": "\ud800"}', "half a character"),
    "half a character as a key": (rb'{"\uDFFF": 1}', "half a character"),
    "millions of arrays": (b"[" + b"[]," * 2**22 + b"1]", "arrays and objects"),
    "cut": (b'{"a": ', "as JSON"),
}


@pytest.mark.parametrize("case", ODD_JSON)
def test_odd_json_is_one_line(case: str, tmp_path: Path) -> None:
    data, message = ODD_JSON[case]
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_foreign_json(tmp_path / "x.json", error=InputError)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 300


def test_what_is_json_is_read(tmp_path: Path) -> None:
    value = {"a": [1, -2.5, None, True, "é 😀"], "b": {"c": 10**40}}
    for ascii_alone in (True, False):  # an emoji is a pair of surrogates in the first
        (tmp_path / "x.json").write_text(json.dumps(value, ensure_ascii=ascii_alone), encoding="utf-8")
        assert read_foreign_json(tmp_path / "x.json") == value
    assert parse_foreign_json("[1]", "here") == [1]
    assert check_regular(tmp_path / "x.json") == (tmp_path / "x.json").stat().st_size
