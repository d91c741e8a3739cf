"""Element-wise units: activations, gated units, and gates that are exactly 0 and 1."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from tintformer.auxiliary.activations import FUNCTIONS
from tintformer.simulator.primitives.primitive import Primitive, constant


class Activation(Primitive):
    """s(x). Zero stays zero for every supported activation, so padding does too."""

    def __init__(self, function: str):
        super().__init__()
        self.function = FUNCTIONS[function]

    def forward(self, x: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape D"]:
        return self.function.value(x)


class Gated(Primitive):
    """A gated linear unit: left * s(right), with s the identity, or the derivative of an activation."""

    def __init__(self, function: str | None = None, part: Literal["identity", "derivative"] = "identity"):
        super().__init__()
        assert (function is None) == (part == "identity"), "a derivative is that of a function"
        self.function = None if function is None else FUNCTIONS[function].derivative

    def forward(
        self, left: Float[Tensor, "*#shape D"], right: Float[Tensor, "*#shape D"]
    ) -> Float[Tensor, "*#shape D"]:
        return left * (right if self.function is None else self.function(right))


class FixedGate(Primitive):
    """Lets coordinates pass, or not: multiplies by a constant 0 or 1."""

    def __init__(self, opening: Tensor):
        super().__init__()
        self.opening = constant(opening)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.opening


class Gate(Primitive):
    """Lets tokens pass, or not: multiplies by a number that comes with the input, exactly 0 where nothing may pass."""

    def forward(
        self, x: Float[Tensor, "*#shape D"], opening: Float[Tensor, "*#shape D2"]
    ) -> Float[Tensor, "*#shape D"]:
        return x * opening
