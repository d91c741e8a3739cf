"""LearningRule: how the auxiliary learns inside the pass.

What tables and reports call a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from tintformer.errors import RuleError
from tintformer.typed_fields import FLOAT32_MAX, Range, check_fields, checked, explained, shown

Loss = Literal["cross_entropy", "mse", "quad"]
Reduction = Literal["sum", "mean"]
Gradient = Literal["exact", "first_order", "central"]
AttentionGradient = Literal["value", "exact", "perturbed"]
EpsilonMode = Literal["fixed", "relative"]
Auto = Literal["auto"]
Optimizer = Literal["sgd", "rms", "adam", "muon"]

STEPS: dict[tuple[str, str], float] = {
    ("first_order", "relative"): 3e-4,
    ("central", "relative"): 3e-3,
    ("perturbed", "relative"): 3e-4,
    ("first_order", "fixed"): 1e-2,
    ("central", "fixed"): 1e-2,
    ("perturbed", "fixed"): 3e-3,
}
"""Default steps: the smallest worst case over two real models in float32 (docs/approximations.md)."""

A_NUMBER = "give one, such as tintformer.choose_rate(model, rule, input_ids, train_mask).rate"
"""What to do where `auto` cannot be used."""


@explained
@dataclass(frozen=True, kw_only=True)
class LearningRule:
    """The descent that happens inside one forward pass.

    The defaults are the paper's simulated gradient in the limit of small differences: norms and activations exact,
    attention through its values only. `paper()` has the differences as printed, `full()` is plain SGD.
    """

    # 0 is allowed: it is the model as it is, the baseline of every comparison.
    learning_rate: Annotated[float, Range(at_least=0, at_most=FLOAT32_MAX)] | Auto
    """Step size. With a summed loss the best one differs 20-fold between models and lies within 2x of divergence:
    too small and nothing is learnt, twice the best and the loss explodes. `auto` has it chosen for each sequence."""
    steps: Annotated[int, Range(at_least=1)] = 1
    """Gradient steps inside the pass. More steps want a smaller rate."""
    layers: Annotated[int | None, Range(at_least=1)] = None
    """How many of the top blocks learn; None: all. Fewer blocks cost less and learn less."""
    loss: Loss = "cross_entropy"
    """What is minimised; `mse` and `quad` compare with the head's row of the next token and need no softmax."""
    reduction: Reduction = "sum"
    """`sum` over the scored targets is the paper's; `mean` divides by their number in the sequence."""
    norm_gradient: Gradient = "exact"
    """How gradients pass a norm: its derivative, or a difference of two forward passes of it."""
    activation_gradient: Gradient = "exact"
    """How gradients pass an activation."""
    attention_gradient: AttentionGradient = "value"
    """`value`: scores are constants (the paper). `exact`: queries and keys as well. `perturbed`: the same by a
    difference of two softmaxes, the form that an attention can compute."""
    epsilon: Annotated[float | None, Range(above=0, at_most=FLOAT32_MAX)] = None
    """Step of the differences; None: the best measured for each kind of difference. Too large and curvature enters;
    too small and float32 cancels the digits."""
    epsilon_mode: EpsilonMode = "relative"
    """`relative`: the step follows every token's own scale. `fixed`: one step for all, as in the paper, which no
    single value suits once activations have outliers."""
    update_norm_scale: bool = False
    """Let norm scales move, not only norm biases."""
    update_query_key: bool = False
    """Let queries and keys move: weights, biases and their norms. Needs a gradient other than `value`."""
    optimizer: Optimizer = "sgd"
    """What a gradient does to a weight. `sgd`: it is subtracted. `rms`: divided by the root mean square of gradients on
    a text (`statistics`). `adam`: torch's, without weight decay. `muon`: matrices move along their orthogonalised
    gradient, vectors by sgd."""
    momentum: Annotated[float, Range(at_least=0, below=1)] = 0.0
    """Share of the velocity that a step keeps, as in torch.optim.SGD; not for `adam`, which has its own."""
    nesterov: bool = False
    """Look ahead along the velocity; needs momentum."""
    decay: Annotated[float, Range(at_least=0, at_most=1)] = 0.0
    """Share of the change that is taken back after every step, towards the weights as they came."""
    rates: tuple[tuple[str, float], ...] = ()
    """Factors of the rate by pattern of op names (`blocks.3.*`), the last that fits counts; give a dict or pairs."""
    schedule: tuple[Annotated[float, Range(at_least=0, at_most=FLOAT32_MAX)], ...] = ()
    """Factors of the rate by step, the last for all that follow; of a stream's chunks too. Empty: 1."""

    @classmethod
    def paper(cls, **knobs: Any) -> LearningRule:
        """The simulated gradient as printed: first-order differences with one fixed step.

        Args:
            **knobs: Fields of the rule by name, `learning_rate` at least; they win over the preset.
        """
        # Value-only attention and frozen norm scales are the defaults already. The paper calls eps a hyperparameter
        # and gives no value; the authors' code has 1e-3, with which the update of SmolLM2-135M errs by 57% in
        # float32 (docs/approximations.md).
        printed: dict[str, Any] = {
            "norm_gradient": "first_order",
            "activation_gradient": "first_order",
            "epsilon_mode": "fixed",
        }
        return cls(**(printed | cls._known(knobs)))

    @classmethod
    def full(cls, **knobs: Any) -> LearningRule:
        """Plain SGD on every parameter of the trained blocks and the final norm, every gradient exact.

        Args:
            **knobs: Fields of the rule by name, `learning_rate` at least; they win over the preset.
        """
        everything: dict[str, Any] = {
            "attention_gradient": "exact",
            "update_norm_scale": True,
            "update_query_key": True,
        }
        return cls(**(everything | cls._known(knobs)))

    @classmethod
    def of(cls, knobs: Any) -> LearningRule:
        """The rule of knobs by name, as files hold them.

        Args:
            knobs: A dict of fields, `learning_rate` at least; an unknown name is an error.
        """
        if not isinstance(knobs, dict):
            raise RuleError(f"a learning rule is read from its knobs by name, not from {shown(knobs)}")
        return cls(**cls._known(knobs))

    @classmethod
    def _known(cls, knobs: dict[str, Any]) -> dict[str, Any]:
        names = [field.name for field in fields(cls)]
        unknown = sorted(map(str, set(knobs) - set(names)))
        if unknown:
            raise RuleError(f"unknown knobs of a learning rule: {', '.join(unknown)}; known are {', '.join(names)}")
        if "learning_rate" not in knobs:
            raise RuleError("a learning rule needs learning_rate: the best one differs 20-fold between models")
        return knobs

    def __repr__(self) -> str:
        # What is not said is the default: fourteen knobs would hide the one that was chosen.
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        said = [f"{field.name}={chosen[field.name]!r}" for field in fields(self) if chosen[field.name] != field.default]
        return f"LearningRule({', '.join(said)})"

    def __post_init__(self) -> None:
        if isinstance(self.rates, Mapping):  # as people and JSON write it; pairs can be hashed
            object.__setattr__(self, "rates", tuple(self.rates.items()))
        check_fields(self, RuleError)
        self._check_rates()
        if self.nesterov and not self.momentum:
            raise RuleError("nesterov=True looks ahead along a velocity, and momentum=0 has none; give momentum")
        if self.momentum and self.optimizer == "adam":
            raise RuleError(f"momentum={self.momentum:g} is for sgd, rms and muon; adam has moments of its own")
        # Silently moving nothing would look like a result.
        if self.update_query_key and self.attention_gradient == "value":
            raise RuleError(
                "update_query_key=True needs attention_gradient='exact' or 'perturbed': "
                "'value' sends no gradient to queries and keys"
            )

    @property
    def is_auto(self) -> bool:
        """Whether the rate is to be chosen for each sequence that is learnt from."""
        return self.learning_rate == "auto"

    @property
    def rate(self) -> float:
        """The learning rate as a number; where it is `auto` and no text is at hand, an error that says what to do."""
        if isinstance(self.learning_rate, str):
            raise RuleError(f"learning_rate='auto' is chosen for a text, and a number is needed here: {A_NUMBER}")
        return self.learning_rate

    def _check_rates(self) -> None:
        for pattern, factor in self.rates:
            checked(f"rates[{pattern!r}]", factor, Annotated[float, Range(at_least=0, at_most=FLOAT32_MAX)], RuleError)

    def schedule_factor(self, step: int) -> float:
        """What the rate of step number `step` is multiplied by.

        Args:
            step: Its number, from 1.
        """
        return self.schedule[min(step, len(self.schedule)) - 1] if self.schedule else 1.0

    @property
    def remembers(self) -> bool:
        """Whether a step depends on earlier ones, or moves a weight without a gradient."""
        return bool(self.momentum or self.decay or self.optimizer == "adam")

    @property
    def needs_history(self) -> bool:
        """Whether going on needs more than what has been learnt: a velocity, moments, or the number of steps made."""
        return bool(self.momentum or self.schedule or self.optimizer == "adam")

    @property
    def moves_evenly(self) -> bool:
        """Whether every step subtracts the same multiple of every gradient, and nothing else happens."""
        return self.is_linear and not (self.remembers or self.rates or self.schedule)

    @property
    def is_linear(self) -> bool:
        """Whether a change is a sum of multiples of gradients, so that factors need not be formed."""
        return self.optimizer == "sgd"

    @property
    def needs_matrices(self) -> bool:
        """Whether gradients of matrices must be formed: to be divided, or summed up before they are orthogonalised."""
        return self.optimizer in ("rms", "adam") or (self.optimizer == "muon" and self.momentum > 0)

    def difference_step(self, difference: Gradient | AttentionGradient) -> float:
        """The step of a kind of difference; 0 where none is taken.

        Args:
            difference: How a gradient is taken: a value of `norm_gradient` or `attention_gradient`.
        """
        if self.epsilon is not None:
            return self.epsilon
        return STEPS.get((difference, self.epsilon_mode), 0.0)

    def takes_differences(self) -> bool:
        """Whether any gradient is a difference; the backward pass is then no longer linear in the gradient."""
        # A difference of a nonlinear f along g1 + g2 is not the sum of those along g1 and g2: gradients must be added
        # up before they arrive, which is why shared tokens cannot be cut apart (engines/oracle).
        kinds = (self.norm_gradient, self.activation_gradient, self.attention_gradient)
        return any(kind in ("first_order", "central", "perturbed") for kind in kinds)

    def num_trained(self, num_blocks: int) -> int:
        """How many blocks of a model learn; asking for more than there are is an error.

        Args:
            num_blocks: Blocks of the model.
        """
        if self.layers is None:
            return num_blocks
        if self.layers > num_blocks:
            raise RuleError(f"layers={self.layers} but the model has {num_blocks} blocks; use layers=None for all")
        return self.layers


