"""Root mean squares of gradients, collected on a text: what the optimiser `rms` divides by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from tintformer.auxiliary.description import Auxiliary, compute_dtype
from tintformer.auxiliary.ops import Weight
from tintformer.errors import RuleError
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.trainable import trainable_weights


def by_weight(
    statistics: Mapping[str, Tensor] | None, auxiliary: Auxiliary, rule: LearningRule
) -> dict[Weight, Tensor] | None:
    """Those of every weight that the rule trains, from tensors by Hugging Face name."""
    if rule.optimizer != "rms":
        if statistics is not None:
            raise RuleError(f"statistics are for optimizer='rms', and this rule has {rule.optimizer!r}; leave them out")
        return None
    if statistics is None:
        raise RuleError(
            "optimizer='rms' divides by root mean squares of gradients: give statistics=, collected on a text by "
            "tint.collect_statistics or `tint statistics`"
        )
    found: dict[Weight, Tensor] = {}
    for weight in trainable_weights(rule, auxiliary):
        values = statistics.get(weight.name)
        if values is None or values.shape != weight.source.shape:
            raise RuleError(
                f"the statistics do not fit {auxiliary.name}: {weight.name} is missing or has another shape"
            )
        here = values.to(weight.home, compute_dtype(auxiliary.dtype))
        found[weight] = replace(weight, source=here, device=None).read()
    return found
