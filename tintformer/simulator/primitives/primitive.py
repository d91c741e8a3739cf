"""What all primitives have in common: constructed weights that no pass ever changes."""

from __future__ import annotations

from torch import Tensor, nn


class Primitive(nn.Module):
    """A part of the simulator that computes; whatever is not inside one only moves or adds data."""


def constant(value: Tensor) -> nn.Parameter:
    """A constructed weight."""
    return nn.Parameter(value, requires_grad=False)
