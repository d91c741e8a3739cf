"""Tokenizers that somebody else wrote: what one may ask for.

A tokenizer.json can double a text thirty times over, add a million special tokens to every sentence, or stop the
library with a panic. What enlarges is bounded before the library opens the file. Not bounded is the time of a regular
expression that is slow on a certain text, beyond what the library itself allows for one match.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tintformer.auxiliary.text import panics_as_errors
from tintformer.errors import LoadError, TintError, cause
from tintformer.storage.gguf_headers import read_gguf_header
from tintformer.storage.untrusted_files import check_model_files, read_foreign_json

MAX_GROWTH = 16
"""Characters that a normaliser or a decoder may make of one. Those of published models make one of one."""
_MAX_ADDED = 1024
"""Characters or special tokens that are put around a text or a word."""
_MAX_COUNT = 4096
"""Of special tokens that a tokenizer makes by counting, such as T5's extra_ids."""
_COUNTS = ("extra_ids", "offset")
_TOKENIZER_CLASS = re.compile(r"\w*(Tokenizer|TokenizerFast|Backend)")
_JSON = ("config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json")
_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""In one of which a tokenizer keeps its vocabulary."""


def has_tokenizer(directory: Path) -> bool:
    return any((directory / file).exists() for file in _FILES)


def open_tokenizer(directory: Path) -> Any:
    """The tokenizer whose files are in a directory, or the one inside of its GGUF file; refused if it asks too much."""
    from transformers import AutoTokenizer

    options = _options(directory)
    check_tokenizer_files(directory)
    if file := options.get("gguf_file"):
        read_gguf_header(directory / file)
    try:
        with panics_as_errors(f"the tokenizer of {directory}"):
            return AutoTokenizer.from_pretrained(
                str(directory), trust_remote_code=False, local_files_only=True, **options
            )
    except TintError:
        raise
    except Exception as error:  # transformers raises whatever its file readers raise
        raise LoadError(
            f"cannot read the tokenizer of {directory}: {cause(error)}; if its files are damaged, copy them again"
        ) from error


def _options(directory: Path) -> dict[str, Any]:
    if directory.is_dir() and has_tokenizer(directory):
        return {}
    quantised = sorted(file.name for file in directory.glob("*.gguf"))
    if quantised:
        return {"gguf_file": quantised[0]}
    raise LoadError(f"{directory} holds no tokenizer; put the tokenizer.json of the model there")


def check_tokenizer_files(directory: Path) -> None:
    """Refuse a directory whose tokenizer is no plain JSON, or makes far more of a text than there is."""
    from tintformer.storage.untrusted import refuse_code_and_huge_sizes  # brings torch, which commands take up late

    check_model_files(directory)
    for name in _JSON:
        if (directory / name).exists():
            content = read_foreign_json(directory / name)
            if name == "config.json" and isinstance(content, dict):
                _check_class(content, str(directory / name))
                if content.get("model_type") != "tint":  # such a configuration checks itself
                    refuse_code_and_huge_sizes(content, str(directory / name))
    settings = directory / "tokenizer_config.json"
    if settings.exists():
        _check_settings(read_foreign_json(settings), str(settings))
    for file in sorted((*directory.glob("tokenizer.json"), *directory.glob("tokenizer.*.json"))):
        _check_tokenizer(read_foreign_json(file), str(file))


def _check_class(settings: dict[str, Any], where: str) -> None:
    """transformers would call `from_pretrained` of whatever class of its own has this name, models included."""
    found = settings.get("tokenizer_class")
    if found is not None and not (isinstance(found, str) and _TOKENIZER_CLASS.fullmatch(found)):
        raise LoadError(f"{where} names {repr(found)[:80]} as its tokenizer_class, which is no tokenizer; take it out")


def _check_settings(settings: Any, where: str) -> None:
    if not isinstance(settings, dict):
        raise LoadError(f"{where} holds no settings; it must be a JSON object")
    _check_class(settings, where)
    for key in _COUNTS:
        count = settings.get(key, 0)
        if isinstance(count, int | float) and count > _MAX_COUNT:
            raise LoadError(f"{where} asks for {key} {count:g}; at most {_MAX_COUNT} are allowed")
    for name in settings.get("fast_tokenizer_files") or ():
        if not isinstance(name, str) or not re.fullmatch(r"tokenizer\.([\w.]+\.)?json", name):
            raise LoadError(
                f"{where} names {repr(name)[:80]} as a file of the tokenizer; only those beside it are read"
            )


def _check_tokenizer(content: Any, where: str) -> None:
    if not isinstance(content, dict):
        raise LoadError(f"{where} holds no tokenizer; it must be a JSON object")
    for stage in ("normalizer", "decoder"):
        growth, added = 1.0, 0
        for part in _parts(content.get(stage)):
            growth *= _growth(part)
            added += len(str(part.get("prepend", "")))
        if growth > MAX_GROWTH or added > _MAX_ADDED:
            raise LoadError(
                f"{where}: its {stage} makes up to {growth:g} characters of one and adds {added}; at most {MAX_GROWTH} "
                f"and {_MAX_ADDED} are allowed, so use another tokenizer"
            )
    if (added := sum(map(_num_special, _parts(content.get("post_processor"))))) > _MAX_ADDED:
        raise LoadError(f"{where} adds {added} special tokens to every text; at most {_MAX_ADDED} are allowed")
    model = content.get("model")
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "unk_token"):
        if isinstance(model, dict) and len(str(model.get(key, ""))) > _MAX_ADDED:
            raise LoadError(f"{where}: its {key} is longer than {_MAX_ADDED} characters; use another tokenizer")


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every component of a stage, also those in sequences."""
    if isinstance(value, dict):
        yield value
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        yield from _parts(child)


def _growth(part: dict[str, Any]) -> float:
    """How many characters a component makes of one, at most."""
    if part.get("type") == "Precompiled":
        return _precompiled_growth(part.get("precompiled_charsmap"))
    if part.get("type") != "Replace":
        return 1.0
    content, pattern = str(part.get("content", "")), part.get("pattern")
    fixed = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(fixed, str) and fixed:
        return max(1.0, len(content) / len(fixed))
    # A regular expression may match nothing at all, between any two characters.
    return 1.0 + len(content)


def _precompiled_growth(found: Any) -> float:
    """By the longest replacement in the table of sentencepiece; Unicode's own, of 18 characters, count as one."""
    if not isinstance(found, str):
        return 1.0
    try:
        table = base64.b64decode(found)
    except (ValueError, binascii.Error):
        return 1.0  # the library says so itself
    replacements = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
    return max(1.0, max(map(len, replacements)) / (3 * 18))


def _num_special(part: dict[str, Any]) -> int:
    """Of a template: the special tokens of a single text, each of which may stand for many ids."""
    template, special = part.get("single"), part.get("special_tokens")
    if not isinstance(template, list) or not isinstance(special, dict):
        return 0
    lists = {name: each.get("ids") for name, each in special.items() if isinstance(each, dict)}
    ids = {name: len(found) if isinstance(found, list) else 0 for name, found in lists.items()}
    used = [each["SpecialToken"] for each in template if isinstance(each, dict) and "SpecialToken" in each]
    return sum(ids.get(str(each.get("id")), 1) for each in used if isinstance(each, dict))
