"""Models of the Hugging Face hub, fetched into its own cache: safetensors, configuration and tokenizer alone."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from tintformer.console import hand_over
from tintformer.errors import LoadError, cause
from tintformer.storage.cache_paths import cache_directory, sha256_of
from tintformer.storage.untrusted_files import read_foreign_json
from tintformer.storage.whole_files import whole_file

# By name, not by ending: repositories hold other formats and second copies beside what transformers reads, and
# pickles (.bin, .pt) or code could run something when they are opened.
PATTERNS = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-?????-of-?????.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
]
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_HUB_ID = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*")
_CONVERTER = "SFconvertbot"
"""The hub's own account that offers safetensors of older models, as open pull requests."""
_CONVERSION = "Adding `safetensors` variant of this model"


_CLOSED: ContextVar[bool] = ContextVar("the hub is not to be asked", default=False)


@contextmanager
def without_hub() -> Generator[None]:
    """Ask the hub for nothing meanwhile: names come from files that others may have written."""
    token = _CLOSED.set(True)
    try:
        yield
    finally:
        _CLOSED.reset(token)


def require_hub(name: str) -> None:
    """Refuse to ask the hub for something within `without_hub`."""
    if _CLOSED.get():
        raise LoadError(
            f"{name} is not on this machine, and the hub is not asked for what a file names; `tint fetch {name}` first"
        )


def hub_is_found() -> bool:
    """Whether the hub's name leads to an address; behind a proxy nobody here can tell, and it counts as found."""
    from huggingface_hub import constants

    host = urlsplit(constants.ENDPOINT).hostname
    if host is None or getproxies():
        return True
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


def is_hub_id(name: str) -> bool:
    """Whether a name can be one of the hub: a word, or two with a slash between them."""
    return len(name) <= 96 and _HUB_ID.fullmatch(name) is not None


def fetch_hub_model(name: str) -> tuple[Path, bool]:
    """The model's directory, and whether something was fetched; False if all files were there with the right hashes.

    Of a model without safetensors in its main revision those are taken that the hub's converter offers.
    """
    found = cached_snapshot(name)
    if found is not None and not _remove_damaged(found):
        return found, False
    try:
        return _download_snapshot(name), True
    except LoadError:
        raise
    except Exception as error:  # the hub's client raises its own errors, those of httpx and plain OSErrors
        from tintformer.storage.configs import near_model  # which knows of packages, and they of this module

        raise LoadError(
            f"cannot fetch {name!r} from the hub ({cause(error)}); check the name and the connection, then run "
            f"`tint fetch {name}` again: what is here already stays{near_model(name)}"
        ) from error


def main_snapshot(name: str, *, local: bool = False, weights: bool = True) -> Path | None:
    """The directory of a model's main revision; `local`: as it is in the cache of the hub, None if it is not there."""
    from huggingface_hub import snapshot_download

    if local and not is_hub_id(name):
        return None
    if not local:
        require_hub(name)
        hand_over(f"downloading {name} from the hub")
    patterns = PATTERNS if weights else [pattern for pattern in PATTERNS if "safetensors" not in pattern]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=local))
    except OSError:  # the client's own error for what is not in the cache is one
        if local:
            return None
        raise


def find_on_hub(name: str) -> Path:
    """The directory in the local cache, if it is complete; otherwise the hub is asked once, without retries."""
    if found := _complete_snapshot(name):
        return found
    require_hub(name)
    with _asking(name):
        _ask_for(name)
        fetched = main_snapshot(name)
    assert fetched is not None
    return fetched


def require_on_hub(name: str) -> None:
    """Refuse a name that is neither in the local cache nor on the hub; nothing is fetched."""
    if _complete_snapshot(name) is None:
        with _asking(name):
            _ask_for(name)


def _complete_snapshot(name: str) -> Path | None:
    found = main_snapshot(name, local=True)
    return found if found is not None and is_complete(found) else None


def _ask_for(name: str) -> None:
    from huggingface_hub import HfApi

    HfApi().model_info(name, timeout=10)


