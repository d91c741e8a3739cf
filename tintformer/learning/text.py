"""Text in and out: where it comes from, the tokens of a model, and what each token looks like."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tintformer.auxiliary.text import MIN_TOKENS, Encoded, decode, decode_continuation, encode
from tintformer.errors import InputError, brief
from tintformer.storage.tokenizers import find_tokenizer
from tintformer.storage.untrusted_files import check_characters, read_bytes, read_stream, user_path
from tintformer.typed_fields import checked

__all__ = [
    "MIN_TOKENS",
    "Encoded",
    "decode",
    "decode_continuation",
    "encode",
    "find_tokenizer",
    "given_text",
    "read_text",
]

MAX_BYTES = 2**26
"""Of a text: tens of millions of tokens, which no context holds."""


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
    _refuse_file_name(text, "read it with --file, or give - and pipe the text in if these words are meant")
    return _plain(check_characters(text, "the text", "give it in UTF-8, or in a file with --file"), "the text")


def given_text(text: str | os.PathLike[str], *, goes_on: bool = False) -> str:
    """A text that a caller gave, or what the file of that path holds; the same as on the command line.

    Where it `goes_on` with another text, the line break at its end belongs to both, and stays.
    """
    if isinstance(text, os.PathLike):
        return _decoded(read_bytes(user_path(text), MAX_BYTES, "a text file"), os.fspath(text), goes_on)
    content: str = checked("text", text, str, InputError)
    _refuse_file_name(content, "give a pathlib.Path to read it, or a line break at its end if these words are meant")
    return _plain(check_characters(content, "the text", "give it as whole characters"), "the text", goes_on)


def _refuse_file_name(text: str, remedy: str) -> None:
    """Whoever names a file wants what is in it; its name as a text would be learnt from without a word."""
    if os.path.isfile(text):  # False for whatever no path can be, unlike Path.is_file
        raise InputError(f"the text {brief(text)} is the name of a file; {remedy}")


def _standard_input() -> bytes:
    if sys.stdin is None:  # closed by the shell
        raise InputError("standard input is closed; give a text or --file")
    return read_stream(sys.stdin.buffer, "standard input", MAX_BYTES)


def _decoded(data: bytes, source: str, goes_on: bool = False) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source} is no UTF-8 text (byte {error.start} is {data[error.start]:#04x}); give a text file in UTF-8"
        ) from error
    if "\0" in text:
        raise InputError(f"{source} is a binary file (it holds a zero byte); give a text file in UTF-8")
    return _plain(text, source, goes_on)


def _plain(text: str, source: str, goes_on: bool = False) -> str:
    """A text without the mark of UTF-8, and without the line break that editors and `echo` put at its end.

    One rule for all sources: a text has the same tokens whether a file of it is named or its content is given.
    """
    text = text.removeprefix("\ufeff")
    if not goes_on:
        text = text.removesuffix("\n").removesuffix("\r")
    if not text.strip():
        raise InputError(f"{source} is empty; give a few sentences")
    return text
