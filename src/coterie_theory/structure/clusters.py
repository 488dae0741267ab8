"""Estimates a few models (centres), each for a group of clients; groups are unknown.

Equation (9.5) is

    min over centres c_1 .. c_r, |c_s| <= cap, and groups pi of  sum_i L_i(c_pi(i)).

The estimator alternates two steps: pi(i) <- argmin_s L_i(c_s), and c_s <- argmin of the
loss of the members of group s. So the loss never rises. To choose a group, a client
needs only few samples, fewer than dimensions or groups. The centres need r D samples in
all. The first groups are k-means clusters of the vectors -grad L_i(0), in their r main
directions.

References:
    Even, PhD thesis, 2024, chapter 9, Theorem 9.2, tel-04877971.
    Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated
    learning", NeurIPS 2020, arXiv 2006.04088.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coterie.checks import InputError, integer, number

from .tasks import Tasks, best_rows, gradients, losses_at, warn_of_few


class ClusteredModels(NamedTuple):
    """Models of clients and centres of their groups."""

    x: Float[Tensor, "n d"]
    centres: Float[Tensor, "r d"]
    groups: Int[Tensor, " n"]
    loss: float
    losses: list[float]  # of the start that was kept, after each step; never rising


def fit_clusters(
    data: Tasks,
    *,
    groups: int,
    cap: float,
    rng: torch.Generator,
    starts: int = 5,
) -> ClusteredModels:
    """The best models over several starts, with one centre per group.

    Args:
        data: samples of all clients.
        groups: the number of groups.
        cap: the largest norm of a model.
        rng: the generator of the starts.
        starts: the number of starts.
    """
    n, d = data.shape
    integer("groups", groups, at_least=1)
    if groups > n:
        raise InputError(f"`groups` must be at most the {n} clients, got {groups}.")
    number("cap", cap, above=0)
    what = f"{groups} centres (Theorem 9.2)"
    warn_of_few(data, what, samples=groups * d, each=1)
    integer("starts", starts, at_least=1)
    g = gradients(data, data.features.new_zeros(n, d))
    # Uses the main directions: one for each group, or all if there are fewer.
    points = g @ torch.linalg.eigh(g.T @ g)[1][:, -groups:]
    runs = [
        _alternate(data, _means(points, groups, rng), groups, cap)
        for _ in range(starts)
    ]
    return min(runs, key=lambda run: run.loss)


def _means(points: Tensor, groups: int, rng: torch.Generator) -> Tensor:
    """Groups of rows by k-means; the first centres are rows far from each other."""
    at = [int(torch.randint(len(points), (1,), generator=rng))]
    for _ in range(groups - 1):
        far = torch.cdist(points, points[at]).amin(1).square().cpu()
        even = torch.ones_like(far)
        weights = far if bool(far.sum() > 0) else even
        at.append(int(torch.multinomial(weights, 1, generator=rng)))
    centres = points[at]
    for _ in range(20):
        member = torch.cdist(points, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, member, points)
        count = member.bincount(minlength=groups)[:, None]
        centres = torch.where(count > 0, sums / count.clamp(min=1), centres)
    return torch.cdist(points, centres).argmin(1)


def _alternate(data: Tasks, member: Tensor, groups: int, cap: float) -> ClusteredModels:
    centres = data.features.new_zeros(groups, data.shape[1])
    losses: list[float] = []
    for _ in range(100):
        centres = _centres(data, member, centres, cap)
        costs = costs_of(data, centres)  # (N, r)
        losses.append(float(costs.gather(1, member[:, None]).sum()))
        old, member = member, costs.argmin(1)
        losses.append(float(costs.gather(1, member[:, None]).sum()))
        if bool((old == member).all()):
            break
    return ClusteredModels(centres[member], centres, member, losses[-1], losses)


def costs_of(data: Tasks, centres: Float[Tensor, "r d"]) -> Float[Tensor, "n r"]:
    """(N, r) the loss L_i(c_s) of each client with each centre."""
    z = (data.features @ centres.T).permute(2, 0, 1)  # (r, N, M)
    return (data.weights * losses_at(data, z)).sum(2).T


def _centres(data: Tasks, member: Tensor, centres: Tensor, cap: float) -> Tensor:
    """The best model of each group; an empty group keeps its centre."""
    found = []
    for s, centre in enumerate(centres):
        mine = member == s
        if not bool(mine.any()):
            found.append(centre)
            continue
        features, targets, weights = (part[mine] for part in data[:3])
        pooled = features.flatten(0, 1)[None], targets.reshape(1, -1)
        found.append(
            best_rows(*pooled, weights.reshape(1, -1), data.loss, cap, centre[None])[0]
        )
    return torch.stack(found)
