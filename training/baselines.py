# pyright: basic
"""What a model has to beat: token frequencies, and a character model with three characters of context."""

from __future__ import annotations

import math

import numpy as np


def unigram_nats(train: np.ndarray, held_out: np.ndarray, vocabulary: int) -> float:
    """The summed loss of held-out tokens under their frequencies in the training tokens, each counted once more."""
    counts = np.bincount(train, minlength=vocabulary) + 1
    return float(-np.log(counts[held_out] / counts.sum()).sum())


def character_bits(train: bytes, held_out: bytes, order: int = 3) -> float:
    """The summed loss in bits of held-out bytes, given `order` bytes before each, with Witten-Bell interpolation.

    A context seen n times with t different successors trusts its own counts by n / (n + t), a shorter one for the rest.
    """
    # Line breaks before the first byte give it a context.
    start = b"\n" * order
    known, asked = _to_array(start + train), _to_array(start + held_out)
    probability = np.full(len(held_out), 1 / 256)
    for length in range(order + 1):
        probability = _interpolate(_contexts(known, order, length), _contexts(asked, order, length), probability)
    return float(-np.log(probability).sum() / math.log(2))


def _to_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8).astype(np.int64)


def _contexts(data: np.ndarray, order: int, length: int) -> np.ndarray:
    """For each byte from `order` on: the `length` bytes before it and the byte itself, as one number."""
    code = np.zeros(len(data) - order, dtype=np.int64)
    for back in range(length, -1, -1):
        code = code * 256 + data[order - back : len(data) - back]
    return code


def _interpolate(known: np.ndarray, asked: np.ndarray, shorter: np.ndarray) -> np.ndarray:
    grams, gram_counts = np.unique(known, return_counts=True)
    contexts, first, successors = np.unique(grams // 256, return_index=True, return_counts=True)
    context_counts = np.add.reduceat(gram_counts, first)
    seen = _look_up(grams, gram_counts, asked)
    total = _look_up(contexts, context_counts, asked // 256)
    kinds = _look_up(contexts, successors, asked // 256)
    mixed = (seen + kinds * shorter) / np.maximum(total + kinds, 1)
    return np.where(total > 0, mixed, shorter)


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted key, 0 where there is none."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)
