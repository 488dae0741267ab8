"""Which of several models fits a client's training data best.

Methods with clusters compute this choice in every round. Newcomers compute it once.
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
    """Training losses of every client's candidates, NaN for inactive clients."""
    unknown = candidates.new_full(candidates.shape[:2], torch.nan)
    return oracle.each(losses_of, unknown, candidates)[0]


def best_fit(oracle: Oracle, candidates: Float[Tensor, "n c d"]) -> Int[Tensor, " n"]:
    """For every active client, the candidate with the lowest loss on its training data.

    If several candidates have the lowest loss, the first counts. Entries of inactive
    clients are 0.
    """
    return training_losses(oracle, candidates).nan_to_num(torch.inf).argmin(1)


def mean_of_partners(
    oracle: Oracle, x: Float[Tensor, "n d"], weights: Float[Tensor, "n n"]
) -> Float[Tensor, "m d"]:
    """A mean of models for every newcomer, with the weights of the most similar client.

        sum_k alpha_bk x_k / sum_k alpha_bk

    The most similar client b is the one whose model has the lowest loss on the
    newcomer's training data.

    Args:
        oracle: the oracle that asks the m newcomers.
        x: the models of the clients that trained.
        weights: alpha, the weights of the clients that trained.
    """
    candidates = x.expand(len(oracle.active), -1, -1)
    return normalised(weights)[best_fit(oracle, candidates)] @ x
