"""Linear attention of a dense network by softmax heads and one extra token (paper: theorem "linear as softmax").

The extra token is the last one of the prefix: all zeros, and seen by every token. Its score -2 log(epsilon) is a
product of positional terms, so that any other token that is seen has a weight of about epsilon^2 (1 + epsilon a); what
such weights are multiplied by is part of W_O. Who sees whom is told by positions: those that ask nothing see the extra
token alone, and nothing comes to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn import functional

from tintformer.network.dense import DenseAttention
from tintformer.network.stream import Frame
from tintformer.simulator.construction import SoftmaxForm
from tintformer.simulator.primitives.tokenwise import constant

Head = tuple[float, float, float]
"""Factor of the scores, score of the extra token, factor of the output."""


def by_softmax(layer: DenseAttention, frame: Frame, form: SoftmaxForm, epsilon: float) -> DenseAttention:
    """The layer with softmax heads in place of its linear ones, two for each; a softmax layer stays as it is."""
    if layer.order is not None:
        return layer
    visible = _visible(layer, frame)
    heads = _heads(form, epsilon, num_visible=int(visible.sum(1).max()))
    layer.query, layer.at_query = (
        _side_by_side(port, [factor for factor, _, _ in heads]) for port in (layer.query, layer.at_query)
    )
    layer.key, layer.at_key, layer.value, layer.at_value = (
        _side_by_side(port, [1.0] * len(heads)) for port in (layer.key, layer.at_key, layer.value, layer.at_value)
    )
    layer.output = constant(torch.cat([layer.output * factor for _, _, factor in heads]))
    # One more coordinate of queries and keys: 1 at every asking token, the score at the extra one.
    one, score = torch.ones_like(layer.at_query[..., :1]), torch.zeros_like(layer.at_key[..., :1])
    of_form = torch.tensor([extra for _, extra, _ in heads], dtype=torch.float64)
    score[_extra(frame), :, 0] = of_form.repeat_interleave(score.shape[1] // len(heads)).to(score)
    layer.at_query = constant(torch.cat((layer.at_query, one), dim=-1))
    layer.at_key = constant(torch.cat((layer.at_key, score), dim=-1))
    layer.query, layer.key = (constant(functional.pad(port, (0, 1))) for port in (layer.query, layer.key))
    visible[:, _extra(frame)] = True
    layer.order = constant(~visible)
    return layer


def _heads(form: SoftmaxForm, epsilon: float, *, num_visible: int) -> list[Head]:
    """One linear head by two: as printed, or as the difference of two softmaxes."""
    extra = -2 * math.log(epsilon)
    if form == "printed":
        return [(epsilon, extra, epsilon**-3), (0.0, 0.0, -(num_visible + 1) / epsilon)]
    return [(epsilon, extra, epsilon**-3 / 2), (-epsilon, extra, -(epsilon**-3) / 2)]


def _side_by_side(port: Tensor, factors: Sequence[float]) -> nn.Parameter:
    return constant(torch.cat([port * factor for factor in factors], dim=1))


def _extra(frame: Frame) -> int:
    return frame.num_prefix - 1


def _visible(layer: DenseAttention, frame: Frame) -> Bool[Tensor, "L L"]:
    """Tokens whose query is not always zero see those that a positional key or value points out, else the text."""
    text = torch.arange(frame.length) >= frame.num_prefix
    asking = _points_out(layer.at_query) if bool(layer.at_query.any()) else text
    pointed_out = _points_out(layer.at_key) | _points_out(layer.at_value)
    answering = pointed_out if bool(pointed_out.any()) else text
    return asking[:, None] & answering[None]


def _points_out(port: Tensor) -> Bool[Tensor, " L"]:
    return (port != 0).flatten(1).any(1)
