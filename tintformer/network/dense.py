"""The same layers as a textbook has them: every map a full matrix over the whole stream, attention over all tokens.

e is one tensor `[B, L, dim]`, L = P + T. Equal to the structured layers but for round-off; for tiny models, to show
that nothing else happens there. Each kind of layer says here where the entries of its maps stand.
"""

from __future__ import annotations

from functools import singledispatch
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tintformer.network import attention_layers as attention
from tintformer.network.attention_layers import Heads
from tintformer.network.flags import SEGMENT_KEY, SEGMENT_QUERY, coordinate
from tintformer.network.layers import Layer, LinearMap, TokenLayer, WeightMap
from tintformer.network.stream import Frame
from tintformer.simulator.primitives.tokenwise import constant

Embedding = Float[Tensor, "B L dim"]


def eye(width: int) -> Float[Tensor, "width width"]:
    """An identity in float64, so that a factor keeps its digits until it is stored."""
    return torch.eye(width, dtype=torch.float64)


class Dense(nn.Module):
    """A layer of the one tensor; what it stands for is `layer`."""

    def __init__(self, layer: Layer):
        super().__init__()
        self.stage, self.op = layer.stage, layer.op


class DenseLinear(Dense):
    """e + e A."""

    def __init__(self, layer: Layer, matrix: Float[Tensor, "dim dim"]):
        super().__init__(layer)
        self.matrix = constant(matrix)

    def forward(self, e: Embedding) -> Embedding:
        return e + e @ self.matrix


class DenseToken(Dense):
    """e + f(e A) B: a unit between two linear maps."""

    def __init__(self, layer: TokenLayer, frame: Frame, dtype: torch.dtype):
        super().__init__(layer)
        self.layer = layer
        self.into = constant(_select(layer.read_slots, frame, dtype))
        self.out = constant(_select(layer.write_slots, frame, dtype).mT.contiguous())

    def forward(self, e: Embedding) -> Embedding:
        regions = (e @ self.into).chunk(len(self.layer.read_slots), dim=-1)
        return e + torch.cat(tuple(self.layer.compute(*regions)), dim=-1) @ self.out


def _select(slots: list[Any], frame: Frame, dtype: torch.dtype) -> Float[Tensor, "dim slots_times_W"]:
    matrix = torch.zeros(frame.dim, len(slots) * frame.width, dtype=dtype)
    for number, slot in enumerate(slots):
        if slot is not None:
            matrix[frame.text_slot(slot), number * frame.width : (number + 1) * frame.width] = eye(frame.width)
    return matrix


class DenseAttention(Dense):
    """e + sum_u f(q_t . k_u) v_u O by head; q, k and v are linear maps of e plus a positional term each."""

    def __init__(self, layer: Layer, frame: Frame, dtype: torch.dtype, *, heads: int, key: int, value: int):
        super().__init__(layer)

        def zeros(*shape: int) -> nn.Parameter:
            return constant(torch.zeros(*shape, dtype=dtype))

        self.query, self.key, self.value = (zeros(frame.dim, heads, width) for width in (key, key, value))
        self.at_query, self.at_key, self.at_value = (zeros(frame.length, heads, width) for width in (key, key, value))
        self.output = zeros(heads, value, frame.dim)
        self.asking, self.answering = nn.ParameterList(), nn.ParameterList()
        """Features of both sides whose products are negative where a token must not be seen."""
        self.order: nn.Parameter | None = None
        """Which tokens never see which, by their places; None for linear attention."""

    def forward(self, e: Embedding) -> Embedding:
        query, key, value = (
            torch.einsum("btd,dhk->bhtk", e, weight) + position.transpose(0, 1)
            for weight, position in (
                (self.query, self.at_query),
                (self.key, self.at_key),
                (self.value, self.at_value),
            )
        )
        scores = query @ key.mT
        if self.order is not None:
            hidden = self.order
            for asking, answering in zip(self.asking, self.answering, strict=True):
                hidden = hidden | ((e @ asking) @ (e @ answering).mT < 0)
            scores = scores.masked_fill(hidden[:, None] if hidden.dim() == 3 else hidden, torch.finfo(e.dtype).min)
            scores = scores.softmax(-1)
        return e + torch.einsum("bhtv,hvd->btd", scores @ value, self.output)


