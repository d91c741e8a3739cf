"""Texts for language modelling: documents with their counts and their identity, cut into blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tintformer.errors import InputError
from tintformer.experiments.blocks import Block, Layout, cut, lines_of
from tintformer.experiments.described import SUFFIXES, shipped
from tintformer.experiments.text_files import KIND, TextDescription, read_documents, read_text_description


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How much text there is."""

    words: int
    """Runs of characters other than white space."""
    bytes: int
    """In UTF-8, line breaks included."""
    lines: int


@dataclass(frozen=True, kw_only=True)
class TextSet:
    """A language-modelling set: its documents, blank ones included, and its name."""

    name: str
    texts: tuple[str, ...]

    def documents(self) -> tuple[str, ...]:
        """The documents that say something."""
        return tuple(text for text in self.texts if text.strip())

    @cached_property
    def counts(self) -> Counts:
        """Of all documents: what perplexity per word and per byte are divided by."""
        return Counts(
            words=sum(len(text.split()) for text in self.texts),
            bytes=sum(len(text.encode()) for text in self.texts),
            lines=sum(len(lines_of(text)) for text in self.texts),
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Name and SHA-256 of the content, for records."""
        digest = hashlib.sha256()
        for text in self.texts:
            data = text.encode()
            digest.update(b"%d\n" % len(data) + data)
        return {"name": self.name, "sha256": digest.hexdigest()}

    def blocks(
        self,
        tokenizer: Any,
        length: int,
        layout: Layout = "lines",
        *,
        bos: bool | None = None,
        keep_rest: bool = True,
    ) -> Iterator[Block]:
        """The set as blocks of `length` tokens; documents follow each other without a mark between them.

        `layout` "lines" tokenises every non-empty line on its own, its line break included, as the authors do; "whole"
        tokenises documents whole, so that blank lines are tokens too. `length` must not be more than the model's
        context; short blocks leave little to learn from. `bos` says whether each block begins with a BOS, which counts
        as one of its tokens: None does what the tokenizer itself does. `keep_rest` keeps the last, shorter block; with
        it the words and bytes of all tokens add up to `counts`.
        """
        return cut(self.texts, tokenizer, length, layout, bos=bos, keep_rest=keep_rest)


def load_texts(name: str, data: str | Path | None = None) -> TextSet:
    """A set by the name of a shipped description, the path of a YAML file, or the path of a text file or directory.

    `data`, a file or directory, takes the place of the location that the description names.
    """
    if name not in shipped() and Path(name).suffix not in SUFFIXES and Path(name).expanduser().exists():
        described = TextDescription(kind=KIND, title=Path(name).name, path=str(Path(name).expanduser()))
        source, label = name, Path(name).name
    else:
        described, source = read_text_description(name)
        label = Path(name).stem
    if data is not None:
        described = replace(described, path=str(Path(data).expanduser()))
    texts = tuple(read_documents(described, source))[: described.limit]
    if not any(text.strip() for text in texts):
        raise InputError(f"{described.path or source} is empty; give a few paragraphs")
    return TextSet(name=label, texts=texts)
