"""Files that others wrote, opened only if they are regular and of a bounded size, and the JSON in them.

A path that somebody else chose may be a device that never ends, a FIFO that never answers, or a link to one of them;
JSON may be nested deeper than Python follows, or hold numbers that take minutes to read. Each becomes one line.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tintformer.errors import InputError, LoadError, TintError, brief

MAX_JSON = 2**26
"""Bytes. The largest tokenizer.json of the supported families, Gemma's, is half of it."""
_MAX_CONTAINERS = 2**22
"""Of arrays and objects in one file: an empty one takes two bytes on disk and more than thirty times that in memory."""
_MAX_DEPTH = 64
"""Of arrays and objects in one another. Copies and comparisons take several of Python's thousand frames for each."""
_MAX_DIGITS = 100
"""Of an integer. Python reads 4,300 and raises an error when it prints two of them added up."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def given_path(path: str | os.PathLike[str], error: type[TintError] = InputError) -> Path:
    """A path that a caller gave; what can be none is refused: another type, a zero byte, a name that is too long."""
    shown = brief(str(path) if isinstance(path, Path) else path)
    try:
        os.lstat(Path(path))
    except (TypeError, ValueError) as cause:
        raise error(f"{shown} cannot be a path: {cause}; give the path of a file or a directory") from cause
    except OSError as cause:
        if cause.errno == errno.ENAMETOOLONG:
            raise error(f"{shown} cannot be a path: {cause.strerror}; choose a shorter name") from cause
    return Path(path)  # whether anything is there is for who opens it


def check_regular(path: Path, max_bytes: int | None = None, error: type[TintError] = LoadError) -> int:
    """The size of a file, which is not opened; refused is what is no regular file, also behind links, or is larger."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise error(f"there is no {path}; give the path of a file that exists") from None
    except (OSError, ValueError) as cause:  # a ValueError: the path holds a zero byte
        raise error(f"cannot read {path}: {getattr(cause, 'strerror', None) or cause}") from cause
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "of an unknown kind")
        raise error(f"{path} is {kind}, and only regular files are read; put a file there")
    if max_bytes is not None and found.st_size > max_bytes:
        raise error(f"{path} has {found.st_size} bytes, and at most {max_bytes} are read; put the right file there")
    return found.st_size


def read_foreign_json(path: Path, *, max_bytes: int = MAX_JSON, error: type[TintError] = LoadError) -> Any:
    """What a JSON file holds; whatever is wrong with the file or its JSON is an `error` of one line."""
    # Never more than its size: what the kernel shows as an empty file may go on for ever.
    size = check_regular(path, max_bytes, error)
    try:
        with path.open("rb") as stream:
            data = stream.read(size)
    except OSError as cause:
        raise error(f"cannot read {path}: {cause.strerror or cause}") from cause
    return parse_foreign_json(data, str(path), error=error)


def parse_foreign_json(data: bytes | str, where: str, *, error: type[TintError] = LoadError) -> Any:
    """JSON as Python values; `where` it stands is for the message."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        if text.count("[") + text.count("{") > _MAX_CONTAINERS:
            raise ValueError(f"it holds more than {_MAX_CONTAINERS} arrays and objects")
        value = json.loads(text, parse_int=_parse_int)
        if _is_deep(value):
            raise RecursionError
        if _SURROGATE.search(text):  # pairs of them are characters, and one alone cannot be written anywhere
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise error(f"cannot read {where} as JSON: it is nested too deeply; put the right file there") from None
    except UnicodeDecodeError as cause:
        raise error(f"cannot read {where} as JSON: byte {cause.start} is no UTF-8; save it in UTF-8") from cause
    except UnicodeEncodeError as cause:
        code = cause.object[cause.start]
        raise error(f"cannot read {where} as JSON: {code!r} is half a character; put the right file there") from cause
    except ValueError as cause:
        raise error(f"cannot read {where} as JSON: {cause}; put the right file there") from cause
    return value


def _is_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH + 1):
        level = [each for held in level if isinstance(held, dict | list) for each in _items(held)]
        if not level:
            return False
    return True


def _items(held: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return held.values() if isinstance(held, dict) else held


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"it holds an integer of {len(digits)} digits")
    return int(digits)


_PLAIN = 2**22
_SIZES: dict[str, int | None] = {
    "config.json": _PLAIN,
    "config.*.json": _PLAIN,
    "generation_config.json": _PLAIN,
    "model.safetensors": None,
    "model.safetensors.index.json": MAX_JSON,
    "model-*.safetensors": None,
    "*.gguf": None,
    "tokenizer.json": MAX_JSON,
    "tokenizer.*.json": MAX_JSON,
    "tokenizer_config.json": MAX_JSON,
    "tokenizer.model*": MAX_JSON,
    "tekken.json": MAX_JSON,
    "tiktoken.model": MAX_JSON,
    "special_tokens_map.json": _PLAIN,
    "added_tokens.json": _PLAIN,
    "chat_template.*": _PLAIN,
    "additional_chat_templates/*": _PLAIN,
    "vocab.json": MAX_JSON,
    "vocab.txt": MAX_JSON,
    "merges.txt": MAX_JSON,
    "spiece.model": MAX_JSON,
    "sentencepiece*.model": MAX_JSON,
}
"""What transformers opens in a model's directory, by name, and how many bytes of it are read at most."""


def check_model_files(directory: Path) -> None:
    """Refuse a directory in which one of the files that transformers opens is no regular file, or is too large."""
    for pattern, size in _SIZES.items():
        for file in sorted(directory.glob(pattern)):
            check_regular(file, size)
