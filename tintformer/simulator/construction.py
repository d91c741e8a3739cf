"""Construction: the knobs of a simulator that change how it is built and not what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch

from tintformer.errors import InputError
from tintformer.simulator.geometry import DEFAULT_STACK, LayoutName
from tintformer.simulator.modules.self_attention import Transposition
from tintformer.simulator.primitives.attention import Weigh, linear, linear_as_softmax
from tintformer.typed_fields import Range, check_fields, shown

AttentionForm = Literal["linear", "softmax"]
SoftmaxForm = Literal["pair", "printed"]

SOFTMAX_EPSILONS: dict[tuple[str, torch.dtype], float] = {
    ("pair", torch.float64): 1e-5,
    ("pair", torch.float32): 3e-3,
    ("printed", torch.float64): 1e-8,
    ("printed", torch.float32): 3e-4,
}
"""Steps of a linear attention by softmax: too large and the curvature of exp enters, too small and digits cancel."""


@dataclass(frozen=True, kw_only=True)
class Construction:
    """How a simulator is built; the auxiliary and the learning rule say what it does."""

    layout: LayoutName = "lean"
    """`lean`: the smallest maps that do the work. `paper`: split-wise and dimension-wise maps of the paper's sizes."""
    stack: Annotated[int, Range(at_least=1)] = DEFAULT_STACK
    """Rows of a matrix in one prefix token. More make the embedding wider and the prefix shorter."""
    tie_blocks: bool = True
    """One block of modules, looped over the layers; False builds one for every layer."""
    attention: AttentionForm = "linear"
    """`softmax`: every linear attention by softmax attentions and one extra token, which is an approximation."""
    softmax_form: SoftmaxForm = "pair"
    """`printed`: the paper's form. `pair`: two softmaxes at +epsilon and -epsilon, exact to a higher order."""
    softmax_epsilon: Annotated[float | None, Range(above=0, below=1)] = None
    """Step of the softmax forms; None: the best measured for the dtype."""
    transposition: Transposition | None = None
    """How the backward attention gets at transposed scores: as a feature of attention (`scores`), or by storing them
    in the tokens and reading them back (`stored`), which refuses a training part that does not fit the store. None:
    `scores` with the lean layout; with the paper's, `stored` in every pass whose training part fits."""

    @classmethod
    def of(cls, knobs: Any) -> Construction:
        """The construction of knobs by name, as files and callers give them.

        Args:
            knobs: A dict of fields; an unknown name is an error.
        """
        if not isinstance(knobs, dict):
            raise InputError(f"construction={shown(knobs)} must be the knobs of a simulator: layout, stack, ...")
        if unknown := sorted(map(str, set(knobs) - set(cls.__dataclass_fields__))):
            known = ", ".join(cls.__dataclass_fields__)
            raise InputError(f"unknown knobs of a simulator: {', '.join(unknown)}; known are {known}")
        return cls(**knobs)

    def __post_init__(self) -> None:
        check_fields(self, InputError)

    def weigh(self, dtype: torch.dtype) -> Weigh:
        """How a linear attention turns scores into weights.

        Args:
            dtype: What the simulator computes in.
        """
        if self.attention == "linear":
            return linear
        return linear_as_softmax(self.softmax_form, self.epsilon(dtype))

    def epsilon(self, dtype: torch.dtype) -> float:
        """The step of the softmax forms.

        Args:
            dtype: What the simulator computes in.
        """
        return self.softmax_epsilon or SOFTMAX_EPSILONS[self.softmax_form, dtype]
