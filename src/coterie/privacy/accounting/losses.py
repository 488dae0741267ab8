"""Pairwise losses, and a few numbers that summarise them.

Sending the input of client u unmixed would cost mu^2. `share[u, v]` is S, the part of
mu^2 that reaches observer v. So the loss in the thesis, a Renyi divergence, is `S alpha
mu^2 / 2`. The epsilon of u towards v is the epsilon of one Gaussian release with `mu
sqrt(S)`. The mean loss is a summary and not a guarantee for any client.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float64
from torch import Tensor

from .gaussian import epsilons_of


class Losses(NamedTuple):
    """What each observer learns of each client."""

    share: Float64[Tensor, "n m"]  # S(u, v), 0 for the observer itself
    unit: Float64[Tensor, " n"]  # mu of each client under local privacy

    @property
    def mu(self) -> Float64[Tensor, "n m"]:
        """Mu of each client towards each observer."""
        return self.share.sqrt() * self.unit[:, None]

    def epsilon(self, delta: float) -> Float64[Tensor, "n m"]:
        """Epsilon of each client towards each observer."""
        return epsilons_of(self.mu, delta)

    def mean(self) -> Float64[Tensor, " m"]:
        """The mean loss of each observer, `(1/n) sum_u S(u, v)`; not a guarantee."""
        return self.share.sum(0) / len(self.share)

    def worst(self) -> Float64[Tensor, " n"]:
        """The largest S of each client, over all observers."""
        return self.share.amax(1)
