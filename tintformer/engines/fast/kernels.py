"""Norms and activations by torch's fused kernels, for exact gradients; differences use the formulas of `rule`.

B batch, T tokens (times heads for a query/key norm), D width. Half precisions are normalised in float32.

Attention without its scores: fused in the forward pass, and query by query chunk in the backward pass.

B batch, T tokens, H heads, K key/value heads, G queries that share one, d head width, Q queries of a chunk.
With a cache the first `start` tokens have been read before: queries are those of the tokens behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from tintformer.auxiliary.ops import Alibi, Attend, Norm, Rotary
from tintformer.execution.batch import Batch
from tintformer.execution.continuation import KeyValueCache
from tintformer.rule import activation, attention
from tintformer.rule.attention import AttentionContext, AttentionHeads, HeadGradients
from tintformer.rule.learning_rule import LearningRule


class Normed(NamedTuple):
    """The input of a norm, and what its backward pass needs of the forward pass."""

    x: Tensor
    mean: Tensor | None
    """LayerNorm only."""
    inverse: Tensor
    """1 / sigma."""


def norm_forward(
    op: Norm, x: Float[Tensor, "B T D"], scale: Tensor | None, bias: Tensor | None
) -> tuple[Float[Tensor, "B T D"], Normed]:
    """y = scale * f(x) + bias; scale and bias are `[D]`."""
    # As the families' own code does: the square of 256 overflows float16, and activations have larger outliers.
    wide, dtype = _widen(x), x.dtype
    scale, bias = (None if vector is None else vector.to(wide.dtype) for vector in (scale, bias))
    if op.kind == "layer":
        y, mean, inverse = torch.native_layer_norm(wide, [x.shape[-1]], scale, bias, op.epsilon)
        return y.to(dtype), Normed(wide, mean, inverse)
    # A length, squared again: reduced in one reading of x, where the mean of x^2 would first write all squares.
    squares = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1])
    inverse = squares.add_(op.epsilon).rsqrt_()
    y = wide * inverse
    if scale is not None:
        y.mul_(scale)
    if bias is not None:
        y.add_(bias)
    return y.to(dtype), Normed(wide, None, inverse)


def norm_backward(saved: Normed, dy: Float[Tensor, "B T D"], scale: Tensor | None) -> Float[Tensor, "B T D"]:
    """The exact gradient of the norm's input; `scale` is `[D]`."""
    x, mean, inverse = saved
    wide = dy.to(x.dtype)
    scale = None if scale is None else scale.to(x.dtype)
    if mean is not None:
        # dx alone: the gradients of scale and bias would be summed over
        # the batch, and every sequence learns by itself.
        shape, mask = [x.shape[-1]], [True, False, False]
        dx = torch.ops.aten.native_layer_norm_backward(wide, x, shape, mean, inverse, scale, None, mask)[0]
        return dx.to(dy.dtype)
    dz = wide if scale is None else wide * scale
    # `rule.norm` has (dz - z mean(dz z)) / sigma. z = x / sigma was not
    # kept: dz - x (dz . x) / (D sigma^2) is the same.
    share = torch.linalg.vecdot(dz, x).unsqueeze(-1).mul_(inverse.square() / x.shape[-1])
    return torch.addcmul(dz, x, share, value=-1).mul_(inverse).to(dy.dtype)


