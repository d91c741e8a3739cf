# pyright: basic
"""Texts as tokens, and which of them a step sees."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tintformer.errors import InputError
from tintformer.learning.text import read_text
from training.settings import Settings

END_OF_TEXT = "<|endoftext|>"
# Chapters, scenes and speeches stand apart by at least this much in plain texts.
_GAP = re.compile(r"(?<=\n\n\n)(?=[^\n])")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One text file and what identifies it."""

    name: str
    text: str
    sha256: str
    num_bytes: int

    def record(self) -> dict[str, Any]:
        """What a model card says about the file."""
        return {"name": self.name, "bytes": self.num_bytes, "sha256": self.sha256}


def read_sources(paths: list[Path]) -> list[Source]:
    """The texts of some files; a file that is missing, empty or binary is an error."""
    return [_read_source(path) for path in paths]


def _read_source(path: Path) -> Source:
    text = read_text(file=path)
    if END_OF_TEXT in text:
        raise InputError(f"{path} contains {END_OF_TEXT}, which marks where a text ends")
    data = text.encode()
    return Source(name=path.name, text=text, sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data))


def documents(text: str) -> list[str]:
    """The parts of a text that two or more empty lines set apart, with their empty lines."""
    return _GAP.split(text)


def encode_sources(tokenizer: Any, sources: list[Source]) -> np.ndarray:
    """All texts in one row of tokens, an end-of-text mark before each text and before half of its other documents.

    Were it before all of them, a model would be surprised by every chapter of a text that is given to it whole.
    """
    mark = tokenizer.token_to_id(END_OF_TEXT)
    random = np.random.default_rng(0)
    rows: list[int] = []
    for source in sources:
        for index, encoding in enumerate(tokenizer.encode_batch(documents(source.text))):
            if index == 0 or random.random() < 0.5:
                rows.append(mark)
            rows.extend(encoding.ids)
    return np.asarray(rows, dtype=np.int64)


def encode_whole(tokenizer: Any, source: Source) -> np.ndarray:
    """One text as its tokens after a single mark, so that every token but the first stands for bytes of the text."""
    return np.asarray([tokenizer.token_to_id(END_OF_TEXT), *tokenizer.encode(source.text).ids], dtype=np.int64)


class Windows:
    """The windows of each step, which follow from the seed and the number of the step alone."""

    def __init__(self, tokens: np.ndarray, settings: Settings):
        if len(tokens) < 2 * settings.context:
            raise InputError(
                f"the training texts are too small: {len(tokens)} tokens; {2 * settings.context} are the least"
            )
        self.tokens = tokens
        self.settings = settings
        # Cached for speed alone: an epoch's order is the same however often it is made.
        self._order = lru_cache(maxsize=2)(self._make_order)

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Windows of one step, each with the token after it, and the position at which each window begins.

        Short windows begin at a random position, so that every learned position is trained from the first step on.
        """
        length = self.settings.window(step)
        count = self.settings.batch_tokens // length
        first = step if step < self.settings.short_steps else step - self.settings.short_steps
        starts = [self._start(length, first * count + index) for index in range(count)]
        windows = np.stack([self.tokens[start : start + length + 1] for start in starts])
        shifts = np.random.default_rng([self.settings.seed, 1, step]).integers(
            0, self.settings.context - length + 1, size=count
        )
        return windows, shifts

    def _start(self, length: int, index: int) -> int:
        num_windows = (len(self.tokens) - length) // length
        epoch, slot = divmod(index, num_windows)
        offset, order = self._order(length, epoch)
        return offset + int(order[slot]) * length

    def _make_order(self, length: int, epoch: int) -> tuple[int, np.ndarray]:
        random = np.random.default_rng([self.settings.seed, 0, length, epoch])
        # Another offset in each epoch, so that windows begin elsewhere when a text is seen again.
        offset = int(random.integers(0, length))
        return offset, random.permutation((len(self.tokens) - length) // length)
