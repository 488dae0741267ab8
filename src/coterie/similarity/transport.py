"""How different the data of two clients are, from one optimal transport plan each.

A reference data set D_0 of N0 samples is known to all. Client i computes the optimal
transport plan pi_i (N0, n_i) between it and its own data D_i, both with equal masses,
and from it

    M_i = N0 pi_i D_i,   Phi_i = (M_i - D_0) / sqrt(N0),

so that row r of M_i is where sample r of the reference goes, on average. Only Phi_i
leaves the client. The dissimilarity of two clients is the sum of absolute differences

    D_ik = |Phi_i - Phi_k|_1.

It is a metric on embeddings, and 0 for equal data. It compares with the 1-Wasserstein
distance, but for a factor: in one dimension and with n_i = N0 samples,
D_ik = sqrt(N0) W_1(i, k) exactly.

A sample is its features followed by its response: a number or several for regression,
one column for each class, 1 for the right one, for classification.

References:
    Erickson, Johansson, "Personalized federated learning under model dissimilarity
    constraints", 2025, arXiv 2505.07575.
    Kolouri, Naderializadeh, Rohde, Hoffmann, "Wasserstein embedding for graph
    learning", ICLR 2021, arXiv 2006.09430.
    Elhussein, Gürsoy, "A universal metric of dataset similarity for cross-silo
    federated learning", 2024, arXiv 2404.18773 (cosine and Hellinger).

Differences: the paper leaves the reference distribution open. Ours is independent of
anybody's data: normal features of standard deviation 0.1, and a response that is
uniform over the classes or standard normal. Features lie close together so that a
sample is moved within its class where that is possible. Among plans of equal cost, of
which there are many where data lie on a line, we take the one of least squared cost:
equal data in another order must not differ.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import InputError
from ..data.federation import Federation
from ..models import OBJECTIVES, target_values
from ..seeds import below, generator, key

Cost = Callable[[Tensor, Tensor], Tensor]
"""From samples (a, d) and (b, d) to the costs (a, b) of moving one to the other."""

_SPREAD = 0.1
"""Standard deviation of the features of the reference."""

_TIE = 1e-6
"""Weight of the squared cost, relative to the largest cost, which breaks ties."""


def euclidean(
    first: Float[Tensor, "a d"], second: Float[Tensor, "b d"]
) -> Float[Tensor, "a b"]:
    """The distance of features and response together."""
    mode = "donot_use_mm_for_euclid_dist"  # whose rounding is that of squares
    return torch.cdist(first, second, compute_mode=mode)


def cosine_hellinger(features: int) -> Cost:
    """One minus the cosine of the features, plus the Hellinger distance of responses.

    Responses are probabilities of classes, and their Hellinger distance is
    |sqrt(p) - sqrt(q)|_2 / sqrt(2), from 0 to 1. A vector of zeros is orthogonal to
    all.

    Args:
        features: how many columns are features; the others are the response.
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
    """Phi of one client: where the optimal plan moves the reference, less itself."""
    try:
        import ot
    except ImportError as error:
        raise InputError(
            f"transport plans need the package `pot` (pip install pot): {error}."
        ) from error
    price = cost(reference, data).to("cpu", torch.float64)
    price = price + _TIE * price.square() / price.max().clamp(min=1e-300)
    size = len(reference)
    # Empty marginals stand for equal masses.
    plan = ot.emd([], [], price.numpy(), numItermax=10_000_000)  # (r, m)
    moved = size * torch.as_tensor(plan).to(data) @ data
    return (moved - reference) / size**0.5


def embedding_distances(phi: Float[Tensor, "n r d"]) -> Float[Tensor, "n n"]:
    """The sums of absolute differences between embeddings, pair by pair."""
    rows = phi.flatten(1)
    distance = torch.cdist(rows, rows, p=1.0)
    return (distance + distance.T) / 2


def client_rows(federation: Federation, client: int, most: int = 0) -> Tensor:
    """A client's training data as rows (m, d) of features and response.

    Args:
        federation: whose data.
        client: its position.
        most: a larger client takes so many of its samples at random; 0 takes all.
    """
    index, start, size = federation.train
    mine = index[start[client] : start[client] + size[client]]
    if 0 < most < len(mine):
        who = federation.clients[client, None].cpu()
        draws = below(
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
    """How many classes a response can have; 0 where it is no class."""
    if not OBJECTIVES[federation.task].labelled:
        return 0
    return target_values(federation.task, federation.outputs)


def reference_samples(
    size: int, features: int, responses: int, *, classes: bool
) -> Float[Tensor, "r d"]:
    """The reference data: normal features, and a class or a normal response."""
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
    """D of all pairs of clients, from their training data.

    Args:
        federation: whose data.
        size: samples of the reference, N0.
        most: samples of a client that are used, at most; 0 uses all.
        cosine: move by cosine and Hellinger distance instead of Euclidean distance.
    """
    classes = class_count(federation)
    if cosine and not classes:
        raise InputError(
            "the cosine and Hellinger cost needs classes, but "
            f"`{federation.name}` is a task of {federation.task}."
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
