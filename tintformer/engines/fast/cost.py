"""When to form an updated matrix, and when to leave it as the factors it is made of.

The change of a matrix W `[O, I]` after one step is -rate * G^T X, with X `[n, I]` the inputs and G `[n, O]` the
gradients of the n trained tokens. *Dual*: T tokens see it as (x X^T) G, for T n (I + O) multiply-adds, and W is shared
by the whole batch. *Dense*: W' = W - rate * G^T X is formed, for n I O multiply-adds and a matrix written and read.

For one step dual wins while T (I + O) < I O (1 + traffic / n): up to a few hundred tokens in models of the size of
GPT-2, whatever the length of the training part.
"""

from __future__ import annotations

from dataclasses import dataclass

TRAFFIC = 60.0
"""Fixed cost of forming a matrix, in multiply-adds an element. `benchmarks.forming_cost` measured 38 to 140 by shape
on one machine; it matters little, since it only shifts a choice between forms that cost about the same there."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much an update is used: what the choice between the two forms depends on."""

    trained: int
    """Tokens of one sequence that a step trains on: the rank that it adds."""
    tokens: int
    """Tokens of one sequence that the final pass runs over."""
    steps: int = 1


def dual_cost(inputs: int, outputs: int, work: Work) -> float:
    """Multiply-adds of a sequence if the update stays factored."""
    ranks = [step * work.trained for step in range(1, work.steps + 1)]
    # A later step runs forward and backward through what the earlier ones have learnt; the last rank meets all tokens.
    seen = sum(2 * rank * work.trained for rank in ranks[:-1]) + ranks[-1] * work.tokens
    return float(seen) * (inputs + outputs)


def dense_cost(inputs: int, outputs: int, work: Work) -> float:
    """Multiply-adds, and traffic in the same unit, of a sequence if the updated matrix is formed after each step."""
    return work.steps * inputs * outputs * (work.trained + TRAFFIC)


def prefers_dual(inputs: int, outputs: int, work: Work) -> bool:
    """Whether an update of a matrix of this shape is cheaper left as factors."""
    return dual_cost(inputs, outputs, work) <= dense_cost(inputs, outputs, work)


def smaller_as_factors(inputs: int, outputs: int, rank: int) -> bool:
    """Whether factors of this rank take less room than the matrix."""
    return rank * (inputs + outputs) < inputs * outputs
