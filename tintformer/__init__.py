"""tintformer: a transformer whose forward pass contains the training of another one.

Attributes load on first use, so that the command line answers before torch is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tintformer.hf.register import register_when_imported

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary
    from tintformer.auxiliary.load import load
    from tintformer.errors import (
        DivergenceError,
        InputError,
        LoadError,
        RuleError,
        TintError,
        TintWarning,
        UnsupportedModelError,
    )
    from tintformer.hf.cache import TintCache
    from tintformer.hf.config import TintConfig
    from tintformer.hf.model import TintForCausalLM
    from tintformer.insight.effects import Effect, Effects
    from tintformer.insight.point import Point
    from tintformer.insight.update import Update
    from tintformer.output import TintOutput
    from tintformer.planning.estimate import Plan, plan
    from tintformer.rates import choose_rate
    from tintformer.rule.learning_rule import LearningRule
    from tintformer.simulator.accounting import parameters
    from tintformer.simulator.simulator import Simulator, build
    from tintformer.tint import Tint
    from tintformer.tuned import Tuned

__version__ = "0.1.0"

_HOMES = {
    "Auxiliary": "tintformer.auxiliary.description",
    "DivergenceError": "tintformer.errors",
    "Effect": "tintformer.insight.effects",
    "Effects": "tintformer.insight.effects",
    "InputError": "tintformer.errors",
    "LearningRule": "tintformer.rule.learning_rule",
    "LoadError": "tintformer.errors",
    "Point": "tintformer.insight.point",
    "Plan": "tintformer.planning.estimate",
    "RuleError": "tintformer.errors",
    "Simulator": "tintformer.simulator.simulator",
    "Tint": "tintformer.tint",
    "TintCache": "tintformer.hf.cache",
    "TintConfig": "tintformer.hf.config",
    "TintError": "tintformer.errors",
    "TintForCausalLM": "tintformer.hf.model",
    "TintOutput": "tintformer.output",
    "TintWarning": "tintformer.errors",
    "Tuned": "tintformer.tuned",
    "UnsupportedModelError": "tintformer.errors",
    "Update": "tintformer.insight.update",
    "build": "tintformer.simulator.simulator",
    "choose_rate": "tintformer.rates",
    "load": "tintformer.auxiliary.load",
    "parameters": "tintformer.simulator.accounting",
    "plan": "tintformer.planning.estimate",
}

__all__ = [
    "Auxiliary",
    "DivergenceError",
    "Effect",
    "Effects",
    "InputError",
    "LearningRule",
    "LoadError",
    "Plan",
    "Point",
    "RuleError",
    "Simulator",
    "Tint",
    "TintCache",
    "TintConfig",
    "TintError",
    "TintForCausalLM",
    "TintOutput",
    "TintWarning",
    "Tuned",
    "UnsupportedModelError",
    "Update",
    "build",
    "choose_rate",
    "load",
    "parameters",
    "plan",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | _HOMES.keys())


register_when_imported()
