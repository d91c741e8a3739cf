"""Texts for language modelling: documents with their identity, cut into blocks of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from tintformer.errors import InputError, brief
from tintformer.storage.untrusted_files import user_path
from tintlab.data.prompts import TokenizedText, first_token, tokenise
from tintlab.data.sources import (
    ROW_SUFFIXES,
    YAML_SUFFIXES,
    DataRow,
    Hub,
    described_keys,
    read_hub,
    read_rows,
    read_utf8,
    require_string,
    shipped,
)

TEXT = "text"
"""The `kind` of a description of texts."""
Documents = Literal["lines", "files"]
BlockLayout = Literal["lines", "whole"]
TEXT_SUFFIXES = (".txt", ".text", ".md", ".raw", ".tokens")
"""What is read of a directory; a file that is given by its own path may have any name."""
_AT_ONCE = 1000
"""Pieces that are tokenised together: fewer are slower, more take more memory."""
_AFTER_SPACES = 0x3001
"""The code point after the last space that Unicode has."""


@dataclass(frozen=True, kw_only=True)
class TextDescription:
    """Where a language-modelling set is and what a document of it is: the keys of its YAML file."""

    kind: str
    """`text`."""
    title: str
    """What tables call it."""
    path: str | None = None
    """A file or a directory, beside the description or absolute."""
    hub: Hub | None = None
    """A data set of the hub, if there is no path; each of its rows is a document."""
    split: str = "validation"
    """The split of the data set on the hub."""
    column: str = "text"
    """The column that holds the text, on the hub and in JSONL, CSV and Parquet files."""
    documents: Documents = "files"
    """What a document of a text file is: each of its `lines`, or the whole file (`files`)."""
    articles: bool = False
    """Whether lines ` = Title = ` begin articles, as in WikiText: they are the documents that streams read."""
    limit: int | None = None
    """How many documents to take, from the first on: too few give uncertain numbers, too many a long download."""


def read_text_description(name: str) -> tuple[TextDescription, str]:
    """What a YAML file says, every key checked, and what to call it in messages."""
    keys, source = described_keys(TextDescription, name, TEXT, "text")
    for key in ("title", "split", "column", "documents"):
        if keys.get(key) is not None:
            require_string(keys[key], f"{source}: {key}")
    if keys.get("documents", "files") not in get_args(Documents):
        raise InputError(f"{source}: documents is {brief(keys['documents'])}; it must be 'lines' or 'files'")
    if not isinstance(keys.get("articles", False), bool):
        raise InputError(f"{source}: articles is {brief(keys['articles'])}; it must be true or false")
    return TextDescription(**keys), source


def read_documents(described: TextDescription, source: str) -> Iterator[str]:
    """The documents of a set, one by one."""
    if described.path is None:
        if described.hub is None:
            raise InputError(f"{source} names neither a path nor a data set of the hub; give the files with --data")
        for row in read_hub(described.hub, described.split, described.limit):
            yield _any_text(row, described.column)
        return
    for file in _files(Path(described.path)):
        if file.suffix.lower() in ROW_SUFFIXES:
            for row in read_rows(file):
                yield _any_text(row, described.column)
        elif described.documents == "lines":
            yield from lines_of(read_utf8(file))
        else:
            yield read_utf8(file)


def _any_text(row: DataRow, column: str) -> str:
    """A row's text; a blank one is nothing wrong here (WikiText has many)."""
    value = row.column(column, "text")
    return value if isinstance(value, str) and not value.strip() else row.text(column, "text")


def _files(path: Path) -> list[Path]:
    """The file itself, or the texts of a directory in the order of their names."""
    if not path.exists():
        raise InputError(f"{path} is not there; give the path of a file or a directory")
    if not path.is_dir():
        return [path]
    suffixes = (*TEXT_SUFFIXES, *ROW_SUFFIXES)
    found = [file for file in path.rglob("*") if file.suffix.lower() in suffixes and file.is_file()]
    if not found:
        raise InputError(f"{path} holds no texts; put files there that end in {', '.join(suffixes)}")
    return sorted(found, key=lambda file: file.relative_to(path).as_posix())


@dataclass(frozen=True, kw_only=True)
class TextSet:
    """A language-modelling set: its documents, blank ones included, and its name."""

    name: str
    texts: tuple[str, ...]
    has_articles: bool = False
    """Whether lines ` = Title = ` begin articles."""

    def articles(self) -> tuple[str, ...]:
        """What stands between the headings of articles; what comes before the first belongs to none."""
        found: list[list[str]] = []
        for line in (line for text in self.texts for line in lines_of(text)):
            if _is_heading(line):
                found.append([])
            if found:
                found[-1].append(line if line.endswith("\n") else line + "\n")
        return tuple("".join(article) for article in found)

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
        layout: BlockLayout = "lines",
        *,
        bos: bool | None = None,
        keep_rest: bool = True,
    ) -> Iterator[Block]:
        """The set as blocks of `length` tokens; documents follow each other without a mark between them.

        `layout` "lines" tokenises every non-empty line on its own, its line break included, as the authors do; "whole"
        tokenises documents whole, so that blank lines are tokens too. `length` must not be more than the model's
        context; short blocks leave little to learn from. `bos` says whether each block begins with a BOS, which counts
        as one of its tokens: None does what the tokenizer itself does. `keep_rest` keeps the last, shorter block; with
        it the words and bytes of all tokens add up to those of the text.
        """
        if layout not in get_args(BlockLayout):
            raise InputError(f"layout={brief(layout)} is unknown; choose one of {', '.join(get_args(BlockLayout))}")
        if length < 2:
            raise InputError(f"length={length}; a block needs at least 2 tokens, one to predict another")
        pieces = self.texts if layout == "whole" else (line for text in self.texts for line in lines_of(text))
        cutter = _Cutter(length=length, first=first_token(tokenizer, bos))
        for batch in _batches(pieces):
            spoken = [piece for piece in batch if piece.strip()]
            tokens = iter(tokenise(tokenizer, spoken))
            for piece in batch:
                cutter.add(piece, next(tokens) if piece.strip() else TokenizedText((), ()))
                yield from cutter.full()
        yield from cutter.rest(keep_rest)


