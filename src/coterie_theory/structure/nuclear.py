"""The convex relaxation of a common subspace.

Equation (9.7) is

    min L(W)   over   |W|_* <= R = kappa cap sqrt(N r),

where |W|_* is the sum of singular values. Afterwards we may keep only the largest s of
them. kappa = 1 is enough, because |W*|_* <= sqrt(r) |W*|_F. FISTA projects the singular
values onto the ball of the l1 norm. It needs a server that sees all models; the
algorithm `nuclear_norm` needs only averages of single vectors. For any feasible W,

    L(W) - min L <= <grad L(W), W> + R |grad L(W)|_op.

So the right side, the gap, is a bound on the error of a result.

References:
    Even, PhD thesis, 2024, chapter 9, Theorems 9.4 and 9.5, tel-04877971.
    Beck, Teboulle, "A fast iterative shrinkage-thresholding algorithm for linear
    inverse problems", SIAM J. Imaging Sciences, 2009.

Differences: the thesis asks for kappa of at least the ratio of singular values of W*.
We do not bound the norms of single models.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.checks import InputError, integer, number
from coterie.optim.heads import refuse_rank
from coterie.optim.projections import onto_simplex_ball

from .low_rank import largest_curvature
from .tasks import Tasks, gradients, loss


class NuclearModels(NamedTuple):
    """Models in the ball of the nuclear norm."""

    x: Float[Tensor, "n d"]
    loss: float
    gap: float  # the loss is at most this far above the minimum
    steps: int


def nuclear_radius(cap: float, clients: int, rank: int, *, kappa: float = 1.0) -> float:
    """`R = kappa cap sqrt(N r)`; the ball has all W of this rank with |w_i| <= cap.

    >>> nuclear_radius(2.0, 9, 4)
    12.0
    """
    number("cap", cap, above=0)
    number("kappa", kappa, at_least=1)
    integer("clients", clients, at_least=1)
    return kappa * cap * math.sqrt(clients * integer("rank", rank, at_least=1))


def onto_nuclear_ball(x: Float[Tensor, "n d"], radius: float) -> Float[Tensor, "n d"]:
    """The nearest matrix whose singular values sum to at most R."""
    number("radius", radius, above=0)
    left, s, right = torch.linalg.svd(x, full_matrices=False)
    return (left * onto_simplex_ball(s, radius)) @ right


def duality_gap(
    x: Float[Tensor, "n d"], g: Float[Tensor, "n d"], radius: float
) -> float:
    """`<G, W> + R |G|_op`, a bound on L(W) - min L; G is the gradient at a feasible W.

    Raises:
        InputError: if W is not in the ball, because then there is no bound.
    """
    norm = float(torch.linalg.svdvals(x).sum())
    if norm > radius * (1 + 1e-4):
        raise InputError(
            f"`x` must have a nuclear norm of at most {radius:g}, got {norm:g}."
        )
    return float((g * x).sum()) + radius * float(torch.linalg.matrix_norm(g, 2))


def fista(
    data: Tasks,
    *,
    radius: float,
    steps: int = 1000,
    tolerance: float = 1e-4,
) -> NuclearModels:
    """The best models in the ball, up to a relative duality gap, by FISTA.

    Args:
        data: samples of all clients.
        radius: R; see `nuclear_radius`.
        steps: the most steps.
        tolerance: stop if the gap is at most this times the loss; tested every ten
            steps.
    """
    number("radius", radius, above=0)
    integer("steps", steps, at_least=1)
    refuse_rank(1, *data.shape)
    lr = data.shape[0] / largest_curvature(data)
    x = data.features.new_zeros(data.shape)
    y, momentum, t, gap, now = x, 1.0, 0, math.inf, loss(data, x)
    for t in range(1, steps + 1):
        new = onto_nuclear_ball(y - lr * gradients(data, y), radius)
        if float(((y - new) * (new - x)).sum()) > 0:
            momentum = 1.0  # it went too far: restart (O'Donoghue, Candes)
        after = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        y, x, momentum = new + (momentum - 1) / after * (new - x), new, after
        if t % 10 == 0 or t == steps:
            now, gap = loss(data, x), duality_gap(x, gradients(data, x), radius)
            if gap <= tolerance * now:
                break
    return NuclearModels(x, now, gap, t)
