"""What one inner product <w, x> of width D costs a simulator, by strategy (section 2.2, and its footnote).

The paper gives the numbers for D = 768; the formulas behind them are reconstructed here. Biases are left out, as there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to take an inner product between a weight and an activation inside a forward pass."""

    name: str
    parameters: int
    inner_products: int = 1
    """How many of them the same parameters take at once."""
    derivation: str
    """Where the number comes from."""


def strategies(dim_aux: int, *, paper_linear: int | None = None, lean_linear: int | None = None) -> list[Strategy]:
    """The paper's comparison at a width, and the linear modules whose parameters the caller has counted.

    A linear module takes all of the `dim_aux` inner products of W x, not one.
    """
    # The product lemma turns sums through a GELU into products. Weight and activation lie side by side in an embedding
    # of width 2D, and a feed-forward has two matrices; with a hidden layer no wider than that they are 2D x 2D each.
    product = 2 * (2 * dim_aux) ** 2
    # An attention has queries, keys and values; D x D each is the least that can fetch or compare a row of width D.
    attention = 3 * dim_aux**2
    compared = [
        Strategy(name="feed-forward product", parameters=product, derivation="2 (2D)^2: two matrices on (w, x)"),
        Strategy(name="attention copy", parameters=attention, derivation="3 D^2: fetch w from the memory tape"),
        Strategy(name="memory tape", parameters=product + attention, derivation="11 D^2: copy, then multiply"),
        Strategy(name="prefix attention", parameters=attention, derivation="3 D^2: w is a key, x the query"),
    ]
    modules = {
        "linear module, paper layout": (paper_linear, "Q: all rows of W, stacked and sharded"),
        "linear module, lean layout": (lean_linear, "counted in the construction"),
    }
    return compared + [
        Strategy(name=name, parameters=parameters, derivation=derivation, inner_products=dim_aux)
        for name, (parameters, derivation) in modules.items()
        if parameters is not None
    ]
