"""What a stream gains by position in the document: the further a model has read, the more it may have learnt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tintlab.show.intervals import Estimate, bootstrap

PLACES = 16
"""Stretches of a document that are told apart, at most; more are noise."""


@dataclass(frozen=True, kw_only=True)
class ChunkSums:
    """The losses of one document, summed over the scored tokens of each of its chunks."""

    before: tuple[float, ...]
    """By the model as it is, in nats."""
    after: tuple[float, ...]
    tokens: tuple[int, ...]
    """Scored tokens of each chunk."""


@dataclass(frozen=True, kw_only=True)
class PositionGain:
    """A stretch of positions over all documents that reach it."""

    start: int
    """First token of the stretch, from 0."""
    end: int
    """The one behind its last."""
    documents: int
    gain: Estimate
    """Nats per token below the model as it is, with an interval over documents."""


def total_gain(documents: Sequence[ChunkSums]) -> Estimate:
    """Nats per token below the model as it is, over all scored tokens; documents are what is drawn."""
    sums = [(sum(each.before), sum(each.after), float(sum(each.tokens))) for each in documents]
    return _estimate([each for each in sums if each[2]])


def gain_by_position(documents: Sequence[ChunkSums], chunk: int) -> list[PositionGain]:
    """The gain of each stretch of positions."""
    num_chunks = max(len(each.tokens) for each in documents)
    width = -(-num_chunks // PLACES)
    found: list[PositionGain] = []
    for first in range(0, num_chunks, width):
        here = slice(first, first + width)
        sums = [(sum(each.before[here]), sum(each.after[here]), float(sum(each.tokens[here]))) for each in documents]
        sums = [each for each in sums if each[2]]
        if sums:
            end = min(first + width, num_chunks) * chunk
            gain = _estimate(sums)
            found.append(PositionGain(start=first * chunk, end=end, documents=len(sums), gain=gain))
    return found


def _estimate(sums: Sequence[tuple[float, float, float]]) -> Estimate:
    """By sums: a long document counts by its tokens. One document alone says nothing about others."""
    columns = list(zip(*sums, strict=True))
    if not all(math.isfinite(value) for column in columns for value in column):
        return Estimate(value=-math.inf, low=-math.inf, high=-math.inf)
    if len(sums) == 1:
        before, after, tokens = sums[0]
        return Estimate(value=(before - after) / tokens, low=math.nan, high=math.nan)
    return bootstrap(columns, lambda before, after, tokens: (before - after) / tokens)


def draw_gains(axes: Any, places: Sequence[PositionGain], *, shift: float = 0.0, **look: Any) -> None:
    """Gain by position, with intervals where there are several documents."""
    middles = [(place.start + place.end) / 2 + shift for place in places]
    values = [place.gain.value for place in places]
    if all(math.isnan(place.gain.low) for place in places):
        axes.plot(middles, values, **look)
    else:
        below = [place.gain.value - place.gain.low for place in places]
        above = [place.gain.high - place.gain.value for place in places]
        axes.errorbar(middles, values, yerr=[below, above], capsize=2, **look)
    axes.axhline(0, color="0.5", lw=0.8, ls="--")
    axes.set(xlabel="position in the document, tokens", ylabel="gain, nats per token")
