# pyright: basic
"""The tokenizer: byte-level BPE, trained on the training texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tintformer.storage.whole_files import whole_file
from training.corpus import END_OF_TEXT, Source, documents


def find_vocabulary(path: Path, sources: list[Source], size: int) -> Any:
    """The tokenizer of a run: read if an earlier start wrote it, trained otherwise."""
    from tokenizers import Tokenizer

    if not path.exists():
        trained = train_vocabulary(sources, size)
        with whole_file(path) as temporary:
            trained.save(str(temporary))
    return Tokenizer.from_file(str(path))


def train_vocabulary(sources: list[Source], size: int) -> Any:
    """Byte-level BPE of at most `size` entries: every byte, the end-of-text mark, and the most useful merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(sources), trainer)
    return tokenizer


def _texts(sources: list[Source]) -> Iterator[str]:
    for source in sources:
        yield from documents(source.text)
