"""The public names, each in one line: `__init__.py` loads them on first use from where this table says."""

from .analysis.accounting import count_parameters
from .analysis.audit import audit
from .analysis.certificate import Certificate
from .analysis.network_size import count_network
from .analysis.planning.estimate import plan
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
from .experiments.compare import CompareResult, compare
from .experiments.probe import ProbeResult, probe
from .experiments.sweep import SweepResult, sweep
from .integrations.transformers.cache import TintCache
from .integrations.transformers.config import TintConfig
from .integrations.transformers.model import TintForCausalLM
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
from .version import __version__

__all__ = [
    "Auxiliary",
    "Certificate",
    "CompareResult",
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
    "ProbeResult",
    "RuleError",
    "Simulator",
    "StreamState",
    "SweepResult",
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
    "audit",
    "build",
    "choose_rate",
    "collect_statistics",
    "compare",
    "compile",
    "count_network",
    "count_parameters",
    "learn",
    "load",
    "mlp",
    "plan",
    "probe",
    "regression",
    "sweep",
]
