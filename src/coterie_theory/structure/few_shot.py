"""A model for a newcomer with few samples, in a subspace found by other clients.

Equation (9.6) is

    v = argmin_{|v| <= cap} (1/m) sum_j F(U v, x_j, y_j),    model U v.

The newcomer needs samples in proportion to the dimension r of the subspace, not to D.
More samples of the newcomer do not remove the error of the subspace (Proposition
9.3.1).

References:
    Even, PhD thesis, 2024, chapter 9, Proposition 9.3.1, tel-04877971.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from coterie.checks import InputError, number

from .low_rank import heads_of
from .tasks import Tasks, warn_of_few


def few_shot_head(
    basis: Float[Tensor, "d r"], data: Tasks, *, cap: float
) -> Float[Tensor, "n d"]:
    """Models of newcomers from their own samples, in the span of an orthonormal U."""
    number("cap", cap, above=0)
    if basis.shape[0] != data.shape[1]:
        raise InputError(
            f"`basis` must have {data.shape[1]} rows, one for each dimension of the "
            f"samples, got {basis.shape[0]}."
        )
    rank = basis.shape[1]
    warn_of_few(data, f"a head of {rank} numbers", samples=0, each=rank)
    return heads_of(data, basis.to(data.features), cap) @ basis.to(data.features).T
