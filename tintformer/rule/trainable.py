"""Which weights a learning rule trains: some of the trained blocks and of the final norm, never embeddings or head."""

from __future__ import annotations

from collections.abc import Iterator

from tintformer.auxiliary.description import Auxiliary, ops
from tintformer.auxiliary.ops import Join, Linear, Norm, Op, Weight
from tintformer.rule.learning_rule import LearningRule


def trained_weights(rule: LearningRule, op: Op | Join) -> tuple[Weight, ...]:
    """The weights of an op on the backward path that descent changes."""
    # With attention_gradient="value" no gradient reaches queries and keys, which is why they have a knob of their own.
    if isinstance(op, Linear):
        # Group `frozen` is OPT-350m's projections into and out of the stream: they belong to the embeddings.
        free = op.group == "body" or (op.group == "query_key" and rule.update_query_key)
        candidates = (op.weight, op.bias) if free else ()
    elif isinstance(op, Norm) and op.group == "query_key":
        candidates = (op.scale, op.bias) if rule.update_query_key else ()
    elif isinstance(op, Norm):  # the paper trains biases of norms and leaves their scales alone
        candidates = (op.scale, op.bias) if rule.update_norm_scale else (op.bias,)
    else:
        candidates = ()
    return tuple(weight for weight in candidates if weight is not None)


def trainable_weights(rule: LearningRule, auxiliary: Auxiliary) -> Iterator[Weight]:
    """Every weight that the rule trains: those of the trained blocks, then those of the final steps."""
    num_trained = rule.num_trained(len(auxiliary.blocks))
    for steps in (*auxiliary.blocks[len(auxiliary.blocks) - num_trained :], auxiliary.final):
        for op in ops(steps):
            yield from trained_weights(rule, op)
