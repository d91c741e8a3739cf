"""IA3 (Liu et al., 2022): vectors that scale keys, values and the inside of feed-forward layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tintformer.errors import RuleError
from tintlab.methods.adapters import ADAPTER, AdapterMethod, pattern_of

if TYPE_CHECKING:
    from torch import Tensor

    from tintformer.auxiliary.ops import Linear
    from tintformer.engines.fast.updates import MatrixUpdate

INSIDE = "down"
"""The linear whose inputs are scaled: those of a feed-forward layer's second matrix."""
SCALED = ("key", "value", INSIDE)
"""What the paper scales. Its keys and values are scaled where they come out of their linears, biases included."""


@dataclass(frozen=True, kw_only=True)
class Ia3(AdapterMethod):
    """A factor for every output of the keys and values, and for every input of the second feed-forward matrix.

    All factors start at 1. Where queries, keys and values are one module (GPT-2, BLOOM, NeoX), `peft` scales all of it.
    """

    scaled: tuple[str, ...] = SCALED
    """Which linears of a block have factors: key, value, down. Fewer learn less."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.scaled or set(self.scaled) - set(SCALED):
            raise RuleError(f"scaled={self.scaled!r} must be some of {', '.join(SCALED)}")

    def targets(self, linears: Sequence[Linear]) -> list[Linear]:
        return [op for op in linears if _role(op) in self.scaled]

    def config(self, linears: Sequence[Linear]) -> Any:
        from peft import IA3Config

        return IA3Config(
            target_modules=pattern_of(linears),
            # A pattern that nothing matches, where no feed-forward layer is scaled: peft wants one.
            feedforward_modules=pattern_of(op for op in linears if _role(op) == INSIDE) or "none",
            fan_in_fan_out=linears[0].weight.transposed,
        )

    def learnt(self, linear: Linear, layer: Any, dtype: Any) -> tuple[MatrixUpdate, Tensor | None]:
        """W (l - 1) along the outputs or the inputs, which has the rank of W, so that it is formed."""
        from tintformer.engines.fast.updates import MatrixUpdate, widened

        factors = layer.ia3_l[ADAPTER].detach() - 1
        # One for each output, `[out, 1]`, of which a part of a fused weight has its own, or one for each input.
        own = factors if layer.is_feedforward else replace(linear.weight, source=factors, transposed=False).read()
        dense = widened(linear.weight.read()) * own.to(widened(linear.weight.read()))
        bias = None
        if linear.bias is not None and not layer.is_feedforward:
            bias = (widened(linear.bias.read()) * own[:, 0].to(dense))[None]
        return MatrixUpdate(dual=False, keep=True, dense=dense[None], own_bias=True), bias


def _role(op: Linear) -> str:
    return op.name.rpartition(".")[2]
