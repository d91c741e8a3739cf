"""Linear attention as softmax attention (paper, theorem "linear attention as softmax attention"), in two forms.

Q queries, K keys, d width of a value. A linear head gives sum_j a_j v_j. Both forms scale the scores by eps, add one
token with value 0 whose score makes it eps^-2 times as heavy as a token of score 0, and use twice the heads. On plain
tensors, so that what the theorem itself costs can be told from what a construction adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tintlab.checks.theorems.check import unit_roundoff

EPSILONS = tuple(10 ** (-power / 2) for power in range(1, 15))
"""0.3 to 1e-7, two steps a decade."""

Scores = Float[Tensor, "*heads Q K"]
Values = Float[Tensor, "*heads K d"]


@dataclass(frozen=True, kw_only=True)
class SoftmaxError:
    """The error of one form at one eps, next to its bound."""

    form: str
    """`printed` or `pair`."""
    where: str
    dtype: str
    epsilon: float
    measured: float
    """Norm of the error of the query that comes nearest to its bound."""
    bound: float
    """That query's bound: exact arithmetic and rounding together."""
    relative: float
    """Norm of all errors over the norm of all outputs."""
    holds: bool


def printed_form(scores: Scores, values: Values, epsilon: float) -> Float[Tensor, "*heads Q d"]:
    """As printed: a head with scores eps a and values v / eps^3, less (K + 1) / eps times an even head.

    A softmax weight is eps^2 e^(eps a_j) / (1 + eps^2 S) with S = sum_i e^(eps a_i): 1 / eps + a_j after scaling.
    """
    num_keys = scores.shape[-1]
    first = _with_extra_token(epsilon * scores, epsilon) @ (values / epsilon**3)
    even = torch.softmax(torch.zeros_like(scores[..., :1]).expand(*scores.shape[:-1], num_keys + 1), -1)[..., :-1]
    return first - (num_keys + 1) / epsilon * (even @ values)


def pair_form(scores: Scores, values: Values, epsilon: float) -> Float[Tensor, "*heads Q d"]:
    """A head at +eps and one at -eps, half their difference over eps^3: even orders cancel, and nothing is counted."""
    scaled = values / (2 * epsilon**3)
    return (
        _with_extra_token(epsilon * scores, epsilon) @ scaled - _with_extra_token(-epsilon * scores, epsilon) @ scaled
    )


def _with_extra_token(scores: Tensor, epsilon: float) -> Tensor:
    """Softmax weights of the K keys beside one more token with the score -2 log eps."""
    extra = torch.full_like(scores[..., :1], -2 * math.log(epsilon))
    return torch.softmax(torch.cat((scores, extra), -1), -1)[..., :-1]


def printed_bound(scores: Scores, values: Values, epsilon: float) -> Float[Tensor, "*heads Q"]:
    """A bound on the printed form's error in exact arithmetic.

    A weight is off by (r_j - delta (1 / eps + a_j)), |r_j| <= eps a_j^2 / 2 e^(eps |a_j|) from the exponential and
    0 <= delta <= eps^2 S from the denominator: |error_j| <= eps (a_j^2 / 2 e^(eps |a_j|) + S (1 + eps |a_j|)). First
    order in eps, and the number of keys enters through S. The output errs by at most |error| |V|.
    """
    size = epsilon * scores.abs()
    total = size.exp().sum(-1, keepdim=True)
    each = epsilon * (scores.square() / 2 * size.exp() + total * (1 + size))
    return each.norm(dim=-1) * torch.linalg.matrix_norm(values, 2)[..., None]


def pair_bound(scores: Scores, values: Values, epsilon: float) -> Float[Tensor, "*heads Q"]:
    """A bound on the pair's error in exact arithmetic, of second order in eps.

    The exponentials leave sinh(eps a_j) / eps - a_j, at most eps^2 |a_j|^3 / 6 cosh(eps a_j). The denominators differ
    by at most 2 eps^2 sum_i sinh(eps |a_i|), and shrink what is left by at most eps^2 S:
    |error_j| <= eps^2 |a_j|^3 / 6 cosh + eps e^(eps |a_j|) sum_i sinh(eps |a_i|) + eps S sinh(eps |a_j|).
    """
    size = epsilon * scores.abs()
    total = size.exp().sum(-1, keepdim=True)
    each = epsilon**2 * scores.abs() ** 3 / 6 * size.cosh()
    each = each + epsilon * (size.exp() * size.sinh().sum(-1, keepdim=True) + total * size.sinh())
    return each.norm(dim=-1) * torch.linalg.matrix_norm(values, 2)[..., None]


def rounding_bound(scores: Scores, values: Values, epsilon: float) -> Float[Tensor, "*heads Q"]:
    """A bound on what arithmetic in the tensors' dtype adds to either form.

    Two numbers near 1 / eps are subtracted. Each has the relative error of a softmax whose largest exponent is
    L = 2 |log eps| + eps max|a| (4 L + K + 6 units), of a sum of K terms and of scaling (2 K + 14 units).
    """
    largest = (epsilon * scores.abs()).amax(-1)
    units = 4 * (2 * abs(math.log(epsilon)) + largest) + 3 * scores.shape[-1] + 20
    total = values.abs().sum(-2).norm(dim=-1)[..., None]
    return units * unit_roundoff(scores.dtype) / epsilon * largest.exp() * total


FORMS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "printed": (printed_form, printed_bound),
    "pair": (pair_form, pair_bound),
}
"""Each form and its bound in exact arithmetic."""


def linear_as_softmax(
    scores: Scores,
    values: Values,
    *,
    where: str = "",
    epsilons: Sequence[float] = EPSILONS,
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.float64),
) -> list[SoftmaxError]:
    """Both forms at every eps and in every dtype, against the linear head in float64."""
    results: list[SoftmaxError] = []
    for dtype in dtypes:
        a, v = scores.to(dtype), values.to(dtype)
        exact_a, exact_v = a.double(), v.double()
        expected = exact_a @ exact_v
        for form, (function, bound) in FORMS.items():
            for epsilon in epsilons:
                error = function(a, v, epsilon).double() - expected
                errors = error.norm(dim=-1)
                bounds = bound(exact_a, exact_v, epsilon) + rounding_bound(a, v, epsilon).double()
                worst = int((errors / bounds).argmax())
                results.append(
                    SoftmaxError(
                        form=form,
                        where=where,
                        dtype=str(dtype).removeprefix("torch."),
                        epsilon=epsilon,
                        measured=float(errors.flatten()[worst]),
                        bound=float(bounds.flatten()[worst]),
                        relative=float(error.norm() / expected.norm()),
                        holds=bool((errors <= bounds).all()),
                    )
                )
    return results


def best(errors: Sequence[SoftmaxError]) -> list[SoftmaxError]:
    """The eps with the smallest error, for each place, form and dtype."""
    found: dict[tuple[str, str, str], SoftmaxError] = {}
    for error in errors:
        key = error.where, error.form, error.dtype
        if key not in found or error.relative < found[key].relative:
            found[key] = error
    return list(found.values())