@contextmanager
def _asking(name: str) -> Generator[None]:
    try:
        yield
    except Exception as error:  # the hub's client raises its own errors, those of httpx and plain OSErrors
        from tintformer.storage.configs import near_model  # which knows of packages, and they of this module

        raise LoadError(
            f"cannot load {name!r}: it is no local directory, it is not in the local cache, and the hub does not "
            f"give it ({cause(error)}); check the name and the connection, or give a directory{near_model(name)}"
        ) from error


def cached_snapshot(name: str) -> Path | None:
    """A complete copy in the cache of the hub, of the main revision or of a converted one."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        main = Path(snapshot_download(name, allow_patterns=PATTERNS, local_files_only=True))
    except LocalEntryNotFoundError:
        return converted_directory(name)
    return main if is_complete(main) else converted_directory(name)


def converted_directory(name: str) -> Path | None:
    """The snapshot with a hub model's safetensors, if they were fetched from another revision than main."""
    note = _conversion_note(name)
    if not is_hub_id(name) or not note.is_file():
        return None
    directory = Path(note.read_text(encoding="utf-8").strip())
    return directory if is_complete(directory) else None


def _conversion_note(name: str) -> Path:
    # transformers looks for the main revision by name; where another one is must be kept by ourselves.
    return cache_directory() / "hub" / f"{name.replace('/', '--')}.txt"


def is_complete(directory: Path) -> bool:
    """Whether a directory has a configuration and all files of its weights."""
    if not (directory / "config.json").is_file():
        return False
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return (directory / "model.safetensors").is_file()
    try:
        shards = set(read_foreign_json(index)["weight_map"].values())
    except (LoadError, KeyError, TypeError, AttributeError):
        return False
    return all((directory / str(shard)).is_file() for shard in shards)


def _download_snapshot(name: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    files = [file.rfilename for file in HfApi().model_info(name, timeout=10).siblings or ()]
    converted = None if any(map(_WEIGHTS.fullmatch, files)) else _find_conversion(name)
    hand_over(f"downloading {name} from the hub")
    directory = Path(snapshot_download(name, revision=converted, allow_patterns=PATTERNS))
    if _remove_damaged(directory):
        snapshot_download(name, revision=converted, allow_patterns=PATTERNS)
    if not is_complete(directory):
        raise LoadError(f"{name} is incomplete on the hub: config.json or some of its safetensors are missing")
    if converted:
        note = _conversion_note(name)
        with whole_file(note, parents=True) as temporary:
            temporary.write_text(f"{directory}\n", encoding="utf-8")
    return directory


def _find_conversion(name: str) -> str:
    """The revision with the safetensors of a model whose own weights are pickled."""
    from huggingface_hub import HfApi

    offers = HfApi().get_repo_discussions(
        name, author=_CONVERTER, discussion_type="pull_request", discussion_status="open"
    )
    # Anyone can open a pull request with weights of their own, so the author is checked here as well.
    for offer in offers:
        if offer.author == _CONVERTER and offer.title == _CONVERSION and offer.git_reference:
            return offer.git_reference
    raise LoadError(
        f"{name} has no safetensors on the hub, and pickled weights are not fetched; convert it where you trust it "
        "(save_pretrained) and give the directory, or choose another model"
    )


def _remove_damaged(snapshot: Path) -> list[Path]:
    """Remove files whose content is not what the hub's cache calls it, by SHA-256 or, for small ones, git's hash."""
    # The client checks sizes alone, and not at all what it finds in its cache.
    damaged: list[Path] = []
    for file in sorted(snapshot.iterdir()):
        blob = file.resolve()
        if blob.is_file() and re.fullmatch(r"[0-9a-f]{64}", blob.name):
            right = sha256_of(blob) == blob.name
        elif blob.is_file() and re.fullmatch(r"[0-9a-f]{40}", blob.name):
            data = blob.read_bytes()
            right = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == blob.name
        else:  # a file system without links: the cache keeps no hash
            continue
        if not right:
            damaged.append(file)
            blob.unlink()
            file.unlink(missing_ok=True)
    return damaged
