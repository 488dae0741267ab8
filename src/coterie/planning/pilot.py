"""The findings of a pilot: the noise of clients' gradients, and their distances.

The training samples of every client are divided into quarters. FedAvg trains a common
model on two of them. Its gradients on the two other quarters, which it has not seen,
are a and b. Products of a and b give unbiased squared distances, and a - b is noise.
Then the quarters change roles, and both results are averaged. If clients turn out to be
far apart, a common model fits nobody and makes all gradients noisy. Then the whole
pilot is repeated with a model for each group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor

from ..algorithms.local import State
from ..checks import InputError, TrainingError
from ..clients.simulation import Simulation
from ..collaboration.weights import same_cluster
from ..data.federation import Federation, Part
from ..engine.rounds import run_rounds
from ..optim.steps import Descent, sgd, velocity
from ..similarity.samples import deal_samples
from ..types import Algorithm, Clients, ClientsInRounds, Info, Oracle
from .prospects import PilotFindings, structure_of

_FEWEST = 8
"""The fewest training samples with which a client is planned for."""

_PASSES = 3
"""How often groups are formed, at most."""

Simulate = Callable[[Federation], Simulation]


class Pilot(NamedTuple):
    """The findings of all quarters together, and of each half."""

    findings: PilotFindings
    halves: tuple[PilotFindings, PilotFindings]  # gradients of the last, the first half


class PilotTraining(NamedTuple):
    """The settings with which the models of a pilot are trained."""

    x: Float[Tensor, " d"]  # the first model
    lr: float
    steps: int  # per round
    rounds: int
    seed: int = 0  # of the random streams
    tick: Callable[[], None] = lambda: None  # called after every round

    def models(self, algorithm: Algorithm, clients: Simulation) -> Float[Tensor, "n d"]:
        """The clients' models at the end."""
        models = self.x.repeat(len(clients), 1)
        for r in run_rounds(
            algorithm, clients, models, rounds=self.rounds, seed=self.seed
        ):
            models = r.state.x
            self.tick()
        if not bool(models.isfinite().all()):
            raise TrainingError(
                f"the pilot's model is not finite after {self.rounds} rounds "
                f"with `lr` {self.lr:g}; use a smaller step size."
            )
        return models


def large_enough(federation: Federation) -> tuple[Int[Tensor, " m"], tuple[str, ...]]:
    """The places of clients with enough samples for a plan, and names of the others.

    Raises:
        InputError: if fewer than two clients have enough.
    """
    size = federation.train.size
    large = (size >= _FEWEST).nonzero()[:, 0]
    if len(large) < 2:
        raise InputError(
            f"a plan needs two clients with at least {_FEWEST} training samples, but "
            f"only {len(large)} of the {len(size)} clients of `{federation.name}` "
            f"{'has' if len(large) == 1 else 'have'} that many."
        )
    small = (size < _FEWEST).nonzero()[:, 0].tolist()
    return large, tuple(
        f"{federation.name_of(k)} ({int(size[k])} training samples of {_FEWEST})"
        for k in small
    )


def run_pilot(
    federation: Federation, simulate: Simulate, train: PilotTraining
) -> Pilot:
    """Noise and distances of the clients of a federation, from their training samples.

    Args:
        federation: the clients and their data.
        simulate: makes a simulation of a federation.
        train: the settings of the common model.
    """
    quarters = deal_samples(federation, 4, seed=train.seed)
    looks = [
        _fold(simulate, learn, judge, train)
        for learn, judge in (
            (quarters[:2], quarters[2:]),
            (quarters[2:], quarters[:2]),
        )
    ]
    found = combine_comparisons(federation.train.size, looks)
    first, second = (
        found._replace(
            squared=one.squared.cpu().numpy(), floor=math.sqrt(2) * found.floor
        )
        for one in looks
    )
    return Pilot(found, (first, second))


def _fold(
    simulate: Simulate,
    learn: list[Federation],
    judge: list[Federation],
    train: PilotTraining,
) -> GradientComparison:
    """The comparison of gradients on the quarters `judge`, at models of `learn`.

    Groups are found on the quarters `judge`. So the quarters `learn` can later test the
    proposed weights.
    """
    clients = simulate(union_of(*learn))
    first, second = (simulate(part) for part in judge)
    own = clients.federation.train.size
    sizes = first.federation.train.size, second.federation.train.size
    groups = torch.zeros(len(own), dtype=torch.long)
    for _ in range(_PASSES):
        algorithm = fedavg_in_groups(groups, own.cpu(), lr=train.lr, steps=train.steps)
        models = train.models(algorithm, clients)
        seen = compare_gradients(first, second, models, groups, sizes)
        before, groups = (
            groups,
            torch.from_numpy(groups_of(combine_comparisons(2 * own, [seen]))),
        )
        if bool((same_cluster(before) == same_cluster(groups)).all()):
            break
    return seen


def fedavg_in_groups(
    groups: Int[Tensor, " n"], sizes: Tensor, *, lr: float, steps: int
) -> Algorithm:
    """FedAvg inside every group."""
    rule = Descent(lr)
    mean = same_cluster(groups, sizes.double())

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        del rng
        x, v, t = state
        x, v = oracle.each(sgd, x, v, steps=steps, t=t, rule=rule)
        return State(oracle.mix(mean, x), v, t + steps), {}

    return Algorithm(lambda x, oracle: State(x, velocity(rule, x), 0), step)


def union_of(*parts: Federation) -> Federation:
    """The federation with the training samples of all parts."""
    everybody = torch.arange(len(parts[0]))
    pieces = [part.train.rows(everybody) for part in parts]
    index = torch.cat([rows for rows, _ in pieces], 1)
    mask = torch.cat([kept for _, kept in pieces], 1)
    size = mask.sum(1)
    return replace(parts[0], train=Part(index[mask], size.cumsum(0) - size, size))


