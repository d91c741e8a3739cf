"""Methods: the ways to learn from the training part that are compared, each without its rate, and how each is done.

Methods that streams are compared by: how each learns from a chunk that it has scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tintformer.errors import InputError, brief, nearest
from tintformer.rule.learning_rule import LearningRule
from tintlab.methods import adapters
from tintlab.methods.adapters import AdapterMethod
from tintlab.methods.ia3 import Ia3
from tintlab.methods.lora import Lora
from tintlab.methods.shared_gradients import SharedGradients, knows_no_rate

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary
    from tintformer.execution.output import Logits, TintOutput
    from tintformer.learning.tuned import Tuned


Adaptation = LearningRule | AdapterMethod
"""All that decides what is learnt from given tokens."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to learn: which gradient, and which parameters it moves."""

    title: str
    """What tables call it."""
    preset: Callable[..., Adaptation] | None = None
    """Makes the rule (or what stands for one); None where nothing is learnt."""
    knobs: dict[str, Any] = field(default_factory=dict[str, Any])
    rate_of: str | None = None
    """The method whose rate it takes, so that the two differ in their gradient alone; None: it has its own."""

    @property
    def chooses_rate(self) -> bool:
        """Whether it learns, at a rate of its own."""
        return self.preset is not None and self.rate_of is None

    def rule(self, rate: float, *, layers: int | None, steps: int) -> Adaptation | None:
        """The rule at a rate; None where nothing is learnt."""
        if self.preset is None:
            return None
        return self.preset(learning_rate=rate, layers=layers, steps=steps, **self.knobs)


# The paper's own baselines (section "Experiments") are the model as it is and fine-tuning of all block weights. The
# others split the gap to TinT: which parameters move, and by which gradient.
METHODS = {
    "auxiliary": Method(title="the model as it is"),
    "fine-tuning": Method(title="fine-tuning, all block weights", preset=LearningRule.full),
    "linears": Method(title="fine-tuning, block linears", preset=LearningRule.full, knobs={"update_norm_scale": False}),
    "moved": Method(title="fine-tuning, what TinT moves", preset=LearningRule, knobs={"attention_gradient": "exact"}),
    "moved-same-rate": Method(
        title="fine-tuning, what TinT moves, at TinT's rate",
        preset=LearningRule,
        knobs={"attention_gradient": "exact"},
        rate_of="tint",
    ),
    "tint": Method(title="TinT", preset=LearningRule),
    "tint-paper": Method(title="TinT, differences as printed", preset=LearningRule.paper),
    # The losses without a softmax that the authors tried (appendix, "Language model head"): "minimal improvement".
    "mse": Method(title="TinT, squared error", preset=LearningRule, knobs={"loss": "mse"}),
    "quad": Method(title="TinT, quad loss", preset=LearningRule, knobs={"loss": "quad"}),
    "lora": Method(title="LoRA", preset=Lora),
    "ia3": Method(title="IA3", preset=Ia3),
}
"""By name. Fine-tuning is SGD by the true gradient. Every engine takes it, `oracle` by autograd; parity between them is
tested, so the fast one does it unless another is asked for. Adapters are trained by autograd whatever the engine."""


def find_methods(names: tuple[str, ...], table: Mapping[str, Method] = METHODS) -> dict[str, Method]:
    """Methods by name, in the order of the table; one that takes another's rate comes after that one."""
    unknown = [name for name in names if name not in table]
    if unknown:
        near = nearest(unknown[0], table)
        raise InputError(f"unknown method {brief(unknown[0])}; choose from {', '.join(table)}{near}")
    missing = [name for name in names if table[name].rate_of not in (None, *names)]
    if missing:
        raise InputError(f"{missing[0]} takes the rate of {table[missing[0]].rate_of}; add that method")
    found = {name: table[name] for name in table if name in names}
    return dict(sorted(found.items(), key=lambda item: item[1].rate_of is not None))


def learn_each(
    auxiliary: Auxiliary,
    rule: Adaptation,
    engine: str,
    *,
    logits: Logits = "none",
    gradients: SharedGradients | None = None,
    **learning: Any,
) -> TintOutput:
    """Every sequence learns from its own training part, and is predicted afterwards.

    With `gradients`, what rates share is taken once for all of them where that can be.
    """
    from tintformer.execution.batch import Batch

    if isinstance(rule, AdapterMethod):
        return adapters.learn_each(auxiliary, rule, Batch.of(auxiliary, **learning), logits=logits)
    if gradients is not None and knows_no_rate(rule, engine):
        return gradients.learn_each(auxiliary, rule, Batch.of(auxiliary, **learning), logits=logits)
    from tintformer.learning.tint import Tint

    return Tint(auxiliary, rule, engine=engine)(**learning, logits=logits)


def learn_once(auxiliary: Auxiliary, rule: Adaptation | None, **learning: Any) -> Tuned:
    """One update from all sequences together; with None in place of a way to learn, none at all."""
    if rule is None:
        from tintformer.learning.tuned import Tuned

        return Tuned.untrained(auxiliary)
    if isinstance(rule, AdapterMethod):
        from tintformer.execution.batch import Batch

        return adapters.learn(auxiliary, rule, Batch.of(auxiliary, **learning))
    from tintformer.learning.tint import Tint

    return Tint(auxiliary, rule).adapt(**learning)


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
