"""Dissimilarities of clients' data, from one optimal transport plan per client.

All clients know a reference data set D_0 of N0 samples. Client i computes the optimal
transport plan pi_i (N0, n_i) from the reference to its own n_i samples D_i. All samples
of a data set have the same mass. Client i computes

    M_i = N0 pi_i D_i,   Phi_i = (M_i - D_0) / sqrt(N0),

where row r of M_i is the mean point to which the plan moves sample r of the reference.
Only Phi_i leaves the client. The dissimilarity of two clients is

    D_ik = |Phi_i - Phi_k|_1,

the sum of absolute differences. It is a metric on the matrices Phi, and 0 for equal
data. Up to a factor, it is close to the 1-Wasserstein distance W_1. In one dimension
and with n_i = N0 samples, D_ik = sqrt(N0) W_1(i, k) exactly.

A sample is its features followed by its response. For regression the response is one
or several numbers. For classification, it has a column for each class, with 1 for the
right class.

References:
    Erickson, Johansson, "Personalized federated learning under model dissimilarity
    constraints", 2025, arXiv 2505.07575.
    Kolouri, Naderializadeh, Rohde, Hoffmann, "Wasserstein embedding for graph
    learning", ICLR 2021, arXiv 2006.09430.
    Elhussein, Gürsoy, "A universal metric of dataset similarity for cross-silo
    federated learning", 2024, arXiv 2404.18773 (cosine and Hellinger).

Differences: the paper leaves the reference distribution open. Ours does not depend on
any client's data: normal features of standard deviation 0.1, and a response that is
uniform over the classes or standard normal. Features of the reference are close
together, so that the plan moves samples within their class if possible. If data lie on
a line, many plans have the same cost. We take the one with the lowest squared cost, so
that the order of samples does not matter.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import InputError
from ..data.federation import Federation
from ..models import OBJECTIVES, target_values
from ..seeds import generator, integers_below, key

Cost = Callable[[Tensor, Tensor], Tensor]
"""Maps samples (a, d) and (b, d) to the costs (a, b) of moves between them."""

_SPREAD = 0.1
"""Standard deviation of the features of the reference."""

_TIE = 1e-6
"""The weight of squared costs, relative to the largest cost, to choose between plans.
"""


def euclidean(
    first: Float[Tensor, "a d"], second: Float[Tensor, "b d"]
) -> Float[Tensor, "a b"]:
    """Euclidean distances of features and response together."""
    mode = "donot_use_mm_for_euclid_dist"  # the other mode loses digits
    return torch.cdist(first, second, compute_mode=mode)


def cosine_hellinger(features: int) -> Cost:
    """One minus the cosine of the features, plus the Hellinger distance of responses.

    Responses are probabilities of classes, and their Hellinger distance is
    |sqrt(p) - sqrt(q)|_2 / sqrt(2), from 0 to 1. A vector of zeros is orthogonal to
    every vector.

    Args:
        features: the number of columns of features; the others are the response.
    """

    def cost(first: Tensor, second: Tensor) -> Tensor:
        towards = [
            torch.nn.functional.normalize(rows[:, :features], dim=1)
            for rows in (first, second)
        ]
        roots = [rows[:, features:].clamp(min=0).sqrt() for rows in (first, second)]
        return 1 - towards[0] @ towards[1].T + euclidean(*roots) / 2**0.5

    return cost


def embedding(
    reference: Float[Tensor, "r d"], data: Float[Tensor, "m d"], cost: Cost = euclidean
) -> Float[Tensor, "r d"]:
    """Phi of one client: how the optimal plan moves the reference."""
    try:
        import ot
    except ImportError as error:
        raise InputError(
            f"transport plans need the package `pot` (pip install pot): {error}."
        ) from error
    price = cost(reference, data).to("cpu", torch.float64)
    price = price + _TIE * price.square() / price.max().clamp(min=1e-300)
    size = len(reference)
    # Empty marginals mean equal masses.
    plan = ot.emd([], [], price.numpy(), numItermax=10_000_000)  # (r, m)
    moved = size * torch.as_tensor(plan).to(data) @ data
    return (moved - reference) / size**0.5


def embedding_distances(phi: Float[Tensor, "n r d"]) -> Float[Tensor, "n n"]:
    """(N, N) sums of absolute differences between embeddings."""
    rows = phi.flatten(1)
    distance = torch.cdist(rows, rows, p=1.0)
    return (distance + distance.T) / 2


def client_rows(federation: Federation, client: int, most: int = 0) -> Tensor:
    """A client's training data as rows (m, d) of features and response.

    Args:
        federation: the clients.
        client: the position of the client.
        most: the largest number of samples to take, at random; 0 takes all.
    """
    index, start, size = federation.train
    mine = index[start[client] : start[client] + size[client]]
    if 0 < most < len(mine):
        who = federation.clients[client, None].cpu()
        draws = integers_below(
            torch.tensor([2**31 - 1]), key("transport", "sample"), who, len(mine)
        )
        mine = mine[draws[0].argsort()[:most].to(mine.device)]
    features = federation.features[mine].flatten(1).to("cpu", torch.float64)
    targets = federation.targets[mine].to("cpu")
    classes = class_count(federation)
    if classes:
        response = torch.nn.functional.one_hot(targets.long(), classes)
    else:
        response = targets.reshape(len(mine), -1)
    return torch.cat([features, response.to(torch.float64)], 1)


def class_count(federation: Federation) -> int:
    """The number of classes of a response; 0 if it is not a class."""
    if not OBJECTIVES[federation.task].labelled:
        return 0
    return target_values(federation.task, federation.outputs)


def reference_samples(
    size: int, features: int, responses: int, *, classes: bool
) -> Float[Tensor, "r d"]:
    """The reference data: normal features, and a random class or normal response."""
    rng = generator("transport", "reference")
    values = torch.randn(size, features, generator=rng, dtype=torch.float64)
    if classes:
        drawn = torch.randint(responses, (size,), generator=rng)
        response = torch.nn.functional.one_hot(drawn, responses).to(values)
    else:
        response = torch.randn(size, responses, generator=rng, dtype=torch.float64)
    return torch.cat([_SPREAD * values, response], 1)


def dissimilarities(
    federation: Federation, *, size: int = 100, most: int = 0, cosine: bool = False
) -> Float[Tensor, "n n"]:
    """(N, N) dissimilarities D of clients, from their training data.

    Args:
        federation: the clients.
        size: the number of samples of the reference, N0.
        most: the largest number of samples of a client to use; 0 uses all.
        cosine: if true, the cost of a move is `cosine_hellinger` instead of the
            Euclidean distance.
    """
    classes = class_count(federation)
    if cosine and not classes:
        raise InputError(
            "`cosine` needs classes, but the task of "
            f"`{federation.name}` is {federation.task}."
        )
    features = federation.features[0].numel()
    responses = classes or federation.targets[0].numel()
    reference = reference_samples(size, features, responses, classes=classes > 0)
    cost = cosine_hellinger(features) if cosine else euclidean
    phi = [
        embedding(reference, client_rows(federation, client, most), cost)
        for client in range(len(federation))
    ]
    return embedding_distances(torch.stack(phi))
