"""GGUF files unpacked once: the same model as safetensors in the cache, which loads in a fraction of the time.

transformers reads a GGUF file with loops in Python, and calls what comes out quantised, so that it cannot be saved. The
copy is a plain model with the same numbers, bit for bit, its configuration and its tokenizer. A note beside it says of
which file it was made, and has the SHA-256 of that file and of every file of the copy:

    CACHE/unpacked/NAME-HASH/     HASH: of the path of the GGUF file, so that a new file there takes the old one's place
        unpacked.json             the note
        config.json, model.safetensors, tokenizer.json, ...

A copy counts as long as size and time of modification of all these files are as noted, or else their hashes. One that
is damaged, or of a file that has changed since, is made again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tintformer.errors import LoadError, TintWarning, cause
from tintformer.storage.cache_paths import cache_directory, sha256_of
from tintformer.storage.foreign_tokenizers import open_tokenizer
from tintformer.storage.staging import settle
from tintformer.storage.untrusted_files import read_foreign_json, to_file_name
from tintformer.storage.whole_files import make_directory, whole_directory
from tintformer.version import __version__

NOTE = "unpacked.json"
FORMAT = 1
"""Of the note and of what stands beside it; another one makes every copy anew."""
LARGEST = 2**31
"""Bytes of a copy. Larger models are read from their GGUF file: whoever asks for one in half precision may have neither
the memory nor the disk for it in float32."""
_OF_THE_WRITER = ("architectures", "dtype", "torch_dtype", "transformers_version")
"""Of a configuration: what `save_pretrained` fills in."""


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """By what a file is known again."""

    size: int
    modified: int
    """In nanoseconds, as the file system has it."""
    sha256: str

    @classmethod
    def of(cls, file: Path) -> Fingerprint:
        found = file.stat()
        return cls(size=found.st_size, modified=found.st_mtime_ns, sha256=sha256_of(file))

    def fits(self, file: Path, *, thorough: bool) -> bool:
        """Whether this is still the file; its bytes are read only if `thorough` or if it was written to since."""
        found = file.stat()
        if found.st_size != self.size:
            return False
        return (found.st_mtime_ns == self.modified and not thorough) or sha256_of(file) == self.sha256


def plain_copy(file: Path, *, thorough: bool = False) -> Path | None:
    """The directory with the copy of a GGUF file, if there is one that is whole and of this very file."""
    place = _place(file)
    settle(place.parent)  # what a process that was killed has left may be as large as the copy
    try:
        note = read_foreign_json(place / NOTE)
        source, files = Fingerprint(**note["source"]), note["files"]
        copied = {place / name: Fingerprint(**found) for name, found in files.items()}
        if note["format"] != FORMAT or {*os.listdir(place)} != {*files, NOTE}:
            return None
        whole = all(known.fits(path, thorough=thorough) for path, known in [(file, source), *copied.items()])
    except (LoadError, OSError, TypeError, KeyError, AttributeError):
        return None  # there is none, or its note is no note
    return place if whole else None


def unpack(file: Path, num_bytes: int, read: Callable[[Path], Any], *, thorough: bool = False) -> Path:
    """The directory to read a model from: the copy of its GGUF file, made if need be, or else the file's own.

    `num_bytes` are those of the weights in float32, and `read` reads a model in float32 from the file's directory or
    from the copy's. Of several processes one makes the copy, and the others wait for it.
    """
    from filelock import FileLock
    from safetensors import SafetensorError

    place = _place(file)
    if num_bytes > LARGEST:
        return file.parent
    try:
        make_directory(place.parent)
        with FileLock(place.parent / f".{place.name}.lock"):
            if found := plain_copy(file, thorough=thorough):
                return found
            # Rounded up: configuration, tokenizer and headers come on top of the weights.
            if shutil.disk_usage(place.parent).free < num_bytes + 2**26:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            _make_copy(file, place, read)
    except (OSError, NotImplementedError, SafetensorError) as error:  # NotImplementedError: no locks on this system
        reason = getattr(error, "strerror", None) or cause(error)
        warnings.warn(
            f"{file} is read anew at every load, which takes long: no copy of it can be kept in {place.parent} "
            f"({reason}); set TINTFORMER_CACHE to a directory that can be written",
            TintWarning,
            stacklevel=2,
        )
        return file.parent
    return place


def _place(file: Path) -> Path:
    path = os.path.realpath(file)
    readable = to_file_name(Path(path).parent.name or "model")
    key = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    return cache_directory() / "unpacked" / f"{readable}-{key}"


def _make_copy(file: Path, place: Path, read: Callable[[Path], Any]) -> None:
    source = Fingerprint.of(file)
    model = read(file.parent)
    with whole_directory(place) as new:
        model.save_pretrained(new)
        if not _is_same_model(model, read(new)):
            raise OSError("as safetensors it would be another model")
        with suppress(LoadError):  # a model without a tokenizer is a model all the same
            _save_tokenizer(open_tokenizer(file.parent), new)
        note = {
            "format": FORMAT,
            "source": asdict(source),
            "files": {path.name: asdict(Fingerprint.of(path)) for path in sorted(new.iterdir())},
            "tintformer": __version__,
        }
        (new / NOTE).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")


def _is_same_model(model: Any, other: Any) -> bool:
    """Whether two models have the same settings, and the same weights to the bit."""
    import torch

    ours, theirs = model.state_dict(), other.state_dict()
    return (
        _settings(model.config) == _settings(other.config)
        and _settings(model.generation_config) == _settings(other.generation_config)
        and ours.keys() == theirs.keys()
        and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    )


def _settings(config: Any) -> dict[str, Any]:
    from tintformer.storage.saved_configs import plain_settings  # brings torch, which commands take up late

    left_out = (*_OF_THE_WRITER, "_from_model_config")
    return {key: value for key, value in plain_settings(config).items() if key not in left_out}


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer, unless it would come back as another: then it is read from the GGUF file as before."""
    before = {*os.listdir(folder)}
    tokenizer.save_pretrained(str(folder))
    if _cut(open_tokenizer(folder)) != _cut(tokenizer):
        for name in {*os.listdir(folder)} - before:
            (folder / name).unlink()


def _cut(tokenizer: Any) -> Any:
    """All that decides how a tokenizer cuts a text, and which tokens it calls special."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = sorted(tokenizer.get_vocab().items()) if backend is None else backend.to_str()
    return content, tokenizer.special_tokens_map, tokenizer.chat_template
