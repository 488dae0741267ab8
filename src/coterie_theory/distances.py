"""More distances between clients, which studies do not use, and weights from them.

The distances of `coterie.similarity.distances` depend only on data. In this module,
distances of gradients and gaps of losses depend on given models, and clients compute
them through an oracle. `exact_wasserstein` depends only on data, but is slow.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coterie import checks
from coterie.collaboration.weights import water_filling
from coterie.similarity.distances import Distances, from_halves
from coterie.similarity.samples import Samples
from coterie.types import Clients, Oracle


def gradient_distances(
    oracle: Oracle, x: Float[Tensor, "n d"], *, samples: int | None = None
) -> Distances:
    """Distances |grad f_j - grad f_i|^2 at client i's model, from halves of the data.

    The standard error is estimated from the two halves, as in `collaboration.beliefs`.
    It is infinite for pairs with an inactive client.

    Args:
        oracle: asks the clients.
        x: their models. If all models are the same, distances are symmetric up to
            noise.
        samples: the number of training samples each client uses, by default all.
    """
    seen = oracle.compare(x, samples=samples)
    others = seen.known & ~torch.eye(len(x), dtype=torch.bool, device=x.device)
    counted = others.sum(1).clamp(min=1)
    single = ((seen.noise.square() * others).sum(1) / counted / 4).sqrt()
    both = 2 * single[:, None].expand_as(seen.cross)  # a difference has twice it
    return from_halves(seen.cross, both, seen.known)


def gaps_of(
    clients: Clients,
    gap: Float[Tensor, "n c"],
    variance: Float[Tensor, "n c"],
    own: Float[Tensor, "n d"],
    candidates: Float[Tensor, "n c d"],
    batches: int,
) -> tuple[Tensor, Tensor]:
    """A client program: candidates' losses minus the loss of the client's own model.

    The gap is measured on all training data, and its variance on minibatches.
    """
    del gap, variance  # the places for the results

    def gaps(data: Clients) -> Tensor:
        loss = [data.loss(points) for points in candidates.unbind(1)]
        return torch.stack(loss, 1) - data.loss(own)[:, None]

    drawn = torch.stack([gaps(clients.same_batch()) for _ in range(batches)])
    return gaps(clients.whole()), drawn.var(0)


def generalisation_gaps(
    oracle: Oracle,
    models: Float[Tensor, "n d"],
    sizes: Int[Tensor, " n"],
    *,
    batch_size: int,
    batches: int = 8,
) -> Distances:
    """Gaps f_i(x_j) - f_i(x_i): how much worse client j's model is for client i.

    Gaps are not symmetric. They are comparable to squared distances b^2, since they are
    at most b^2 / (2 mu). They need samples on which the models were not trained. So
    train on the second federation of `split_for_partners`, and give this function the
    oracle of the first federation.

    Args:
        oracle: asks the clients.
        models: x, one model for each client.
        sizes: the number of training samples of each client in the oracle.
        batch_size: samples of the oracle's minibatches, drawn with replacement.
        batches: the number of minibatches from which the error is estimated.
    """
    checks.integer("batch_size", batch_size, at_least=1)
    checks.integer("batches", batches, at_least=2)
    n = len(models)
    unknown = models.new_full((2, n, n), torch.inf)
    rows = (unknown[0], unknown[1], models, models.expand(n, -1, -1))
    gap, variance = oracle.each(gaps_of, *rows, batches=batches)
    error = (variance * batch_size / sizes[:, None]).sqrt()
    apart = ~torch.eye(n, dtype=torch.bool, device=models.device)
    known = torch.isfinite(gap) & apart
    error = torch.where(apart & ~known, torch.inf, torch.where(apart, error, 0))
    return Distances(torch.where(known, gap, 0), error)


def filled_weights(distances: Distances, c: float) -> Float[Tensor, "n n"]:
    """Weights that minimise c times the variance plus half of the squared distances.

    See `water_filling`. Estimates below 0 count as 0, so a client's own weight is the
    largest in its row.
    """
    unknown = distances.error.isinf()
    bias = torch.where(unknown, torch.inf, distances.squared.clamp(min=0))
    return water_filling(bias / 2, c)


_MOST_CLIENTS = 64
"""The largest number of clients, because pairs are solved one by one."""


def exact_wasserstein(samples: Samples) -> Float[Tensor, "n n"]:
    """Wasserstein-1 distances between the samples of all pairs, one pair at a time.

    These are distances between samples. As estimates of distances between
    distributions, they are too large by about S^(-1/d). No unbiased estimate is known,
    so there is no standard error. For more clients or dimensions use
    `sliced_distances`.
    """
    try:
        import ot
    except ImportError as error:
        raise checks.InputError(
            f"transport plans need the package `pot` (pip install pot): {error}."
        ) from error
    checks.finite("samples", samples.values)
    n = checks.integer("clients", len(samples.size), at_least=1, at_most=_MOST_CLIENTS)
    rows = [samples.values[i, : samples.size[i]].double() for i in range(n)]
    distance = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(i):
            cost = torch.cdist(rows[i], rows[j]).cpu().numpy()
            # Empty marginals mean equal masses.
            distance[i, j] = ot.emd2([], [], cost, numItermax=10_000_000)
    return (distance + distance.T).to(samples.values)