def _widen(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@dataclass(frozen=True)
class Fused:
    """An activation by torch's own kernels."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    """(dy, x) -> dx."""
    only_rounded: bool = False
    """Differs from the family's own formula by less than float32 can tell, so it serves up to float32 only."""


def _gelu(approximate: str, *, only_rounded: bool = False) -> Fused:
    def forward(x: Tensor) -> Tensor:
        return functional.gelu(x, approximate=approximate)

    def backward(dy: Tensor, x: Tensor) -> Tensor:
        return torch.ops.aten.gelu_backward(dy, x, approximate=approximate)

    return Fused(forward, backward, only_rounded)


# silu has two names in transformers' configurations.
_SILU = Fused(functional.silu, torch.ops.aten.silu_backward)

FUSED: dict[str, Fused] = {
    # 0 at 0, as autograd has it and `auxiliary.activations`.
    "relu": Fused(torch.relu, lambda dy, x: torch.ops.aten.threshold_backward(dy, x, 0.0)),
    "gelu": _gelu("none"),
    "gelu_new": _gelu("tanh"),
    "gelu_pytorch_tanh": _gelu("tanh"),
    "gelu_fast": _gelu("tanh", only_rounded=True),
    "gelu_bloom": _gelu("tanh", only_rounded=True),
    "silu": _SILU,
    "swish": _SILU,
}


def _fused(function: str, dtype: torch.dtype) -> Any:
    found = FUSED.get(function)
    # Engines agree to round-off in float64, which sees the digits that a family leaves off a constant.
    return None if found is None or (found.only_rounded and dtype == torch.float64) else found


def activation_forward(function: str, x: Tensor) -> Tensor:
    fused = _fused(function, x.dtype)
    return activation.forward(x, function=function) if fused is None else fused.forward(x)


def activation_backward(function: str, x: Tensor, dy: Tensor) -> Tensor:
    """The exact gradient of the activation's input."""
    fused = _fused(function, x.dtype)
    return activation.backward(x, dy, function=function) if fused is None else fused.backward(dy, x)


class FusedAttention:
    """The attentions of one pass over a batch; masks and rotations are made once a device."""

    def __init__(
        self, batch: Batch, dtype: torch.dtype, budget: int, *, cache: KeyValueCache | None = None, start: int = 0
    ):
        self.batch, self.dtype, self.budget = batch, dtype, budget
        self.cache, self.start = cache, start
        self.plain = batch.is_plain()
        self.rotations: dict[tuple[Rotary, torch.device], attention.Rotation] = {}
        self.masks: dict[tuple[int | None, torch.device], Tensor] = {}

    def heads(self, op: Attend, inputs: tuple[Tensor, ...]) -> AttentionHeads:
        """Cut into heads and rotate; the whole of what a backward pass needs, keys and values of a cache included."""
        heads = attention.split(inputs, op, self._context(op, inputs[0].shape[1], inputs[0].device))
        # Rotated in the compute dtype, kept in the model's: heads are most of what the tape holds of an attention.
        query, key, value = (x.to(inputs[0].dtype) for x in heads)
        if self.cache is not None:
            key, value = self.cache.extend(op.name, key, value, self.start)
        return AttentionHeads(query, key, value)

    def merge(self, op: Attend, gradients: AttentionHeads) -> tuple[Tensor, ...]:
        """Gradients of the heads back to gradients of queries, keys and values."""
        merged = attention.merge(gradients, op, self._context(op, gradients.key.shape[-2], gradients.key.device))
        return tuple(x.to(gradients.value.dtype) for x in merged)

    def forward(self, op: Attend, heads: AttentionHeads) -> Float[Tensor, "B T Hd"]:
        """Softmax attention by torch's fused kernel."""
        query = heads.query.flatten(1, 2)
        key, value = (_shared(x, op) for x in heads[1:])
        # Without a mask the kernel need not read one, and skips what lies above the diagonal. Its
        # `is_causal` counts from the first key, which is wrong behind a cache unless the only query
        # is the last token, which needs no mask at all.
        causal_alone = self.plain and self._window(op) is None and not isinstance(op.position, Alibi)
        if causal_alone and (self.start == 0 or query.shape[2] == 1):  # one new token sees all that there are
            y = functional.scaled_dot_product_attention(query, key, value, is_causal=self.start == 0, scale=op.scale)
        else:
            parts = [
                functional.scaled_dot_product_attention(
                    query[:, :, rows],
                    key[:, :, :end],
                    value[:, :, :end],
                    # The smallest float32 becomes -inf in half precisions; no row is
                    # empty (`Batch.visible`), so no NaN comes of it.
                    self._bias(op, rows, end, query.device).to(query.dtype),
                    scale=op.scale,
                )
                for rows, end in self._chunks(heads)
            ]
            y = torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]
        return y.transpose(1, 2).flatten(2)

    def backward(
        self, op: Attend, heads: AttentionHeads, dy: Float[Tensor, "B T Hd"], rule: LearningRule
    ) -> HeadGradients:
        """What all queries send to the heads; scores exist for one chunk of queries at a time.

        Keys and values of a cache are constants: no gradient goes beyond them.
        """
        dtype = heads.value.dtype
        # Widened: weights are recomputed from the scores, and chunks of queries add up into dk and dv.
        heads, dy = AttentionHeads(*(x.to(self.dtype) for x in heads)), dy.to(self.dtype)
        queries: list[Tensor] = []
        dkey: Tensor | None = None
        dvalue, positions = torch.zeros_like(heads.value), self.batch.on(dy.device).positions
        for rows, end in self._chunks(heads):
            # Rotations were applied when the heads were cut, so a chunk needs none.
            mask = self._mask(op, rows, end, dy.device)[:, None, None]
            # Keys behind a chunk's last query are hidden from all of it:
            # leaving them out halves the work of a long text.
            part = AttentionHeads(heads.query[..., rows, :], heads.key[..., :end, :], heads.value[..., :end, :])
            found = attention.head_gradients(
                part,
                dy[:, rows],
                op,
                AttentionContext(mask=mask, positions=positions[:, :end]),
                scheme=rule.attention_gradient,
                step=rule.difference_step(rule.attention_gradient),
                mode=rule.epsilon_mode,
            )
            dvalue[..., :end, :] += found.value
            if found.query is not None and found.key is not None:
                queries.append(found.query)
                dkey = torch.zeros_like(heads.key) if dkey is None else dkey
                dkey[..., :end, :] += found.key
        dvalue = dvalue[..., self.start :, :].to(dtype)
        if dkey is None:
            return HeadGradients(None, None, dvalue)
        return HeadGradients(torch.cat(queries, dim=-2).to(dtype), dkey[..., self.start :, :].to(dtype), dvalue)

    def _chunks(self, heads: AttentionHeads) -> Iterator[tuple[slice, int]]:
        """Runs of queries whose scores fit the budget, each with the number of keys that it can see."""
        tokens, count = heads.query.shape[-2], heads.query[..., 0, 0].numel()
        size = max(1, self.budget // (count * heads.key.shape[-2] * self.dtype.itemsize))
        for first in range(0, tokens, size):
            end = min(first + size, tokens)
            yield slice(first, end), self.start + end

    def _context(self, op: Attend, tokens: int, device: torch.device) -> AttentionContext:
        here = slice(self.start, self.start + tokens)
        everywhere = self.batch.on(device).positions
        positions = everywhere[:, here]
        rotary = op.position
        rotation = None
        if isinstance(rotary, Rotary):
            if (rotary, device) not in self.rotations:
                self.rotations[rotary, device] = attention.rotation(rotary, everywhere, self.dtype)
            cos, sin = self.rotations[rotary, device]
            rotation = attention.Rotation(cos[:, here], sin[:, here])
        # Cutting and merging heads reads the rotation alone; who sees whom is said chunk by chunk, by `_mask`.
        return AttentionContext(
            mask=positions.new_zeros(1, 1, 1, 1, tokens, dtype=self.dtype), positions=positions, rotation=rotation
        )

    def _window(self, op: Attend) -> int | None:
        """The window where it hides anything."""
        tokens = self.batch.input_ids.shape[1]
        # A model with windows then reads a short text by the kernel without a mask.
        return None if op.window is None or op.window >= tokens else op.window

    def _mask(self, op: Attend, rows: slice, end: int, device: torch.device) -> Float[Tensor, "one_or_B Q T"]:
        """The additive mask of a run of queries."""
        window = self._window(op)
        if self.plain and window is None:
            # Made for each chunk: all chunks together would be the [T, T] that chunks are there to avoid.
            places = torch.arange(end, device=device)
            hidden = places > places[self.start :][rows, None]
            return torch.zeros(hidden.shape, dtype=self.dtype, device=hidden.device).masked_fill_(
                hidden, torch.finfo(self.dtype).min
            )[None]
        if (window, device) not in self.masks:
            batch = self.batch.on(device)
            self.masks[window, device] = batch.additive_mask(self.dtype, window, first=self.start)
        return self.masks[window, device][:, rows, :end]

    def _bias(self, op: Attend, rows: slice, end: int, device: torch.device) -> Float[Tensor, "one_or_B one_or_H Q T"]:
        """Mask and ALiBi, as the fused kernel takes them."""
        bias = self._mask(op, rows, end, device)[:, None]
        if isinstance(op.position, Alibi):
            slopes = op.position.slopes.to(device, self.dtype)[:, None, None]
            positions = self.batch.on(device).positions[:, None]
            # Distances, not positions: a softmax does not care, but half precisions would round large numbers.
            asking = positions[..., self.start :][..., rows, None]
            bias = bias + slopes * (positions[..., None, :end] - asking).to(self.dtype)
        return bias


def _shared(x: Float[Tensor, "B K T d"], op: Attend) -> Float[Tensor, "B H T d"]:
    """Keys or values repeated for all queries that share them."""
    groups = op.num_heads // op.num_key_value_heads
    # In the order of `rule.attention.split`: the G queries of a key/value head are neighbours.
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)
