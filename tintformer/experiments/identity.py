"""Identity: what a result depends on, as JSON with one spelling, and the hashes that go into it."""

from __future__ import annotations

import hashlib
import json
import math
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tintformer.errors import InputError, LoadError
from tintformer.version import __version__

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

FLOAT = "$float"
"""The one key of the object that stands for NaN or an infinity, which JSON itself cannot write."""
PRESENTATION = ("bench", "cli", "fetch", "harness", "report", "experiments/tables")
"""Folders of the package that show numbers or bring files and decide no result: a change there leaves records valid."""
_PROVENANCE = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")


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


def weights_hash(model: Any) -> str:
    """SHA-256 over names, shapes, types and bytes of all parameters and persistent buffers; tied ones count once.

    The order in which modules were registered does not matter; the type does: float16 and float32 are other weights.
    """
    import torch

    digest, seen = hashlib.sha256(), set[int]()
    for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if tensor.is_meta:
            raise LoadError(f"{name} has no weights (it is on the meta device); load the model before it is hashed")
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        if plain.numel():
            digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def config_hash(model: Any) -> str:
    """SHA-256 of a model's configuration without its provenance.

    The same weights with other heads, rotary base or norm epsilon give other numbers, and no weight shows it.
    """
    config: dict[str, Any] = {name: value for name, value in model.config.to_dict().items() if name not in _PROVENANCE}
    return sha256(json.dumps(config, sort_keys=True, default=str))


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 of how a tokenizer cuts a text: all of a fast one, the vocabulary of another."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = sorted(tokenizer.get_vocab().items()) if backend is None else backend.to_str()
    return sha256(json.dumps([content, tokenizer.bos_token_id]))


def model_identity(model: Any, tokenizer: Any) -> dict[str, str]:
    """What of a model decides its numbers, whatever it is called."""
    return {
        "weights": weights_hash(model),
        "config": config_hash(model),
        "tokenizer": tokenizer_hash(tokenizer),
    }


@cache
def code_version() -> str:
    """The package's version and a hash of its source, without the folders that only present numbers.

    Any change of the rest makes every record count as another's work: too careful rather than wrong.
    """
    digest = hashlib.sha256()
    for path, content in sorted(_sources(files("tintformer"), "")):
        digest.update(f"{path} {len(content)}\n".encode() + content)
    return f"{__version__}+{digest.hexdigest()[:16]}"


def _sources(folder: Traversable, path: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir() and path + entry.name not in PRESENTATION:
            found += _sources(entry, f"{path}{entry.name}/")
        elif entry.is_file() and entry.name.endswith(".py"):
            found.append((path + entry.name, entry.read_bytes().replace(b"\r\n", b"\n")))
    return found
