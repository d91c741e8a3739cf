"""Text in and out: where it comes from, the tokens of a model, and what each token looks like."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tintformer.errors import InputError, LoadError, cause
from tintformer.storage.packages import model_directory

MIN_TOKENS = 4
"""Fewer cannot be split into a training part with a target and an evaluation part."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


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
        return _decoded(sys.stdin.buffer.read(), "standard input")
    if file is not None:
        return _read_file(file)
    if text is None:
        raise InputError("there is no text: give it as an argument, with --file, or give - and pipe it in")
    return _not_empty(text, "the text")


def _read_file(file: Path) -> str:
    try:
        return _decoded(file.expanduser().read_bytes(), str(file))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}; give the path of a text file") from error


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
    directory = Path(name).expanduser()
    if directory.exists():
        return _usable(_open(str(directory), _local_options(directory)), name)
    if found := model_directory(name):
        return _usable(_open(str(found), _local_options(found)), name)
    try:
        return _usable(_open(name, {"local_files_only": True}), name)
    except LoadError:
        return _usable(_open(name, {}), name)


def _local_options(directory: Path) -> dict[str, Any]:
    files = {path.name for path in directory.iterdir()} if directory.is_dir() else set[str]()
    if not files.isdisjoint(_TOKENIZER_FILES):
        return {"local_files_only": True}
    quantised = sorted(file for file in files if file.endswith(".gguf"))
    if quantised:
        return {"local_files_only": True, "gguf_file": quantised[0]}
    raise LoadError(f"{directory} holds no tokenizer; put the tokenizer.json of the model there")


def _open(name: str, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False, **options)
    except Exception as error:  # transformers raises whatever its file readers raise
        raise LoadError(
            f"cannot read the tokenizer of {name}: {cause(error)}; if its files are damaged, copy them again"
        ) from error


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
    return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))


def decode_continuation(tokenizer: Any, ids: list[int], start: int) -> str:
    """What the tokens from `start` on add to the text of those before, a leading space included."""
    whole, beginning = decode(tokenizer, ids), decode(tokenizer, ids[:start])
    return whole.removeprefix(beginning) if whole.startswith(beginning) else decode(tokenizer, ids[start:])
