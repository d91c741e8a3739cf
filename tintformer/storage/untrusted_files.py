"""Files that others wrote and names that users gave: read with limits on size and depth, and refused in one line.

A path that somebody else chose may be a device that never ends, a FIFO that never answers, or a link to one of them;
JSON may be nested deeper than Python follows, or hold numbers that take minutes to read. Each becomes one line.

A few lines of YAML can stand for more than memory holds: an alias repeats what its anchor marks, and aliases nest.

A run, a record or a description may have been written by anybody, and so may the name of a model. As the name of a file
it could lead out of its directory, overwrite what is there, hide itself or stop a file system from working.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from tintformer.errors import InputError, LoadError, TintError, brief, cause

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


MAX_YAML = 2**20
"""Bytes. A description with all its prompts has a thousand."""
MAX_NODES = 10_000
"""Keys and values, with aliases written out."""
MAX_DEPTH = 32


def parse_foreign_yaml(data: bytes, where: str) -> Any:
    """YAML as plain Python values; whatever is wrong with it is an `InputError` of one line."""
    import yaml

    if len(data) > MAX_YAML:
        raise InputError(f"{where} has {len(data)} bytes, and at most {MAX_YAML} are read; give the right file")
    try:
        return yaml.load(data.decode("utf-8-sig"), _loader())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{where} line {line}: byte {data[error.start]:#04x} is no UTF-8; save it so") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where} line {mark.line + 1}" if mark is not None else where
        reason = cause(Exception(getattr(error, "problem", None) or error))
        raise InputError(f"{place}: this is no YAML ({reason})") from error
    except (
        Exception
    ) as error:  # a date such as 2024-13-45, a number of too many digits, `!!int x`: anything of Python's
        raise InputError(f"{where}: a value is not what it says it is ({cause(error)}); put it in quotes") from error


def _loader() -> Any:
    """A `SafeLoader`, which makes no objects but plain ones, that counts what it reads."""
    import yaml

    class Loader(yaml.SafeLoader):
        def __init__(self, stream: Any):
            super().__init__(stream)
            self.nodes = self.depth = 0
            self.sizes: dict[int, int] = {}
            """By the id of a node, how many there are in it, aliases written out."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            event, before = self.peek_event(), self.nodes
            self.depth += 1
            node: Any = super().compose_node(parent, index)
            self.depth -= 1
            if isinstance(event, yaml.AliasEvent):
                if id(node) not in self.sizes:
                    raise _fault("an alias stands inside of what it repeats", event)
                self.nodes += self.sizes[id(node)]
            else:
                self.nodes += 1
                self.sizes[id(node)] = self.nodes - before
            if self.nodes > MAX_NODES:
                raise _fault(f"there are more than {MAX_NODES} keys and values, aliases written out", event)
            return node

        def compose_scalar_node(self, anchor: Any) -> Any:
            node: Any = super().compose_scalar_node(anchor)
            try:
                node.value.encode()
            except UnicodeEncodeError:
                raise _fault(f"{brief(node.value)} holds half a character", node) from None
            return node

        def compose_sequence_node(self, anchor: Any) -> Any:
            self.check_depth()
            return super().compose_sequence_node(anchor)

        def compose_mapping_node(self, anchor: Any) -> Any:
            self.check_depth()
            node: Any = super().compose_mapping_node(anchor)
            # YAML itself lets the last of two equal keys win without a word. Here, before merged keys are put in.
            seen: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if isinstance(key.value, str) and (key.tag, key.value) in seen:
                    raise _fault(f"the key {brief(key.value)} is there twice", key)
                seen.add((key.tag, str(key.value) if isinstance(key.value, str) else ""))
            return node

        def check_depth(self) -> None:
            if self.depth > MAX_DEPTH:
                raise _fault(f"it is nested more than {MAX_DEPTH} deep", self.peek_event())

    def _fault(problem: str, at: Any) -> yaml.MarkedYAMLError:
        return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)

    return Loader


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
