"""Which of several models fits a client best, judged by its training data.

A clustering method asks this in every round, and so does a newcomer that looks for a
model to begin with.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .types import Clients, Oracle


def losses_of(
    clients: Clients, losses: Float[Tensor, "n c"], candidates: Float[Tensor, "n c d"]
) -> Float[Tensor, "n c"]:
    """A client program: the loss of each candidate on all of the training data."""
    del losses  # the place for the result
    data = clients.whole()
    return torch.stack([data.loss(points) for points in candidates.unbind(1)], 1)


def training_losses(
    oracle: Oracle, candidates: Float[Tensor, "c d"]
) -> Float[Tensor, "n c"]:
    """Training loss of every client at every candidate, NaN for inactive clients."""
    n = len(oracle.active)
    unknown = candidates.new_full((n, len(candidates)), torch.nan)
    return oracle.each(losses_of, unknown, candidates.expand(n, -1, -1))[0]


def best_fit(oracle: Oracle, candidates: Float[Tensor, "c d"]) -> Int[Tensor, " n"]:
    """The candidate of least training loss, for every active client; ties: the first.

    Entries of inactive clients are 0.
    """
    return training_losses(oracle, candidates).nan_to_num(torch.inf).argmin(1)
