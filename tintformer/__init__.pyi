"""The public names, each in one line: `__init__.py` loads them on first use from where this table says."""

from .auxiliary.description import Auxiliary
from .auxiliary.perceptrons import mlp, regression
from .errors import (
    DivergenceError,
    InputError,
    LoadError,
    NonFiniteError,
    RuleError,
    TintError,
    TintWarning,
    UnsupportedModelError,
)
from .execution.examples import Examples
from .execution.output import TintOutput
from .learning.gradient_statistics import GradientStatistics, collect_statistics
from .learning.rate_selection import choose_rate
from .learning.streams import Piece, StreamState
from .learning.tint import Tint
from .learning.tuned import Tuned
from .network.network import Network, compile
from .rule.learning_rule import LearningRule
from .simulator.simulator import Simulator, build
from .storage.loading import load
from .study.learn import learn
from .study.learn_result import LearnResult
from .transformers.cache import TintCache
from .transformers.config import TintConfig
from .transformers.model import TintForCausalLM
from .version import __version__

__all__ = [
    "Auxiliary",
    "DivergenceError",
    "Examples",
    "GradientStatistics",
    "InputError",
    "LearnResult",
    "LearningRule",
    "LoadError",
    "Network",
    "NonFiniteError",
    "Piece",
    "RuleError",
    "Simulator",
    "StreamState",
    "Tint",
    "TintCache",
    "TintConfig",
    "TintError",
    "TintForCausalLM",
    "TintOutput",
    "TintWarning",
    "Tuned",
    "UnsupportedModelError",
    "__version__",
    "build",
    "choose_rate",
    "collect_statistics",
    "compile",
    "learn",
    "load",
    "mlp",
    "regression",
]