@singledispatch
def dense_form(layer: Layer, frame: Frame, dtype: torch.dtype) -> Dense:
    """The dense form of a layer."""
    raise AssertionError(f"{type(layer).__name__} has no dense form")


dense_form.register(TokenLayer, DenseToken)


@dense_form.register
def _(layer: LinearMap, frame: Frame, dtype: torch.dtype) -> Dense:
    basis = torch.eye(frame.dim, dtype=dtype)[None]
    columns = layer.compute(*(basis[..., frame.text_slot(slot)] for slot in layer.read_slots))
    matrix = torch.zeros(frame.dim, frame.dim, dtype=dtype)
    for slot, column in zip(layer.write_slots, columns, strict=True):
        if slot is not None:
            matrix[:, frame.text_slot(slot)] += column[0]
    return DenseLinear(layer, matrix)


@dense_form.register
def _(layer: WeightMap, frame: Frame, dtype: torch.dtype) -> Dense:
    matrix, one = torch.zeros(frame.dim, frame.dim, dtype=torch.float64), eye(frame.width)
    for number in range(frame.stack):
        weights = frame.weight_slot(number)
        if frame.momentum:
            velocity = frame.velocity_slot(number)
            matrix[velocity, weights] = layer.from_velocity * one
            matrix[velocity, velocity] = (layer.momentum - 1) * one
        if frame.decay:
            matrix[weights, weights] = -layer.decay * one
            matrix[frame.base_slot(number), weights] = layer.decay * one
    return DenseLinear(layer, matrix.to(dtype))


def _pieces(matrix: attention.Matrix, frame: Frame) -> Any:
    """Heads of a matrix: number, output piece, input piece, slot, and the one-hot positions of its prefix tokens."""
    rows = frame.width // frame.stack
    start = frame.block(matrix.block).start
    numbers = product(range(matrix.num_out), range(matrix.num_in), range(frame.stack))
    for head, (m, n, s) in enumerate(numbers):
        first = start + (m * matrix.num_in + n) * rows
        yield head, m, n, slice(s * rows, (s + 1) * rows), frame.weight_slot(s), slice(first, first + rows)


def _matrix_heads(layer: Any, frame: Frame, dtype: torch.dtype, *, key: int, value: int) -> DenseAttention:
    heads = layer.matrix.num_out * layer.matrix.num_in * frame.stack
    return DenseAttention(layer, frame, dtype, heads=heads, key=key, value=value)


@dense_form.register
def _(layer: attention.LinearForward, frame: Frame, dtype: torch.dtype) -> Dense:
    rows = frame.width // frame.stack
    result = _matrix_heads(layer, frame, dtype, key=frame.width, value=rows)
    flag, *inputs = layer.read_slots
    for head, m, n, part, weights, tokens in _pieces(layer.matrix, frame):
        _read_input(result.query, layer.matrix, head, n, inputs, flag, frame)
        result.key[weights, head] = eye(frame.width)
        result.at_value[tokens, head] = eye(rows)
        result.output[head][:, frame.text_slot(_slot(layer, m))][:, part] = eye(rows)
    return result


@dense_form.register
def _(layer: attention.LinearBackward, frame: Frame, dtype: torch.dtype) -> Dense:
    rows = frame.width // frame.stack
    result = _matrix_heads(layer, frame, dtype, key=rows, value=frame.width)
    for head, m, n, part, weights, tokens in _pieces(layer.matrix, frame):
        result.query[frame.text_slot(layer.read_slots[m])][part, head] = eye(rows)
        result.at_key[tokens, head] = eye(rows)
        result.value[weights, head] = eye(frame.width)
        result.output[head][:, frame.text_slot(_slot(layer, n))].fill_diagonal_(1)[layer.width :] = 0
    return result


