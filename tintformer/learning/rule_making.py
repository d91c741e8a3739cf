"""The rule that keywords ask for, and its rate where that is to be found in the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from tintformer.errors import InputError, RuleError
from tintformer.learning.engine_registry import ENGINES, check_options
from tintformer.rule.learning_rule import PRESETS, LearningRule
from tintformer.typed_fields import shown

if TYPE_CHECKING:
    from torch import Tensor

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.learning.rate_selection import RateChoice, RatePoint

AUTO = "auto"


def preset_rule(rule: str | LearningRule, knobs: Mapping[str, Any]) -> LearningRule:
    """A preset by its name, or a rule, with `knobs` on top."""
    if isinstance(rule, LearningRule):
        return LearningRule.of({field.name: getattr(rule, field.name) for field in fields(rule)} | dict(knobs))
    if not isinstance(rule, str) or rule not in PRESETS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RuleError(f"rule={shown(rule)} is unknown; give a LearningRule, or one of {', '.join(PRESETS)}")
    return PRESETS[rule](**knobs)


def make_rule(
    rule: str | LearningRule, learning_rate: float | str | None, knobs: Mapping[str, Any]
) -> tuple[LearningRule, bool]:
    """The rule, and whether its rate is still to be found (it is 0 as long as it is not).

    Without a rate that of a rule counts; a preset has none, so that it is found.
    """
    if isinstance(learning_rate, str) and learning_rate != AUTO:
        raise RuleError(f"learning_rate={shown(learning_rate)} is neither a number nor {AUTO!r}")
    asked = getattr(rule, "learning_rate", AUTO) if learning_rate is None else learning_rate
    auto = asked == AUTO
    rate = {"learning_rate": 0.0} if auto else {} if learning_rate is None else {"learning_rate": learning_rate}
    return preset_rule(rule, {**knobs, **rate}), auto


def settle_rate(
    rule: LearningRule,
    auxiliary: Auxiliary,
    input_ids: Tensor,
    train_mask: Tensor,
    *,
    engine: str = "fast",
    on_point: Callable[[RatePoint], None] | None = None,
) -> tuple[LearningRule, RateChoice]:
    """The rule at the rate that its training part chooses, and what that was chosen from."""
    from tintformer.learning.rate_selection import choose_rate

    choice = choose_rate(auxiliary, rule, input_ids, train_mask, engine=engine, on_point=on_point)
    return replace(rule, learning_rate=choice.rate), choice


def sort_knobs(engine: str, knobs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords of a call as those of the learning rule and those of the engine; what neither has is refused."""
    of_rule = {field.name for field in fields(LearningRule)}
    of_engines = {option for entry in ENGINES.values() for option in entry.options()}
    if unknown := [name for name in knobs if name not in of_rule | of_engines]:
        raise InputError(
            f"unknown keyword {unknown[0]}; besides its own a call takes the knobs of a learning rule "
            f"({', '.join(sorted(of_rule))}) and those of the engine"
        )
    options = {name: value for name, value in knobs.items() if name not in of_rule}
    check_options(engine, options)
    return {name: value for name, value in knobs.items() if name in of_rule}, options
