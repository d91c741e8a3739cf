"""Names that somebody else chose, before they become names of files.

A run, a record or a description may have been written by anybody, and so may the name of a model. As the name of a file
it could lead out of its directory, overwrite what is there, hide itself or stop a file system from working.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Any

from tintformer.errors import InputError, brief

LONGEST_NAME = 200
"""UTF-8 bytes. File systems take 255, and the name of a figure and of its temporary file come on top."""
_REFUSED = re.compile(r"""[<>:"/\\|?*]""")
"""What separates directories somewhere, or what Windows refuses."""
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Devices on Windows, whatever ending they have."""


def check_file_name(name: Any, where: str) -> str:
    """The name as it is if any file system can hold it as one file, beside others; `where` is for messages."""
    if reason := _fault(name):
        raise InputError(f"{where} {brief(name)} is no name of a file ({reason}); choose letters, digits, - and _")
    return name


def to_file_name(text: str) -> str:
    """The text itself if it can be a file's name, or one like it: its hash keeps texts apart that are made alike."""
    if not _fault(text):
        return text
    plain = "".join("-" if _REFUSED.match(char) or not char.isprintable() else char for char in text).strip(". ")
    plain = f"_{plain}" if _RESERVED.fullmatch(plain) else plain
    start = plain.encode()[: LONGEST_NAME - 9].decode(errors="ignore")
    return f"{start or 'unnamed'}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"


def same_file_name(one: str, other: str) -> bool:
    """Whether some file system takes two names for one: they differ in case or in how accents are written."""
    return _folded(one) == _folded(other)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _fault(name: Any) -> str | None:
    if not isinstance(name, str) or not name:
        return "it is empty" if name == "" else "it is no text"
    if found := _REFUSED.search(name):
        return f"it holds {found[0]}"
    if not name.isprintable():  # control characters, zero bytes, line breaks, halves of characters, turned writing
        return "it holds a character that cannot be shown"
    if name.startswith(".") or name.endswith((".", " ")) or name.startswith(" "):
        return "it begins with a dot or a space, or ends in one"
    if _RESERVED.fullmatch(name):
        return "it is a device on Windows"
    if len(name.encode()) > LONGEST_NAME:
        return f"it has more than {LONGEST_NAME} bytes"
    return None