def load_texts(name: str, data: str | Path | None = None) -> TextSet:
    """A set by the name of a shipped description, the path of a YAML file, or the path of a text file or directory.

    `data`, a file or directory, takes the place of the location that the description names.
    """
    if name not in shipped() and Path(name).suffix not in YAML_SUFFIXES and user_path(name).exists():
        described = TextDescription(kind=TEXT, title=Path(name).name, path=str(user_path(name)))
        source, label = name, Path(name).name
    else:
        described, source = read_text_description(name)
        label = Path(name).stem
    if data is not None:
        described = replace(described, path=str(user_path(data)))
    texts = tuple(read_documents(described, source))[: described.limit]
    if not any(text.strip() for text in texts):
        raise InputError(f"{described.path or source} is empty; give a few paragraphs")
    return TextSet(name=label, texts=texts, has_articles=described.articles)


def _is_heading(line: str) -> bool:
    """` = Title = `; sections within an article have more signs (` = = History = = `)."""
    words = line.split()
    return len(words) > 2 and words[0] == words[-1] == "=" and "=" not in (words[1], words[-2])


@dataclass(frozen=True, kw_only=True)
class Block:
    """A sequence of tokens; a BOS that was put first completes nothing."""

    ids: tuple[int, ...]
    num_words: tuple[int, ...]
    """Words that each token completes: divide by the sum over scored tokens for perplexity per word."""
    num_bytes: tuple[int, ...]
    """UTF-8 bytes that each token completes; those that no token stands for count with the next one."""

    def __len__(self) -> int:
        return len(self.ids)


def lines_of(text: str) -> list[str]:
    """The lines of a text, each with its line break."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]


def _batches(pieces: Iterable[str]) -> Iterator[tuple[str, ...]]:
    iterator = iter(pieces)
    while batch := tuple(islice(iterator, _AT_ONCE)):
        yield batch


@dataclass(kw_only=True)
class _Cutter:
    """TokenizedText in a queue, and how blocks are taken from it."""

    length: int
    first: int | None
    ids: list[int] = field(default_factory=list[int])
    words: list[int] = field(default_factory=list[int])
    sizes: list[int] = field(default_factory=list[int])
    pending: tuple[int, int] = (0, 0)
    """Words and bytes of pieces without a token, waiting for the next one."""

    def add(self, piece: str, tokens: TokenizedText) -> None:
        words, sizes = completed(piece, tokens)
        waiting_words, waiting_bytes = self.pending
        if not tokens.ids:
            self.pending = (waiting_words + len(piece.split()), waiting_bytes + len(piece.encode()))
            return
        words[0] += waiting_words
        sizes[0] += waiting_bytes
        self.pending = (0, 0)
        self.ids += tokens.ids
        self.words += words
        self.sizes += sizes

    def full(self) -> Iterator[Block]:
        """Blocks that are full; the last tokens stay, because what follows them may have no token of its own."""
        start = 0
        # Not >=: white space behind the last token, which has no token of its own, would count with the next block.
        while len(self.ids) - start > self.length:
            start, block = self._take(start)
            yield block
        del self.ids[:start], self.words[:start], self.sizes[:start]

    def rest(self, keep: bool) -> Iterator[Block]:
        """The last blocks, a shorter one among them if it is to be kept."""
        if self.ids:
            self.words[-1] += self.pending[0]
            self.sizes[-1] += self.pending[1]
        start = 0
        while start < len(self.ids):
            start, block = self._take(start)
            if keep or len(block) == self.length:
                yield block

    def _take(self, start: int) -> tuple[int, Block]:
        begin = self.first is not None and self.ids[start] != self.first  # never twice
        end = min(start + self.length - begin, len(self.ids))
        front, nothing = ((self.first,), (0,)) if begin and self.first is not None else ((), ())
        block = Block(
            ids=(*front, *self.ids[start:end]),
            num_words=(*nothing, *self.words[start:end]),
            num_bytes=(*nothing, *self.sizes[start:end]),
        )
        return end, block


def completed(text: str, tokens: TokenizedText) -> tuple[list[int], list[int]]:
    """How many words and UTF-8 bytes of the text each token completes; their sums are those of the whole text.

    A character is complete with the last token that holds a part of it (a byte of it, say), a word with its last
    character. What lies between two tokens counts with the second, what lies after the last with the last.
    """
    import numpy as np

    if not tokens.ids:
        return [], []
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    sizes = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000).astype(np.int64)
    space = _spaces()[np.minimum(codes, _AFTER_SPACES)]
    ends = ~space & np.append(space[1:], True)
    starts, stops = np.array(tokens.spans, dtype=np.int64).T
    still_to_come = np.append(np.minimum.accumulate(starts[::-1])[::-1][1:], len(text))
    reached = np.minimum(np.maximum.accumulate(stops), still_to_come)
    reached[-1] = len(text)
    totals = [np.append(0, values.cumsum())[reached] for values in (ends, sizes)]
    words, bytes_ = (np.diff(total, prepend=0).tolist() for total in totals)
    return words, bytes_


@cache
def _spaces() -> Any:
    """By code point, whether it is what `str.split` takes for the end of a word; the last entry is for all others."""
    import numpy as np

    return np.array([chr(code).isspace() for code in range(_AFTER_SPACES + 1)])
