"""Text in and out: where it comes from, the tokens of a model, and what each token looks like."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tintformer.errors import InputError, LoadError, cause
from tintformer.storage.foreign_text import check_characters, read_bytes, read_stream, user_path
from tintformer.storage.foreign_tokenizers import has_tokenizer, open_tokenizer, panics_as_errors
from tintformer.storage.hub_models import main_snapshot
from tintformer.storage.packages import model_directory
from tintformer.storage.unpacking import plain_copy

MIN_TOKENS = 4
"""Fewer cannot be split into a training part with a target and an evaluation part."""

MAX_BYTES = 2**26
"""Of a text: tens of millions of tokens, which no context holds."""


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A text as a model reads it."""

    input_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    """What each token stands for in the text; a special token by its name."""


def read_text(text: str | None = None, file: Path | None = None) -> str:
    """The text itself, or what `file` holds, or standard input where either of them is "-"."""
    if text is not None and file is not None:
        raise InputError("there is a text and a --file; give one of them")
    if text == "-" or (file is not None and str(file) == "-"):
        return _decoded(_standard_input(), "standard input")
    if file is not None:
        return _decoded(read_bytes(user_path(file), MAX_BYTES, "a text file"), str(file))
    if text is None:
        raise InputError("there is no text: give it as an argument, with --file, or give - and pipe it in")
    return _not_empty(check_characters(text, "the text", "give it in UTF-8, or in a file with --file"), "the text")


def _standard_input() -> bytes:
    if sys.stdin is None:  # closed by the shell
        raise InputError("standard input is closed; give a text or --file")
    return read_stream(sys.stdin.buffer, "standard input", MAX_BYTES)


def _decoded(data: bytes, source: str) -> str:
    """UTF-8 without its mark, and without the line break that editors and `echo` put at the end."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source} is no UTF-8 text (byte {error.start} is {data[error.start]:#04x}); give a text file in UTF-8"
        ) from error
    if "\0" in text:
        raise InputError(f"{source} is a binary file (it holds a zero byte); give a text file in UTF-8")
    return _not_empty(text.removesuffix("\n").removesuffix("\r"), source)


def _not_empty(text: str, source: str) -> str:
    if not text.strip():
        raise InputError(f"{source} is empty; give a few sentences")
    return text


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


def encode(tokenizer: Any, text: str, *, at_least: int = MIN_TOKENS) -> Encoded:
    """Tokens of a text, with the special tokens that the tokenizer itself adds; a BOS never stands there twice."""
    offsets = bool(tokenizer.is_fast)
    with panics_as_errors("the tokenizer"):
        encoding = tokenizer(text, return_offsets_mapping=offsets, verbose=False)
    ids: list[int] = list(encoding["input_ids"])
    spans: list[tuple[int, int]] = list(encoding["offset_mapping"]) if offsets else [(0, 0)] * len(ids)
    if ids[:2] == [tokenizer.bos_token_id] * 2:
        ids, spans = ids[1:], spans[1:]
    if len(ids) < at_least:
        count = "1 token" if len(ids) == 1 else f"{len(ids)} tokens"
        raise InputError(f"the text has {count}; at least {at_least} are needed, so give a longer one")
    # A span keeps the space before a word, which sentencepiece drops when it decodes a token alone.
    tokens = [text[start:end] or decode(tokenizer, [token]) for token, (start, end) in zip(ids, spans, strict=True)]
    return Encoded(input_ids=tuple(ids), tokens=tuple(tokens))


def decode(tokenizer: Any, ids: list[int]) -> str:
    """The text of some tokens, special ones by name."""
    with panics_as_errors("the tokenizer"):
        return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))


def decode_continuation(tokenizer: Any, ids: list[int], start: int) -> str:
    """What the tokens from `start` on add to the text of those before, a leading space included."""
    whole, beginning = decode(tokenizer, ids), decode(tokenizer, ids[:start])
    return whole.removeprefix(beginning) if whole.startswith(beginning) else decode(tokenizer, ids[start:])
