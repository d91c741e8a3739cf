"""How large each layer of a compiled network is over the whole stream, without materialising it.

Dense: entries of its maps as `network/dense.py` writes them, query, key, value and output of every head with their
positional terms. Non-zero: those of them that are not zero. Structured: numbers that the layer itself keeps. Masks,
which say who sees whom by true and false, and the head's rows, which are the auxiliary's own, are no part of any.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import nn

from tintformer.network import attention_layers as attention
from tintformer.network.flags import SEGMENT_KEY, SEGMENT_QUERY
from tintformer.network.layers import Layer, LinearMap, Term, TokenLayer, Vocabulary, WeightMap
from tintformer.network.stream import Frame


@dataclass(frozen=True)
class Entries:
    """Of the maps of a layer over the whole stream."""

    dense: int
    non_zero: int


def kept(layer: Layer) -> list[nn.Parameter]:
    """What a layer keeps, some of it together with others; slots and single factors are no tensors."""
    return [] if isinstance(layer, Vocabulary) else [each for each in layer.parameters() if each.dtype != torch.bool]


@singledispatch
def entries(layer: Layer, frame: Frame) -> Entries:
    """The size of a layer over the whole stream."""
    raise AssertionError(f"{type(layer).__name__} has no dense form")


# Within a token.


@entries.register
def _(layer: TokenLayer, frame: Frame) -> Entries:
    # A selection in front of the unit, one behind it, and the unit's own constants.
    width, own = frame.width, sum(each.numel() for each in kept(layer))
    num_written = sum(slot is not None for slot in layer.write_slots)
    return Entries(
        dense=frame.dim * width * (len(layer.read_slots) + len(layer.write_slots)) + own,
        non_zero=width * (len(layer.read_slots) + num_written) + own,
    )


@entries.register
def _(layer: LinearMap, frame: Frame) -> Entries:
    places: defaultdict[tuple[int, int], list[Term]] = defaultdict(list)
    for term in layer.terms:
        write = layer.write_slots[term.write]
        if write is not None:
            places[layer.read_slots[term.read], write].append(term)
    non_zero = sum(_non_zero(layer, terms, frame.width) for terms in places.values())
    return Entries(dense=frame.dim**2, non_zero=non_zero)


def _non_zero(layer: LinearMap, terms: list[Term], width: int) -> int:
    """Of the map from one slot to another."""
    matrix = terms[0].matrix
    assert all(term.matrix == matrix for term in terms), "terms between the same two slots are multiples of one map"
    if sum(term.factor for term in terms) * layer.scale == 0:
        return 0
    return width if matrix is None else layer.num_non_zero[matrix]


@entries.register
def _(layer: WeightMap, frame: Frame) -> Entries:
    # Weights from velocity and velocity from itself; weights from themselves and from the base.
    factors = [layer.from_velocity, layer.momentum - 1] if layer.momentum else []
    factors += [layer.decay, layer.decay] if layer.decay else []
    return Entries(dense=frame.dim**2, non_zero=frame.stack * frame.width * sum(factor != 0 for factor in factors))


# Between tokens.


def _num_destinations(into: attention.Destination) -> int:
    """Slots that a head of descent adds to: one of the weights, of the velocity, or both; none with a rate of 0."""
    return (into.weights != 0) + (into.velocity != 0)


def _heads(frame: Frame, *, heads: int, key: int, value: int) -> int:
    """Entries of queries, keys, values and their positional terms, and of outputs."""
    return heads * ((frame.dim + frame.length) * (2 * key + value) + value * frame.dim)


def _matrix_heads(layer: attention.LinearForward | attention.LinearBackward | attention.LinearDescent, f: Frame) -> int:
    """A head for each stacked row of each piece."""
    return layer.matrix.num_out * layer.matrix.num_in * f.stack


def _num_constants(matrix: attention.Matrix, frame: Frame) -> int:
    """Heads of the first input piece, which read the constant 1 if there is a bias."""
    return 0 if matrix.bias is None else matrix.num_out * frame.stack


@entries.register
def _(layer: attention.LinearForward, frame: Frame) -> Entries:
    heads, rows = _matrix_heads(layer, frame), frame.width // frame.stack
    non_zero = heads * (2 * frame.width + 2 * rows) + _num_constants(layer.matrix, frame)
    return Entries(_heads(frame, heads=heads, key=frame.width, value=rows), non_zero)


@entries.register
def _(layer: attention.LinearBackward, frame: Frame) -> Entries:
    heads, rows = _matrix_heads(layer, frame), frame.width // frame.stack
    non_zero = heads * (2 * rows + frame.width + layer.width)
    return Entries(_heads(frame, heads=heads, key=rows, value=frame.width), non_zero)


@entries.register
def _(layer: attention.LinearDescent, frame: Frame) -> Entries:
    heads, rows = _matrix_heads(layer, frame), frame.width // frame.stack
    moves = frame.width * _num_destinations(layer.into)
    non_zero = heads * (2 * rows + frame.width + moves) + _num_constants(layer.matrix, frame)
    return Entries(_heads(frame, heads=heads, key=rows, value=frame.width), non_zero)


@entries.register
def _(layer: attention.ReadRows, frame: Frame) -> Entries:
    num_written = sum(slot is not None for slot in layer.write_slots)
    dense = _heads(frame, heads=frame.blocks[layer.block], key=1, value=frame.width)
    return Entries(dense, num_written * (2 + 2 * frame.width))


@entries.register
def _(layer: attention.RowDescent, frame: Frame) -> Entries:
    heads, moves = len(layer.rows), frame.width * _num_destinations(layer.into)
    non_zero = heads * (1 + frame.num_tokens + frame.width + moves)
    return Entries(_heads(frame, heads=heads, key=1, value=frame.width), non_zero)


@entries.register
def _(layer: attention.NextToken, frame: Frame) -> Entries:
    tokens = frame.num_tokens
    return Entries(_heads(frame, heads=1, key=tokens, value=frame.width), 2 * tokens - 1 + 2 * frame.width)


@entries.register
def _(layer: attention.SoftmaxAttention, frame: Frame) -> Entries:
    asking, _ = layer.heads
    _, _, _, value, extra, _ = attention.groups(layer.read_slots, layer.sizes)
    num_pairs, sloped = 2 if extra else 1, layer.slopes is not None
    value_width = asking.dim if value else frame.num_tokens
    dense = _heads(frame, heads=asking.count, key=num_pairs * asking.dim + sloped, value=value_width)
    non_zero = asking.count * (2 * num_pairs * asking.dim + 2 * sloped + 2 * value_width)
    # Features of both sides that say who sees whom: segments and, in two more, windows.
    num_features, num_set = 4, len(SEGMENT_QUERY) + len(SEGMENT_KEY)
    if layer.attend.window is not None:
        num_features, num_set = num_features + 2, num_set + 5 - (layer.attend.window == 1)
    return Entries(dense + 2 * num_features * frame.dim, non_zero + num_set)


@entries.register(attention.ReadStore)
@entries.register(attention.ApplyStore)
def _(layer: attention.ReadStore | attention.ApplyStore, frame: Frame) -> Entries:
    asking, tokens = layer.heads[0], frame.num_tokens
    non_zero = asking.count * (2 * tokens + 2 * asking.dim)
    return Entries(_heads(frame, heads=asking.count, key=tokens, value=asking.dim), non_zero)
