"""TinT attention (paper: section "Notations", definition "TinT's self-attention"): linear or softmax, over any heads.

Tensors are `[B, N, H, M, T, d]`: batch, input piece, head, output piece, token, coordinate; an axis of 1 is shared.
q counts the tokens that ask, p those that answer. A linear module has its S S' heads in H and the pieces of a matrix
in N and M; the auxiliary's own attention has its key/value heads in N and the queries that share one in H.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tintformer.simulator.primitives.selection import MatrixProduct
from tintformer.simulator.primitives.tokenwise import DimensionWise, Primitive, SplitWise, constant
from tintformer.simulator.regions import Region

Heads = Float[Tensor, "B N H M T d"]
Stream = Mapping[Region, Tensor]
"""Regions of an embedding, each by heads; a region that is not there is zero."""
Term = tuple[Tensor, float]
"""Attention weights, and the factor of the heads that have them."""
Weigh = Callable[[Tensor, Tensor | None], list[Term]]
"""From scores and a mask to attention weights."""


class Positional(Primitive):
    """The positional term of a port: a linear map of one-hot positions, switched on or off head by head."""

    def __init__(self, table: Float[Tensor, "positions d"], switches: Float[Tensor, " shared_or_H"], *, used: int):
        super().__init__()
        # W^p and lambda of the definition: one map of positions for all heads, and a switch for each.
        self.table, self.switches = constant(table), constant(switches)
        self.used = used
        """How many positions take part; the others (those of the text) have rows of zeros."""

    def forward(self) -> Float[Tensor, "1 1 H 1 positions d"]:
        # A map that all heads share is switched, and later multiplied, once for all of them.
        by_head = self.switches[:, None, None] * self.table[: self.used]
        return by_head[None, None, :, None]


class Bias(Primitive):
    """A constant query, key or value of every head, the same for all tokens."""

    def __init__(self, value: Float[Tensor, "H d"]):
        super().__init__()
        self.value = constant(value)

    def forward(self) -> Float[Tensor, "1 1 H 1 1 d"]:
        return self.value[None, None, :, None, None]


class Port(nn.Module):
    """What queries, keys or values are made of: a linear map of a region, and a positional term.

    Several regions are heads side by side. `idle` holds weights that the paper's layout has and this module does not
    need: all zero, never multiplied.
    """

    def __init__(
        self,
        *reads: Region,
        first_head: int = 0,
        factors: Sequence[DimensionWise | SplitWise] = (),
        positional: Positional | Bias | None = None,
        idle: Sequence[nn.Module] = (),
    ):
        super().__init__()
        assert reads or positional is not None, "a port carries a region, a position, or both"
        self.reads, self.first_head = reads, first_head
        self.factors, self.positional, self.idle = nn.ModuleList(factors), positional, nn.ModuleList(idle)

    def forward(self, stream: Stream) -> Heads:
        if not self.reads:
            assert self.positional is not None
            return self.positional()
        regions = [stream[region] for region in self.reads]
        heads, first = regions[0] if len(regions) == 1 else torch.cat(regions, dim=2), self.first_head
        # Only the heads of the region are given, the rest of the embedding is zero: a split-wise map keeps them where
        # they are, a dimension-wise one fills all heads, and whatever follows starts at head 0.
        for factor in self.factors:
            heads = factor(heads, first)
            first = first if isinstance(factor, SplitWise) else 0
        return heads


class Joined(nn.Module):
    """Ports side by side: [a, b] . [c, d] = a . c + b . d."""

    def __init__(self, *ports: Port):
        super().__init__()
        self.ports = nn.ModuleList(ports)

    def forward(self, stream: Stream) -> Heads:
        parts = [port(stream) for port in self.ports]
        return torch.cat(parts, dim=-1)


class Attention(Primitive):
    """sum_p f(q . k)_p v_p by head, then a linear map of the heads."""

    def __init__(
        self,
        *,
        query: Port | Joined,
        key: Port | Joined,
        value: Port,
        output: Sequence[DimensionWise | SplitWise] = (),
        weigh: Weigh,
        sum_over: str = "",
        transposed: bool = False,
        product: MatrixProduct | None = None,
    ):
        """`product`: what the attention comes to where it is linear and its tables only select."""
        super().__init__()
        self.query, self.key, self.value = query, key, value
        self.output = nn.ModuleList(output)
        self.weigh, self.transposed = weigh, transposed
        self.product = product if weigh is linear else None
        # Where the output map only adds heads or pieces, the sum is part of the product: no partial sums are stored.
        kept = [axis for axis in "bnhm" if axis not in sum_over]
        answer, of = ("p", "q") if transposed else ("q", "p")
        self.equation = f"bnhmqp,bnhm{of}d->{''.join(kept)}{answer}d"
        self.summed = tuple("bnhm".index(axis) for axis in sum_over)

    def forward(self, asking: Stream, answering: Stream, mask: Tensor | None = None) -> Heads:
        """The output of every asking token (of every answering one, if `transposed`).

        `mask` is what the form of attention takes: added to the scores of a softmax, multiplied into linear ones.
        Transposed, the values are read from the asking tokens: token p collects what each q sends it.
        """
        if self.product is not None and mask is None and self.product.replaces(self):
            return self.product(self, asking, answering)
        # No 1 / sqrt(d), as in the definition: where the auxiliary scales, its factor is part of the query's map.
        scores = torch.einsum("bnhmqd,bnhmpd->bnhmqp", self.query(asking), self.key(answering))
        value = self.value(asking if self.transposed else answering)
        if not self.transposed:  # a key that all tokens share still answers once a token
            scores = scores.expand(*scores.shape[:-1], value.shape[-2])
        heads = self._collect(self.weigh(scores, mask), value)
        for factor in self.output:
            heads = factor(heads)
        return heads

    def _collect(self, terms: list[Term], value: Tensor) -> Heads:
        """The values under the weights of every term; a form other than linear has more heads than one set."""
        # `value` is no `Heads` beside the result: its tokens are those that answer, the result's those that ask.
        sums: list[Tensor] = []
        for weights, factor in terms:
            heads = torch.einsum(self.equation, weights, value)
            for axis in self.summed:
                heads = heads.unsqueeze(axis)
            sums.append(heads if factor == 1.0 else heads * factor)
        return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


def linear(scores: Tensor, mask: Tensor | None) -> list[Term]:
    """The scores are the weights."""
    return [(scores if mask is None else scores * mask, 1.0)]


def softmax(scores: Tensor, mask: Tensor | None) -> list[Term]:
    """The softmax of the scores plus the mask."""
    return [((scores if mask is None else scores + mask).softmax(-1), 1.0)]


def linear_as_softmax(form: str, epsilon: float) -> Weigh:
    """A linear attention by softmax attentions with one extra token (paper: theorem "linear as softmax").

    The extra token has the score -2 log(epsilon) and no value, so that every other weight is about epsilon^2 times
    (1 + epsilon a). `printed` takes epsilon^-3 times one softmax and subtracts 1 / epsilon by a second set of heads
    that see all tokens alike; `pair` takes the difference of two softmaxes at +epsilon and -epsilon, in which the
    constant cancels, and with it every error of even order.
    """
    return partial({"printed": _printed, "pair": _pair}[form], epsilon)  # which a pickle can hold, unlike a closure


def _weights_of(scores: Tensor, mask: Tensor | None, extra: float) -> Tensor:
    if mask is not None:
        scores = scores.expand(torch.broadcast_shapes(scores.shape, mask.shape))
        # A linear mask multiplies; under a softmax, a hidden token must have no weight, not the score zero.
        scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
    token = scores.new_full((*scores.shape[:-1], 1), extra)
    return torch.cat((scores, token), dim=-1).softmax(-1)[..., :-1]


def _printed(epsilon: float, scores: Tensor, mask: Tensor | None) -> list[Term]:
    # The heads H + h of the proof: weight 1 / (T + 1) on all tokens, times (T + 1) / epsilon in the output map.
    uniform = _weights_of(torch.zeros_like(scores), mask, 0.0)
    visible = float(scores.shape[-1]) if mask is None else (mask != 0).sum(-1, keepdim=True)
    seen = _weights_of(epsilon * scores, mask, -2 * math.log(epsilon))
    return [(seen, epsilon**-3), (uniform * (visible + 1), -1 / epsilon)]


def _pair(epsilon: float, scores: Tensor, mask: Tensor | None) -> list[Term]:
    # Not in the paper. The proof's constant 1 / epsilon is far larger than the scores, and costs their digits.
    ahead, behind = (_weights_of(sign * epsilon * scores, mask, -2 * math.log(epsilon)) for sign in (1, -1))
    return [(ahead, epsilon**-3 / 2), (behind, -(epsilon**-3) / 2)]
