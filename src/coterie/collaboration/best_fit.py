"""Which of several models fits a client's training data best.

Clustering methods ask this in every round, and newcomers ask it once.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..types import Clients, Oracle
from .weights import normalised


def losses_of(
    clients: Clients, losses: Float[Tensor, "n c"], candidates: Float[Tensor, "n c d"]
) -> Float[Tensor, "n c"]:
    """A client program: the loss of each candidate on all of the training data."""
    del losses  # the place for the result
    data = clients.whole()
    return torch.stack([data.loss(points) for points in candidates.unbind(1)], 1)


def training_losses(
    oracle: Oracle, candidates: Float[Tensor, "n c d"]
) -> Float[Tensor, "n c"]:
    """Training loss of every client at its candidates, NaN for inactive clients."""
    unknown = candidates.new_full(candidates.shape[:2], torch.nan)
    return oracle.each(losses_of, unknown, candidates)[0]


def best_fit(oracle: Oracle, candidates: Float[Tensor, "n c d"]) -> Int[Tensor, " n"]:
    """The candidate of least training loss, for every active client; ties: the first.

    Entries of inactive clients are 0.
    """
    return training_losses(oracle, candidates).nan_to_num(torch.inf).argmin(1)


def mean_of_partners(
    oracle: Oracle, x: Float[Tensor, "n d"], weights: Float[Tensor, "n n"]
) -> Float[Tensor, "m d"]:
    """For every newcomer, the mean of the models its most similar client learned with.

        sum_k alpha_bk x_k / sum_k alpha_bk

    Client b is the one whose model has the least loss on the newcomer's training data.

    Args:
        oracle: asks the m newcomers.
        x: models of the clients that trained.
        weights: alpha, the weights of the clients that trained.
    """
    candidates = x.expand(len(oracle.active), -1, -1)
    return normalised(weights)[best_fit(oracle, candidates)] @ x
