"""Methods that streams are compared by: how each learns from a chunk that it has scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tintformer.rule.learning_rule import LearningRule
from tintlab.methods.lora import Lora
from tintlab.methods.methods import METHODS, Adaptation, Method

MOMENTUM = 0.9
DECAY = 0.02
"""Share of the change that is taken back after every chunk."""


@dataclass(frozen=True, kw_only=True)
class StreamMethod(Method):
    """A way to learn while reading."""

    by_depth: Callable[[int], dict[str, Any]] | None = None
    """Knobs that depend on how many blocks a model has."""

    def at(self, rate: float, *, blocks: int, layers: int | None, steps: int) -> Adaptation | None:
        """The rule at a rate for a model of so many blocks."""
        if self.preset is None:
            return None
        own = {} if self.by_depth is None else self.by_depth(blocks)
        return self.preset(learning_rate=rate, **{"layers": layers, "steps": steps, **self.knobs, **own})


def _top_quarter(blocks: int) -> dict[str, Any]:
    return {"layers": max(1, blocks // 4)}


def _rising(blocks: int) -> dict[str, Any]:
    """From 1 / blocks at the lowest block to 1 at the highest."""
    return {"rates": tuple((f"blocks.{number}.*", (number + 1) / blocks) for number in range(blocks))}


STREAM_METHODS: dict[str, StreamMethod] = {
    "auxiliary": StreamMethod(title=METHODS["auxiliary"].title),
    "sgd": StreamMethod(title="SGD", preset=LearningRule.full),
    "momentum": StreamMethod(title=f"momentum {MOMENTUM}", preset=LearningRule.full, knobs={"momentum": MOMENTUM}),
    "decay": StreamMethod(title=f"SGD, decay {DECAY}", preset=LearningRule.full, knobs={"decay": DECAY}),
    "rms": StreamMethod(title="RMS of tuning texts", preset=LearningRule.full, knobs={"optimizer": "rms"}),
    "adam": StreamMethod(title="Adam", preset=LearningRule.full, knobs={"optimizer": "adam"}),
    "muon": StreamMethod(title="Muon", preset=LearningRule.full, knobs={"optimizer": "muon"}),
    "layer-rates": StreamMethod(title="SGD, rates by layer", preset=LearningRule.full, by_depth=_rising),
    "top-quarter": StreamMethod(title="SGD, top quarter", preset=LearningRule.full, by_depth=_top_quarter),
    "tint": StreamMethod(title="SGD, TinT's rule", preset=LearningRule),
    "lora": StreamMethod(title="LoRA by Adam", preset=Lora),
}
"""By name. All but the last two take the true gradient of all block weights; `tint` that of the default rule. LoRA is
trained by autograd, document by document."""
