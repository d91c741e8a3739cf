"""`find_tokenizer`: the tokenizer that belongs to a model, by the model's name or path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tintformer.errors import LoadError, cause
from tintformer.storage.foreign_tokenizers import has_tokenizer, open_tokenizer
from tintformer.storage.hub_models import main_snapshot
from tintformer.storage.packages import model_directory
from tintformer.storage.unpacking import plain_copy
from tintformer.storage.untrusted_files import user_path


def find_tokenizer(name: str) -> Any:
    """The tokenizer of a model: from its directory or its GGUF file, from the package, or from the cache or the hub."""
    given = user_path(name)
    directory = given if given.exists() else model_directory(name) or _find_on_hub(name)
    return _usable(open_tokenizer(_plain(directory)), name)


def _plain(directory: Path) -> Path:
    """Where the files of a tokenizer are: those of a GGUF file that was unpacked stand beside its copy."""
    if not has_tokenizer(directory):
        for file in sorted(directory.glob("*.gguf"))[:1]:
            if (copy := plain_copy(file)) is not None and has_tokenizer(copy):
                return copy
    return directory


def find_tokenizer_of_object(name: str) -> Any:
    """The tokenizer of a model object by its `name_or_path`, if that is on this machine; nothing is fetched."""
    directory = _local_directory(name) if name else None
    if directory is None or not _holds_tokenizer(directory):
        raise LoadError(
            f"{name or 'the model'} is a model object, and no tokenizer of that name is on this machine; give it: "
            "tokenizer=..."
        )
    return _usable(open_tokenizer(_plain(directory)), name)


def _local_directory(name: str) -> Path | None:
    given = user_path(name)
    if given.is_dir():
        return given
    return model_directory(name) or main_snapshot(name, local=True, weights=False)


def _holds_tokenizer(directory: Path) -> bool:
    return has_tokenizer(directory) or any(directory.glob("*.gguf"))


def _find_on_hub(name: str) -> Path:
    """The directory in the hub's local cache, if a tokenizer is there; otherwise the hub is asked for its files."""
    found = main_snapshot(name, local=True, weights=False)
    if found is not None and has_tokenizer(found):
        return found
    try:
        fetched = main_snapshot(name, weights=False)
    except Exception as error:  # the hub's client raises its own errors, those of httpx and plain OSErrors
        raise LoadError(
            f"cannot read the tokenizer of {name}: {cause(error)}; if its files are damaged, copy them again"
        ) from error
    assert fetched is not None
    return fetched


def _usable(tokenizer: Any, name: str) -> Any:
    # Without its files transformers hands out a tokenizer that knows special tokens alone.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise LoadError(f"the tokenizer of {name} knows no words; its vocabulary file is missing")
    # transformers takes it as it stands in tokenizer_config.json, and compares every text's length with it.
    if not isinstance(longest := tokenizer.model_max_length, int | float):
        kind = type(longest).__name__
        raise LoadError(f"the tokenizer of {name} has a model_max_length that is a {kind}; make it a number")
    return tokenizer
