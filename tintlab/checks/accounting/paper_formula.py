"""The paper's table of sizes ("Number of parameters of TinT", in its appendix), by its formulas, from a config alone.

The table counts the machinery that simulates the blocks. It leaves out biases, embeddings, head, final norm, and the
auxiliary's own weights, which the simulator carries as data. Below it the paper's comparison of strategies: what one
inner product <w, x> costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tintformer.errors import TintError

MAX_POSITIONS = 2048
"""The auxiliary's context in the paper's table (that of OPT), for every model, so that rows can be compared."""
CONSTANTS = (85, 91, 63)
"""c1, c2 and c3 of the paper's theorem, of which it says only that they are below 150: those of its table. 21 Q has
84 Q_split and the activation one more; 85 Q_split and three differences have 91 D_sim H_sim; 21 Q read 63 positions."""


@dataclass(frozen=True, kw_only=True)
class ModuleSize:
    """One row of the table: parameters of a simulated module in each direction."""

    module: str
    forward: int
    backward: int
    descent: int
    total: int
    """As printed, which is not always the sum of the three."""


@dataclass(frozen=True, kw_only=True)
class Formula:
    """The paper's symbols for one auxiliary model, and the sizes that follow from them."""

    dim_aux: int
    """D_aux: width of the auxiliary."""
    num_layers: int
    """L: blocks of the auxiliary."""
    num_heads_aux: int
    """H_aux: query heads of the auxiliary."""
    stack: int = 4
    """S: weight rows in one prefix token. More of them make the simulator wider (S D_aux) and its prefix shorter."""
    max_positions: int = MAX_POSITIONS
    """T_aux: tokens that the simulator has room for, beside the prefix."""

    def __post_init__(self) -> None:
        if self.stack < 1 or self.dim_aux % self.stack:
            raise TintError(
                f"stack={self.stack} rows do not fill whole prefix tokens of a model of width {self.dim_aux}; "
                "choose a divisor of the width, such as 4"
            )

    @classmethod
    def of(cls, config: Any, *, stack: int = 4) -> Formula:
        """The symbols of a Hugging Face configuration."""
        return cls(
            dim_aux=config.hidden_size,
            num_layers=config.num_hidden_layers,
            num_heads_aux=config.num_attention_heads,
            stack=stack,
        )

    @property
    def dim_sim(self) -> int:
        """D_sim = S D_aux."""
        return self.stack * self.dim_aux

    @property
    def num_prefix(self) -> int:
        """K = D_aux / S: prefix tokens that hold one square weight."""
        return self.dim_aux // self.stack

    @property
    def num_positions(self) -> int:
        """T_sim = T_aux + K: the length of the simulator's one-hot positions."""
        return self.max_positions + self.num_prefix

    @property
    def shards(self) -> int:
        """S': pieces of each weight row, one a head.

        The paper sets H_sim = min(S^2, H_aux) and also H_sim = S S'. Where the minimum is no multiple of S (9 heads of
        SmolLM2-135M), or its pieces are not equally wide, we take the next smaller number of heads for which both hold,
        and S heads if the auxiliary has fewer than S.
        """
        most = max(1, min(self.stack, self.num_heads_aux // self.stack))
        return max(shards for shards in range(1, most + 1) if self.dim_aux % shards == 0)

    @property
    def num_heads(self) -> int:
        """H_sim = S S': 12 for OPT-125m and 16 for the other models of the table."""
        return self.stack * self.shards

    @property
    def split(self) -> int:
        """Q_split: a map of D_sim to itself in two steps, within each head (H of d x d, d = D_sim / H_sim) and across
        heads (d of H x H).
        """
        return self.dim_sim**2 // self.num_heads + self.num_heads * self.dim_sim

    @property
    def linear(self) -> int:
        """Q: a Linear Forward module. Queries, keys, values and outputs are a Q_split each; the first three also read
        the one-hot position through a T_sim x d matrix that all heads share.
        """
        return 4 * self.split + 3 * self.num_positions * self.dim_sim // self.num_heads

    def rows(self) -> list[ModuleSize]:
        """The table's rows, from a linear layer to the whole transformer, exactly as printed.

        An element-wise difference (norms, activations) costs 2 D_sim H_sim. The printed totals disagree with their own
        rows once: the feed-forward block drops the activation's Q_split, which the transformer block has again. Both
        linears of a feed-forward count once, although they are four times as wide: their shards share one module.
        """
        q, split, difference, layers = self.linear, self.split, 2 * self.dim_sim * self.num_heads, self.num_layers
        block = _row("transformer block", 7 * q + split, 7 * q + 3 * difference, 7 * q)
        return [
            _row("linear", q, q, q),
            _row("layer norms", q, q + difference, q),
            _row("self-attention", 2 * q, 2 * q, 2 * q),
            _row("activation", split, difference, 0),
            _row("self-attention block", 4 * q, 4 * q + difference, 4 * q),
            _row("feed-forward block", 3 * q + split, 3 * q + 2 * difference, 3 * q, total=9 * q + 2 * difference),
            block,
            _row("transformer", layers * block.forward, layers * block.backward, layers * block.descent),
        ]

    @property
    def total(self) -> int:
        """(21 Q + 6 D_sim H_sim + Q_split) L: what the paper calls the size of the simulator."""
        return self.rows()[-1].total

    def theorem(self, constants: tuple[int, int, int] = CONSTANTS, *, as_printed: bool = False) -> int:
        """The bound of the paper's main theorem, with H = min(H_aux, S^2) as it stands there.

        The printed one multiplies its first term by a second D_aux^2, which the table does not have.
        """
        c1, c2, c3 = constants
        s, d, heads = self.stack, self.dim_aux, min(self.num_heads_aux, self.stack**2)
        squares = Fraction((c1 * s**2 + c3) * d**2, heads) * (d**2 if as_printed else 1)
        positions = Fraction(c3 * self.max_positions * d * s, heads)
        return round((squares + c2 * s * d * heads + positions) * self.num_layers)


def _row(module: str, forward: int, backward: int, descent: int, *, total: int | None = None) -> ModuleSize:
    summed = forward + backward + descent
    return ModuleSize(
        module=module,
        forward=forward,
        backward=backward,
        descent=descent,
        total=summed if total is None else total,
    )


# Strategies (section "Read and write access to auxiliary model", and its footnote). The paper gives numbers for
# D = 768; the formulas behind them are reconstructed here. Biases are left out, as there.


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
