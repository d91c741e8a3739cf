"""Which form of a matrix's update costs less: factors beside the weight, or the formed matrix.

The update of a matrix W `[O, I]` after one step is -rate * G^T X, with X `[n, I]` the inputs and G `[n, O]` the
gradients of the n trained tokens. *Dual*: T tokens see it as (x X^T) G, for T n (I + O) multiply-adds, and W is shared
by the whole batch. *Dense*: W' = W - rate * G^T X is formed, for n I O multiply-adds and a matrix written and read.

For one step dual wins while T (I + O) < I O (1 + traffic / n): up to a few hundred tokens in models of the size of
GPT-2, whatever the length of the training part.
"""

from __future__ import annotations

from dataclasses import dataclass

TRAFFIC = 60.0
"""Fixed cost of forming a matrix, in multiply-adds an element. `tintbench.forming_cost` measured 38 to 140 by shape
on one machine; it matters little, since it only shifts a choice between forms that cost about the same there."""


@dataclass(frozen=True, kw_only=True)
class UpdateUse:
    """How much an update is used: what the choice between the two forms depends on."""

    trained: int
    """Tokens of one sequence that a step trains on: the rank that it adds."""
    tokens: int
    """Tokens of one sequence that the final pass runs over."""
    steps: int = 1


def dual_cost(inputs: int, outputs: int, use: UpdateUse) -> float:
    """Multiply-adds of a sequence if the update stays factored."""
    ranks = [step * use.trained for step in range(1, use.steps + 1)]
    # A later step runs forward and backward through what the earlier ones have learnt; the last rank meets all tokens.
    seen = sum(2 * rank * use.trained for rank in ranks[:-1]) + ranks[-1] * use.tokens
    return float(seen) * (inputs + outputs)


def dense_cost(inputs: int, outputs: int, use: UpdateUse) -> float:
    """Multiply-adds, and traffic in the same unit, of a sequence if the updated matrix is formed after each step."""
    # Forming takes n I O a step; a token then multiplies by W' instead of W, which costs nothing more.
    return use.steps * inputs * outputs * (use.trained + TRAFFIC)


def prefers_dual(inputs: int, outputs: int, use: UpdateUse) -> bool:
    """Whether an update of a matrix of this shape is cheaper left as factors."""
    return dual_cost(inputs, outputs, use) <= dense_cost(inputs, outputs, use)


def stream_prefers_dual(inputs: int, outputs: int, *, chunk: int, tokens: int) -> bool:
    """Whether the update of a matrix is cheaper left as factors while `tokens` are read in chunks."""
    num_chunks = -(-tokens // chunk)
    # A chunk runs forward and backward through the ranks of all chunks before it.
    dual = chunk * chunk * num_chunks * (num_chunks - 1) * (inputs + outputs)
    # Carried along, the matrix is written once a chunk.
    carried = num_chunks * inputs * outputs * (chunk + TRAFFIC / 2)
    return dual <= carried


def rescaling_prefers_dual(inputs: int, outputs: int, *, rank: int, tokens: int) -> bool:
    """Whether an update is cheaper left as factors in each of many passes over `tokens`, at one rate after the other.

    Formed once, it is written and read in every pass, and added to the weight.
    """
    return float(tokens) * rank * (inputs + outputs) <= TRAFFIC * inputs * outputs


def smaller_as_factors(inputs: int, outputs: int, rank: int) -> bool:
    """Whether factors of this rank take less memory than the matrix."""
    return rank * (inputs + outputs) < inputs * outputs
