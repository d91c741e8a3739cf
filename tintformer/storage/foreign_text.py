"""Paths that a user or a file names, and the text in them: bounded, of files that have an end, in UTF-8."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

from tintformer.errors import InputError, TintError, brief
from tintformer.storage.foreign_files import check_regular, given_path

MAX_TEXT = 2**30
"""Bytes of a file of data. The largest text of the paper's, WikiText-103 to train on, is half of it."""
_DESCRIPTORS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""What the shell has opened for the command: a pipe there is `<(...)`, and has an end."""
_AT_ONCE = 2**20


def user_path(path: str | os.PathLike[str], error: type[TintError] = InputError) -> Path:
    """A path with ~ written out; that of a user who is not there stays as it is, and is not found."""
    found = given_path(path, error)
    try:
        return found.expanduser()
    except RuntimeError:
        return found


def read_bytes(
    path: Path, max_bytes: int = MAX_TEXT, what: str = "a file", error: type[TintError] = InputError
) -> bytes:
    """All of a regular file, or of a pipe that the shell has opened: a device has no end, a FIFO may never answer."""
    if "\0" in str(path):
        raise error(f"cannot read {brief(str(path))}: no path holds a zero byte; give the path of {what}")
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        piped = kind in (stat.S_IFIFO, stat.S_IFSOCK) and str(path).startswith(_DESCRIPTORS)
        if kind != stat.S_IFDIR and not piped:  # a directory says so itself
            check_regular(path, max_bytes, error)
        with path.open("rb") as stream:
            return read_stream(stream, str(path), max_bytes, error)
    except OSError as failure:
        raise error(f"cannot read {path}: {failure.strerror or failure}; give the path of {what}") from failure


def read_stream(stream: IO[bytes], where: str, max_bytes: int, error: type[TintError] = InputError) -> bytes:
    """All of a stream that has an end; what goes on for ever is refused before it fills the memory."""
    data = bytearray()
    while part := stream.read(_AT_ONCE):
        data += part
        if len(data) > max_bytes:
            raise error(f"{where} holds more than the {max_bytes} bytes that are read; give a shorter text")
    return bytes(data)


def check_characters(text: str, what: str, remedy: str) -> str:
    """A text that can be written down: halves of characters come from JSON, and from arguments in other encodings."""
    try:
        text.encode()
    except UnicodeEncodeError as failure:
        raise InputError(f"{what} holds half a character; {remedy}") from failure
    return text
