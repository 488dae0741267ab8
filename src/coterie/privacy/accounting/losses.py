"""Pairwise losses, and what can be said of them in a few numbers.

`share[u, v]` is S: the part of the square of mu, were the input of u sent as it is,
that reaches observer v. So the loss of the thesis, a Renyi divergence, is
`S alpha mu^2 / 2`, and v's epsilon that of a single Gaussian release with
`mu sqrt(S)`. The mean loss is a summary and no guarantee: nobody is the mean client.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float64
from torch import Tensor

from .gaussian import epsilons_of


class Losses(NamedTuple):
    """What each observer learns of each client."""

    share: Float64[Tensor, "n m"]  # S(u, v), 0 of the observer itself
    unit: Float64[Tensor, " n"]  # mu of each client under local privacy

    @property
    def mu(self) -> Float64[Tensor, "n m"]:
        """Mu of each client in the eyes of each observer."""
        return self.share.sqrt() * self.unit[:, None]

    def epsilon(self, delta: float) -> Float64[Tensor, "n m"]:
        """Epsilon of each client in the eyes of each observer."""
        return epsilons_of(self.mu, delta)

    def mean(self) -> Float64[Tensor, " m"]:
        """The mean loss of each observer, `(1/n) sum_u S(u, v)`; no guarantee."""
        return self.share.sum(0) / len(self.share)

    def worst(self) -> Float64[Tensor, " n"]:
        """The largest S of each client, in the eyes of whoever learns most of it."""
        return self.share.amax(1)