@dense_form.register
def _(layer: attention.LinearDescent, frame: Frame, dtype: torch.dtype) -> Dense:
    rows = frame.width // frame.stack
    result = _matrix_heads(layer, frame, dtype, key=rows, value=frame.width)
    flag, *regions = layer.read_slots
    inputs, gradients = regions[: layer.matrix.num_in], regions[layer.matrix.num_in :]
    for head, m, n, part, weights, tokens in _pieces(layer.matrix, frame):
        result.at_query[tokens, head] = eye(rows)
        result.key[frame.text_slot(gradients[m])][part, head] = eye(rows)
        _read_input(result.value, layer.matrix, head, n, inputs, flag, frame)
        _send(result.output[head], layer.into, weights.start // frame.width, frame)
    return result


def _send(output: Tensor, into: attention.Destination, slot: int, frame: Frame) -> None:
    """A gradient goes to a slot of the weights and to that of their velocity."""
    output[:, frame.weight_slot(slot)] = eye(frame.width) * into.weights
    if frame.momentum:
        output[:, frame.velocity_slot(slot)] = eye(frame.width) * into.velocity


def _read_input(
    port: Tensor, matrix: attention.Matrix, head: int, piece: int, inputs: list[int], flag: int, frame: Frame
) -> None:
    """A piece of the input, and the constant where the bias is read."""
    port[frame.text_slot(inputs[piece]), head] = eye(frame.width)
    if matrix.bias is not None and piece == 0:
        port[frame.text_slot(flag).start + coordinate("text"), head, matrix.bias] += 1


def _slot(layer: Layer, number: int) -> int:
    slot = layer.write_slots[number]
    assert slot is not None, "linear layers and attention are left out where nobody reads them"
    return slot


@dense_form.register
def _(layer: attention.ReadRows, frame: Frame, dtype: torch.dtype) -> Dense:
    tokens = frame.block(layer.block)
    result = DenseAttention(layer, frame, dtype, heads=tokens.stop - tokens.start, key=1, value=frame.width)
    for head, slot in enumerate(layer.write_slots):
        if slot is not None:
            result.query[frame.text_slot(layer.read_slots[0]).start + coordinate("text"), head] = 1
            result.at_key[tokens.start + head, head] = 1
            result.value[frame.weight_slot(0), head] = eye(frame.width)
            result.output[head][:, frame.text_slot(slot)] = eye(frame.width)
    return result


@dense_form.register
def _(layer: attention.RowDescent, frame: Frame, dtype: torch.dtype) -> Dense:
    result = DenseAttention(layer, frame, dtype, heads=len(layer.rows), key=1, value=frame.width)
    for head, (row, slot) in enumerate(zip(layer.rows, layer.read_slots, strict=True)):
        result.at_query[frame.block(layer.block).start + row, head] = 1
        result.at_key[frame.num_prefix :, head] = 1
        result.value[frame.text_slot(slot), head] = eye(frame.width)
        _send(result.output[head], layer.into, 0, frame)
    return result


@dense_form.register
def _(layer: attention.NextToken, frame: Frame, dtype: torch.dtype) -> Dense:
    result = DenseAttention(layer, frame, dtype, heads=1, key=frame.num_tokens, value=frame.width)
    result.at_query[frame.num_prefix :, 0] = layer.following.to(dtype)
    result.at_key[frame.num_prefix :, 0] = eye(frame.num_tokens)
    result.value[frame.text_slot(layer.read_slots[0]), 0] = eye(frame.width)
    result.output[0][:, frame.text_slot(_slot(layer, 0))] = -eye(frame.width)
    return result


# The auxiliary's own attention.


def _coordinates(heads: Heads, slots: list[int], head: int, frame: Frame) -> slice:
    """Where a head of a value stands in the stream."""
    start = frame.text_slot(slots[head // heads.in_piece]).start + head % heads.in_piece * heads.dim
    return slice(start, start + heads.dim)


def _store_coordinates(slots: list[int], head: int, frame: Frame) -> Tensor:
    """Where a token keeps the attention weights of a head."""
    flat = head * frame.num_tokens + torch.arange(frame.num_tokens)
    starts = torch.tensor([frame.text_slot(slot).start for slot in slots])
    return starts[flat // frame.width] + flat % frame.width


@dense_form.register
def _(layer: attention.SoftmaxAttention, frame: Frame, dtype: torch.dtype) -> Dense:
    flags, query, key, value, extra_query, extra_key = attention.groups(layer.read_slots, layer.sizes)
    asking, answering = layer.heads
    slopes = None if layer.slopes is None else layer.slopes.flatten()
    # Content, perturbation, and the distance of ALiBi: products side by side are added.
    width = asking.dim * (2 if extra_query else 1) + (slopes is not None)
    result = DenseAttention(
        layer, frame, dtype, heads=asking.count, key=width, value=asking.dim if value else frame.num_tokens
    )
    writes = [_slot(layer, number) for number in range(len(layer.write_slots))]
    shared = asking.count // answering.count
    for head in range(asking.count):
        own, other = head, head // shared
        pairs = [(query, key, layer.attend.scale)]
        if extra_query:
            pairs.append((extra_query, extra_key, layer.extra_factor))
        for number, (left, right, factor) in enumerate(pairs):
            part = slice(number * asking.dim, (number + 1) * asking.dim)
            result.query[_coordinates(asking, left, own, frame), head, part] = factor * eye(asking.dim)
            result.key[_coordinates(answering, right, other, frame), head, part] = eye(asking.dim)
        if slopes is not None:
            result.query[_flag(flags, "text", frame), head, -1] = slopes[head]
            result.key[_flag(flags, "position", frame), head, -1] = 1
        if value:
            result.value[_coordinates(answering, value, other, frame), head] = eye(asking.dim)
            result.output[head][:, _coordinates(asking, writes, own, frame)] = eye(asking.dim)
        else:
            result.at_value[frame.num_prefix :, head] = eye(frame.num_tokens)
            result.output[head][:, _store_coordinates(writes, own, frame)] = layer.factor * eye(frame.num_tokens)
    _see(result, layer, flags, frame, dtype)
    return result


def _see(result: DenseAttention, layer: attention.SoftmaxAttention, flags: list[int], frame: Frame, dtype: Any) -> None:
    """Text sees earlier text, a prefix token itself alone; and what the coordinates of the flags say."""
    order = ~torch.eye(frame.length, dtype=torch.bool)
    order[frame.num_prefix :, frame.num_prefix :] = layer.later
    result.order = constant(order)

    def port(features: dict[str, tuple[int, float]]) -> nn.Parameter:
        table = torch.zeros(frame.dim, 4, dtype=dtype)
        for name, (feature, factor) in features.items():
            table[_flag(flags, name, frame), feature] = factor
        return constant(table)

    result.asking.append(port(SEGMENT_QUERY))
    result.answering.append(port(SEGMENT_KEY))
    if layer.attend.window is not None:
        query = torch.zeros(frame.dim, 2, dtype=dtype)
        key = torch.zeros(frame.dim, 2, dtype=dtype)
        query[_flag(flags, "text", frame), 0], query[_flag(flags, "distance", frame), 0] = layer.attend.window - 1, -1
        key[_flag(flags, "text", frame), 0] = 1
        query[_flag(flags, "text", frame), 1], key[_flag(flags, "distance", frame), 1] = 1, 1
        result.asking.append(constant(query))
        result.answering.append(constant(key))


def _flag(flags: list[int], name: str, frame: Frame) -> int:
    number = coordinate(name)
    return frame.text_slot(flags[number // frame.width]).start + number % frame.width


@dense_form.register
def _(layer: attention.ReadStore, frame: Frame, dtype: torch.dtype) -> Dense:
    store, values = attention.groups(layer.read_slots, layer.sizes)
    asking, answering = layer.heads
    writes = [_slot(layer, number) for number in range(len(layer.write_slots))]
    result = DenseAttention(layer, frame, dtype, heads=asking.count, key=frame.num_tokens, value=asking.dim)
    for head in range(asking.count):
        other = head // (asking.count // answering.count)
        result.at_query[frame.num_prefix :, head] = eye(frame.num_tokens)
        result.key[_store_coordinates(store, head, frame), head] = eye(frame.num_tokens)
        result.value[_coordinates(asking, values, head, frame), head] = eye(asking.dim)
        result.output[head][:, _coordinates(answering, writes, other, frame)] = layer.factor * eye(asking.dim)
    return result


@dense_form.register
def _(layer: attention.ApplyStore, frame: Frame, dtype: torch.dtype) -> Dense:
    store, values = attention.groups(layer.read_slots, layer.sizes)
    asking, answering = layer.heads
    writes = [_slot(layer, number) for number in range(len(layer.write_slots))]
    result = DenseAttention(layer, frame, dtype, heads=asking.count, key=frame.num_tokens, value=asking.dim)
    for head in range(asking.count):
        other = head // (asking.count // answering.count)
        result.query[_store_coordinates(store, head, frame), head] = eye(frame.num_tokens)
        result.at_key[frame.num_prefix :, head] = eye(frame.num_tokens)
        result.value[_coordinates(answering, values, other, frame), head] = eye(asking.dim)
        result.output[head][:, _coordinates(asking, writes, head, frame)] = layer.factor * eye(asking.dim)
    return result
