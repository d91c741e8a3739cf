"""LoRA: low-rank matrices beside every linear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from tintformer.typed_fields import Range
from tintlab.methods.adapters import ADAPTER, AdapterMethod, pattern_of

if TYPE_CHECKING:
    from tintformer.auxiliary.ops import Linear
    from tintformer.engines.fast.updates import MatrixUpdate


@dataclass(frozen=True, kw_only=True)
class Lora(AdapterMethod):
    """Adapters on all linears of the top blocks: W + alpha / rank * B A, where B starts at zero and A at random.

    The first step of Adam moves B alone, because A gets no gradient while B is zero.
    """

    rank: Annotated[int, Range(at_least=1)] = 8
    """Rows of A. More can learn more, and cost more."""
    alpha: Annotated[int, Range(at_least=1)] = 16
    """The change is scaled by alpha / rank, so that a rate suits several ranks."""
    seed: Annotated[int, Range(at_least=0)] = 0
    """Draws A, the same for every sequence."""

    @property
    def initial_seed(self) -> int:
        return self.seed

    def targets(self, linears: Sequence[Linear]) -> list[Linear]:
        return list(linears)

    def config(self, linears: Sequence[Linear]) -> Any:
        from peft import LoraConfig

        return LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            target_modules=pattern_of(linears),
            fan_in_fan_out=linears[0].weight.transposed,
        )

    def learnt(self, linear: Linear, layer: Any, dtype: Any) -> tuple[MatrixUpdate, None]:
        """B A as factors; the parts of a fused weight have A in common, and rows of B each."""
        from tintformer.engines.fast.updates import Factors, MatrixUpdate

        first, second = (matrices[ADAPTER].weight.detach() for matrices in (layer.lora_A, layer.lora_B))
        # Adapters are linears `[out, in]` whatever the orientation of the weight.
        rows = replace(linear.weight, source=second, transposed=False).read()
        x, g = (factor[None].to(dtype, copy=True) for factor in (first, rows.mT))
        factors = Factors(x, g, -layer.scaling[ADAPTER])
        return MatrixUpdate(dual=True, keep=True, factors=[factors]), None