def require_rule(rule: Any) -> LearningRule:
    """A rule that a caller gave, or one line that says how to make one."""
    if isinstance(rule, LearningRule):
        return rule
    remedy = "LearningRule.of(knobs)" if isinstance(rule, dict) else "LearningRule(learning_rate=1e-4)"
    raise RuleError(f"rule={shown(rule)} is no LearningRule; give one, such as {remedy}")


def require_number(rule: Any, holder: str) -> LearningRule:
    """A rule whose rate is a number, for what is built with the rate inside of it."""
    if require_rule(rule).is_auto:
        raise RuleError(f"learning_rate='auto' is chosen for each text, but {holder} holds one rate: {A_NUMBER}")
    return rule


def require_built(rule: Any, holder: str) -> LearningRule:
    """A rule that can be written into weights: its rate is a number, and descent is linear in the gradients."""
    if not require_rule(rule).is_linear:
        raise RuleError(
            f"optimizer={rule.optimizer!r} cannot be part of {holder}, which descends by linear maps alone: use "
            "optimizer='sgd' (momentum, decay, rates and schedule are linear), or run Tint with engine='fast'"
        )
    return require_number(rule, holder)


PRESETS: dict[str, Callable[..., LearningRule]] = {
    "default": LearningRule,
    "paper": LearningRule.paper,
    "full": LearningRule.full,
}
"""Where a rule may start from, by name; each takes the knobs of `LearningRule`."""


def rule_text(rule: LearningRule, leave_out: Collection[str] = ()) -> str:
    """The preset that is nearest, and every knob that differs from it, but for those that are left out."""

    def differing(preset: str) -> list[str]:
        start = PRESETS[preset](learning_rate=rule.learning_rate)
        names = [field.name for field in fields(rule) if field.name not in leave_out]
        return [f"{name}={getattr(rule, name)}" for name in names if getattr(rule, name) != getattr(start, name)]

    preset = min(PRESETS, key=lambda name: len(differing(name)))
    return ", ".join([preset, *differing(preset)])
