"""Gradients of conjugate losses, which clients compute for dual methods.

    grad f^*(y) = argmin_x f(x) - <y, x>,    f(x) = loss(x) + (decay / 2) |x|^2

where loss is the client's loss on all of its training data. f must be 1 / lr-smooth and
strongly convex. Nesterov's method starts from the result of the last call:

    x' = p - lr (grad f(p) - y),    p <- x' + beta (x' - x),    x <- x',
    beta = (1 - r) / (1 + r),    r = sqrt(lr curvature).

After k steps, the squared distance to the minimiser is at most (1 + 1 / r^2) (1 - r)^k
times the squared distance at the start. We take enough steps to reduce the distance to
`accuracy` times the distance at the start. `coterie_theory.descent.dual` has closed
forms for quadratics; we do not use them here.

References:
    Nesterov, "Lectures on convex optimization", Springer, 2018, section 2.2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from ..checks import InputError
from ..options import NotNegative, Positive
from ..types import Clients


class ConvexLoss(NamedTuple):
    """Smoothness and curvature of all clients' losses, as options of dual methods.

    Args:
        lr: 1 / smoothness of the losses, including weight decay.
        curvature: strong convexity of the losses, including weight decay.
        weight_decay: adds this number times the model to each gradient.
    """

    lr: Positive = 0.1
    curvature: Positive = 1.0
    weight_decay: NotNegative = 0.0

    def valid(self) -> ConvexLoss:
        """Returns itself; refuses a curvature above the smoothness."""
        if self.lr * self.curvature > 1:
            raise InputError(
                "`curvature` must be at most the smoothness of the losses, 1 / lr = "
                f"{1 / self.lr:g}, got {self.curvature:g}."
            )
        return self

    def steps(self, accuracy: float) -> int:
        """The number of steps after which at most this share of the distance is left.

        >>> ConvexLoss(0.1, 1.0).steps(0.1), ConvexLoss(1.0, 1.0).steps(0.1)
        (19, 1)
        """
        r = math.sqrt(self.lr * self.curvature)
        if r == 1:
            return 1
        return math.ceil(math.log((1 + r**-2) / accuracy**2) / -math.log1p(-r))


def conjugate_gradient(
    clients: Clients,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "n d"],
    *,
    loss: ConvexLoss,
    steps: int,
) -> Float[Tensor, "n d"]:
    """A client program: nearly argmin_x f(x) - <y, x>, starting from an earlier x."""
    r = math.sqrt(loss.lr * loss.curvature)
    beta, here, p = (1 - r) / (1 + r), clients.whole(), x
    for _ in range(steps):
        g = here.grad(p) + loss.weight_decay * p - y
        x, before = p - loss.lr * g, x
        p = x + beta * (x - before)
    return x
