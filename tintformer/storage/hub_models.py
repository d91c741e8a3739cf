"""Fetching a model of the Hugging Face hub into its own cache: safetensors, configuration and tokenizer alone."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from tintformer.errors import LoadError, cause
from tintformer.storage.cache_paths import converted_note, is_complete, sha256_of
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
_CONVERTER = "SFconvertbot"
"""The hub's own account that offers safetensors of older models, as open pull requests."""
_CONVERSION = "Adding `safetensors` variant of this model"


def fetch_hub_model(name: str) -> tuple[Path, bool]:
    """Where the model lies, and whether something was fetched; False if all of it was there, as its hashes say.

    Of a model without safetensors in its main revision those are taken that the hub's converter offers.
    """
    found = cached_snapshot(name)
    if found is not None and not _remove_damaged(found):
        return found, False
    try:
        return _snapshot(name), True
    except LoadError:
        raise
    except Exception as error:  # whatever keeps the hub from answering, the user is told the same
        raise LoadError(
            f"cannot fetch {name!r} from the hub ({cause(error)}); check the name and the connection, then run "
            f"`tint fetch {name}` again: what is here already stays"
        ) from error


def cached_snapshot(name: str) -> Path | None:
    """A complete copy in the cache of the hub, of the main revision or of a converted one."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    from tintformer.storage.cache_paths import converted_directory

    try:
        main = Path(snapshot_download(name, allow_patterns=PATTERNS, local_files_only=True))
    except LocalEntryNotFoundError:
        return converted_directory(name)
    return main if is_complete(main) else converted_directory(name)


def _snapshot(name: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    files = [file.rfilename for file in HfApi().model_info(name, timeout=10).siblings or ()]
    converted = None if any(map(_WEIGHTS.fullmatch, files)) else _conversion(name)
    place = Path(snapshot_download(name, revision=converted, allow_patterns=PATTERNS))
    if _remove_damaged(place):
        snapshot_download(name, revision=converted, allow_patterns=PATTERNS)
    if not is_complete(place):
        raise LoadError(f"{name} is incomplete on the hub: config.json or some of its safetensors are missing")
    if converted:
        note = converted_note(name)
        note.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(note) as temporary:
            temporary.write_text(f"{place}\n", encoding="utf-8")
    return place


def _conversion(name: str) -> str:
    """The revision with the safetensors of a model whose own weights are pickled."""
    from huggingface_hub import HfApi

    offers = HfApi().get_repo_discussions(
        name, author=_CONVERTER, discussion_type="pull_request", discussion_status="open"
    )
    for offer in offers:
        if offer.author == _CONVERTER and offer.title == _CONVERSION and offer.git_reference:
            return offer.git_reference
    raise LoadError(
        f"{name} has no safetensors on the hub, and pickled weights are not fetched; convert it where you trust it "
        "(save_pretrained) and give the directory, or choose another model"
    )


def _remove_damaged(snapshot: Path) -> list[Path]:
    """Remove files whose content is not what the hub's cache calls it, by SHA-256 or, for small ones, git's hash."""
    damaged: list[Path] = []
    for file in sorted(snapshot.iterdir()):
        blob = file.resolve()
        if blob.is_file() and re.fullmatch(r"[0-9a-f]{64}", blob.name):
            right = sha256_of(blob) == blob.name
        elif blob.is_file() and re.fullmatch(r"[0-9a-f]{40}", blob.name):
            data = blob.read_bytes()
            right = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == blob.name
        else:  # a file system without links: the cache does not tell
            continue
        if not right:
            damaged.append(file)
            blob.unlink()
            file.unlink(missing_ok=True)
    return damaged