def whole_gradient(clients: Clients, g: Tensor, x: Tensor) -> Tensor:
    """A client program: the gradient on all training samples."""
    del g  # the place for the result
    return clients.whole().grad(x)


class GradientComparison(NamedTuple):
    """What the gradients on two independent parts of every client's samples show."""

    squared: Float[Tensor, "n n"]
    floor: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    dimension: float


def compare_gradients(
    first: ClientsInRounds,
    second: ClientsInRounds,
    x: Float[Tensor, "n d"],
    groups: Int[Tensor, " n"],
    sizes: tuple[Tensor, Tensor],
) -> GradientComparison:
    """Distances of gradients at the models of clients, and their noise.

    With independent gradients a_i and b_i of two parts, <a_i - a_j, b_i - b_j> has mean
    |g_i - g_j|^2. The differences d_i = a_i - b_i are noise. Suppose the covariances of
    a_i and b_i are c_i S. Then |d_i|^2 / 2 has mean c_i tr S, and <d_i, d_j>^2 / 4 has
    mean c_i c_j tr S^2. Sums over pairs give the effective dimension (tr S)^2 / tr S^2.
    The field `floor` is f_i = c_i (tr S^2)^1/2. Clients of a group have the same model.
    """
    n = len(x)
    squared, floor, trace = x.new_zeros(n, n).double(), *x.new_zeros(2, n).double()
    dimensions = []
    for group in groups.unique():
        mine = (groups == group).to(x.device)
        here = x[mine][0].expand_as(x)
        (a,), (b,) = (
            part.at(1).each(whole_gradient, torch.zeros_like(x), here)
            for part in (first, second)
        )
        a, b = a.double(), b.double()
        products, noise = a @ b.T, (a - b) @ (a - b).T
        own = products.diagonal()
        squared[mine] = (own[:, None] + own - products - products.T)[mine]
        # The noise of clients at a model of another group says little about this one.
        among = mine if int(mine.sum()) > 2 else torch.ones_like(mine)
        traces = noise.diagonal() / 2  # of S_i, about
        strange = (noise.square() / 4).fill_diagonal_(0)[among][:, among].sum()
        pairs = traces[among].sum().square() - traces[among].square().sum()
        dimension = float((pairs / strange.clamp(min=1e-300)).clamp(min=1.0))
        floor[mine] = traces[mine] / math.sqrt(dimension)
        trace[mine] = traces[mine]
        dimensions.append(dimension)
    # |a - b|^2 has mean sigma^2 (1 / m_a + 1 / m_b).
    m = [size.to(x.device).double() for size in sizes]
    return GradientComparison(
        _average_between_groups(squared, groups.to(x.device)),
        floor,
        2 * trace / (1 / m[0] + 1 / m[1]),
        float(np.mean(dimensions)),
    )


def _average_between_groups(
    squared: Float[Tensor, "n n"], groups: Int[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """Symmetric distances. Pairs of different groups get the mean over both groups.

    A client's gradient at the model of a distant group is noisy, and the exact distance
    does not matter.
    """
    both = (squared + squared.T) / 2
    mean = same_cluster(groups).to(both)
    return torch.where(groups[:, None] == groups, both, mean @ both @ mean)


def groups_of(found: PilotFindings) -> Int[np.ndarray, " n"]:
    """(N,) groups of clients at mean distances below the noise of their samples."""
    n = len(found.squared)
    if not structure_of(found).place.shape[1]:
        return np.zeros(n, dtype=np.int64)
    noise = float(np.median(found.variance / found.sizes))
    apart = np.maximum(found.squared, 0)[np.triu_indices(n, 1)]
    tree = linkage(apart, "average")
    return fcluster(tree, 2 * noise, "distance").astype(np.int64)


def combine_comparisons(
    sizes: Int[Tensor, " n"], seen: list[GradientComparison]
) -> PilotFindings:
    """The mean findings of one comparison, or of two independent ones."""
    squared, floor, variance = (
        torch.stack(part).cpu().numpy()
        for part in zip(*(one[:3] for one in seen), strict=True)
    )
    return PilotFindings(
        squared.mean(0),
        shrink_to_mean(floor) / math.sqrt(len(seen)),
        shrink_to_mean(variance),
        float(np.mean([one.dimension for one in seen])),
        sizes.cpu().numpy().astype(np.float64),
    )


def shrink_to_mean(looks: Float[np.ndarray, "l n"]) -> Float[np.ndarray, " n"]:
    """(N,) means of clients' positive estimates, shrunk to the mean over clients.

    Each row of `looks` has one estimate for every client. This is James-Stein shrinkage
    on a logarithmic scale. The more a client's estimates differ, compared with the
    differences between clients, the stronger the shrinkage. Without shrinkage, some
    clients would seem to have no noise if only few samples have large gradients. The
    mean over clients does not change.
    """
    least = 1e-3 * float(np.median(looks.mean(0)))
    if not least > 0:
        raise InputError(
            "a plan needs gradients that differ between samples, but for half of the "
            "clients all gradients are the same."
        )
    mean = np.maximum(looks.mean(0), least)
    logs = np.log(np.maximum(looks, least))
    middle = logs.mean(0)
    chance = float(((logs[0] - logs[-1]) ** 2).mean()) / 4
    total = float(middle.var())
    kept = max(0.0, 1 - chance / total) if total > 0 else 0.0
    drawn = np.exp(middle.mean() + kept * (middle - middle.mean()))
    return drawn * (mean.mean() / drawn.mean())
