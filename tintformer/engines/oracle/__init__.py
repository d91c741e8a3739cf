"""The independent truth: the model itself under autograd, sharing no numerical code with the rest."""

from collections.abc import Mapping

from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.engines.oracle.example_oracle import ExampleOracle
from tintformer.engines.oracle.oracle_engine import OracleEngine
from tintformer.rule.learning_rule import LearningRule

__all__ = ["ExampleOracle", "OracleEngine", "make_oracle"]


def make_oracle(
    auxiliary: Auxiliary, rule: LearningRule, *, statistics: Mapping[str, Tensor] | None = None
) -> OracleEngine | ExampleOracle:
    """The oracle of a language model, or of one that takes examples."""
    kind = ExampleOracle if auxiliary.takes_examples else OracleEngine
    return kind(auxiliary, rule, statistics=statistics)
