"""Muffliato: private averages by gossip, where each client adds noise once.

    x_v^0 = clip(x_v) + N(0, s^2 I),  then gossip

Rows longer than `clip` are shortened to the length `clip` before noise is added. So one
client can change its row by at most Delta = 2 clip. Every function returns the rows,
and a ledger of all messages. From the ledger, accountants compute what each client
learned.

- `synchronous`: Algorithm 6.1, rounds of Chebyshev's recursion with one matrix.
- `time_varying`: rounds without acceleration, with matrices that change.
- `with_dropouts`: such rounds on random graphs between the clients that are present.
- `randomised`: Algorithm 6.2, one random pair after another.
- `accelerated`: random pairs in continuous time, with a second row for each client.
- `on_secret_graph`: Algorithm 6.1 on a random graph where a client knows only its
  neighbours. `decentralised.muffliato.secret_graph_loss` returns the loss of this
  protocol.

The number of rounds must not depend on the data, because it would then reveal something
about the data. Use `stopping_time` with a public bound.

References:
    Cyffers, Even, Bellet, Massoulié, "Muffliato: peer-to-peer privacy amplification for
    decentralized optimization and averaging", NeurIPS 2022, arXiv 2206.05091.
    Even, PhD thesis, 2024, chapter 6, tel-04877971.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from coterie import checks
from coterie.checks import InputError
from coterie.graphs.capacities import RingTimes
from coterie.graphs.families import refuse_apart
from coterie.graphs.matrices import gossip_matrix, linked_pairs
from coterie.graphs.spectra import chebyshev_factor, contraction
from coterie.privacy.accounting.gaussian import mu_of, replacement_sensitivity
from coterie.privacy.accounting.ledger import Event, Exchange, Input, Ledger, Meetings
from coterie.privacy.accounting.projection import Observer

from .. import gossip
from ..decentralised.muffliato import PlannedNoise, plan_noise, stopping_time
from .exact import exact_losses


class PrivateAverage(NamedTuple):
    """Rows near the mean of all rows, and the ledger of what was sent."""

    x: Float64[Tensor, "n d"]
    ledger: Ledger


def noisy(
    x: Float[Tensor, "n d"], *, clip: float, noise: float, rng: torch.Generator
) -> PrivateAverage:
    """Rows of at most this length, with new noise, and a ledger with these inputs.

    Args:
        x: a row for each client.
        clip: the largest length of a row; longer rows are shortened.
        noise: standard deviation of every coordinate.
        rng: the generator of the noise, for simulation only: others can compute its
            state from its numbers.
    """
    checks.finite("x", x)
    checks.number("noise", noise, at_least=0)
    sensitivity = replacement_sensitivity(clip)
    length = x.double().norm(dim=1, keepdim=True)
    short = x.double() * (clip / length.clamp(min=clip))
    drawn = torch.randn(x.shape, generator=rng, dtype=torch.float64)
    everybody = torch.ones(len(x), dtype=torch.bool)
    ledger = Ledger(len(x), (Input(0, everybody, sensitivity, noise),))
    return PrivateAverage(short + noise * drawn, ledger)


# In rounds.


def exchanges(
    matrix: Float[Tensor, "n n"], rounds: int, *, factor: float = 1.0, round: int = 0
) -> list[Event]:
    """The events of all rounds with one matrix; `factor` is Chebyshev's omega, or 1."""
    edges = linked_pairs(matrix)
    links = torch.cat([edges, edges.flip(1)])
    gammas = [1.0] + [factor] * (rounds - 1)
    return [Exchange(round, links, matrix, gamma) for gamma in gammas[:rounds]]


def synchronous(
    x: Float[Tensor, "n d"],
    matrix: Float[Tensor, "n n"],
    *,
    rounds: int,
    clip: float,
    noise: float,
    rng: torch.Generator,
    gap: float | None = None,
) -> PrivateAverage:
    """Algorithm 6.1: noise, then P_T(W) by Chebyshev's recursion.

    Args:
        x: a row for each client.
        matrix: symmetric and doubly stochastic, with a gap above 0.
        rounds: T, from `stopping_time`.
        clip: the largest length of a row.
        noise: standard deviation of every coordinate.
        rng: the generator of the noise.
        gap: the gap of the matrix, or less; by default it is computed from the matrix.
    """
    gap = 1 - contraction([matrix]) if gap is None else gap
    factor = chebyshev_factor(gap)
    start, ledger = noisy(x, clip=clip, noise=noise, rng=rng)
    mixed = gossip.chebyshev(start, matrix, rounds=rounds, gap=gap)
    for event in exchanges(matrix, rounds, factor=factor):
        ledger.append(event)
    return PrivateAverage(mixed, ledger)


def time_varying(
    x: Float[Tensor, "n d"],
    matrices: Iterable[Tensor],
    *,
    clip: float,
    noise: float,
    rng: torch.Generator,
) -> PrivateAverage:
    """Noise, then `... W_2 W_1 W_0 x`; arguments as for `synchronous`."""
    start, ledger = noisy(x, clip=clip, noise=noise, rng=rng)
    used = list(matrices)
    for t, matrix in enumerate(used):
        ledger.append(exchanges(matrix, 1, round=t)[0])
    return PrivateAverage(gossip.time_varying(start, used), ledger)


def with_dropouts(
    x: Float[Tensor, "n d"],
    *,
    rounds: int,
    links: float,
    dropout: float,
    clip: float,
    noise: float,
    rng: torch.Generator,
) -> PrivateAverage:
    """Noise of `noisy`, then rounds on random graphs between present clients.

    In each round, every client is away with probability `dropout`. Two present clients
    exchange their rows with probability `links`.
    """
    checks.number("dropout", dropout, at_least=0, below=1)
    drawn = []
    for _ in range(checks.integer("rounds", rounds, at_least=0)):
        present = torch.rand(len(x), generator=rng) >= dropout
        edges = random_edges(len(x), links, rng)
        edges = edges[present[edges].all(1)]
        some = gossip_matrix(edges, len(x)) if len(edges) else torch.eye(len(x))
        drawn.append(some.double())
    return time_varying(x, drawn, clip=clip, noise=noise, rng=rng)


def random_edges(n: int, chance: float, rng: torch.Generator) -> Int[Tensor, "e 2"]:
    """Each pair with the same probability; the graph may be unconnected."""
    checks.number("chance", chance, above=0, at_most=1)
    # Gaps between drawn pairs are geometric, so we need about one draw per edge.
    count, found, last = n * n, list[Tensor](), -1
    if chance == 1:
        return torch.triu_indices(n, n, 1).T
    while last < count:
        size = int(count * chance * 1.1) + 100
        gaps = torch.empty(size, dtype=torch.float64)
        place = last + gaps.geometric_(chance, generator=rng).long().cumsum(0)
        found.append(place)
        last = int(place[-1])
    place = torch.cat(found)
    place = place[place < count]
    pairs = torch.stack([place // n, place % n], 1)
    return pairs[pairs[:, 0] < pairs[:, 1]]


def on_secret_graph(
    x: Float[Tensor, "n d"],
    *,
    links: float,
    clip: float,
    noise: float,
    rng: torch.Generator,
    spread: float | None = None,
) -> PrivateAverage:
    """The result of `synchronous` on a random connected graph.

    There are `stopping_time` rounds. Every edge exists with probability `links`, such
    as 1.5 ln(n) / n. Edges must stay as secret as the noise, which comes from `noisy`.
    `spread` is a public bound on (1/n) sum |x_v - x_bar|^2, by default clip^2.
    """
    n = len(x)
    matrix = gossip_matrix(connected_edges(n, links, rng), n)
    gap = 1 - contraction([matrix])
    spread = clip**2 if spread is None else spread
    rounds = stopping_time(gap**0.5, n, noise, spread=spread, dim=x.shape[1])
    return synchronous(
        x, matrix, rounds=rounds, clip=clip, noise=noise, rng=rng, gap=gap
    )


def connected_edges(
    n: int, chance: float, rng: torch.Generator, *, tries: int = 1000
) -> Int[Tensor, "e 2"]:
    """Edges from `random_edges`, drawn again until they connect all nodes."""
    for _ in range(tries):
        edges = random_edges(n, chance, rng)
        try:
            refuse_apart("graph", edges, n)
            return edges
        except InputError:
            continue
    raise InputError(
        f"`links` = {chance:g} is too small for {n} clients: none of {tries} random "
        "graphs was connected."
    )


# By random pairs.


def randomised(
    x: Float[Tensor, "n d"],
    edges: Int[Tensor, "e 2"],
    chances: Float[Tensor, " e"],
    *,
    meetings: int,
    clip: float,
    noise: float,
    rng: torch.Generator,
) -> PrivateAverage:
    """Algorithm 6.2: noise of `noisy`, then `meetings` ticks; in each, a pair may meet.

    At each tick, at most one edge rings, each with its own probability. If
    probabilities sum to less than 1, no edge rings at some ticks.
    """
    checks.integer("meetings", meetings, at_least=0)
    checks.positive("chances", chances, len(edges))
    ends = chances.double().cumsum(0)
    if float(ends[-1]) > 1 + 1e-5:  # rounding of many in single precision
        raise InputError(f"`chances` must sum to at most 1, got {float(ends[-1]):.6g}.")
    start, ledger = noisy(x, clip=clip, noise=noise, rng=rng)
    drawn = torch.rand(meetings, generator=rng, dtype=torch.float64)
    which = torch.searchsorted(ends, drawn, right=True)
    times = torch.arange(meetings, dtype=torch.float64)[which < len(edges)]
    rings = RingTimes(times, which[which < len(edges)])
    end = torch.tensor([float(meetings)], dtype=torch.float64)
    mixed = gossip.randomised(start, edges, rings, end)[0]
    met = edges[rings.which]
    _write(ledger, met, torch.zeros_like(met, dtype=torch.float64), 0.0)
    return PrivateAverage(mixed, ledger)


def accelerated(
    x: Float[Tensor, "n d"],
    edges: Int[Tensor, "e 2"],
    rates: Float[Tensor, " e"],
    *,
    until: float,
    clip: float,
    noise: float,
    rng: torch.Generator,
) -> PrivateAverage:
    """Remark 6.3.1: noise of `noisy`, then `gossip.accelerated` with Poisson rings.

    The graph must be connected. With rates that sum to 1 there are about `until`
    meetings.
    """
    pace = gossip.pace(edges, rates)
    start, ledger = noisy(x, clip=clip, noise=noise, rng=rng)
    rings = gossip.poisson_rings(rates, until, rng)
    end = torch.tensor([until], dtype=torch.float64)
    mixed = gossip.accelerated(start, edges, rings, end, pace).x[0]
    met = edges[rings.which]
    flown = gossip.flow_shares(met, rings.times, len(x), pace.eta)
    _write(ledger, met, flown, pace.gamma)
    return PrivateAverage(mixed, ledger)


def _write(ledger: Ledger, met: Tensor, flown: Tensor, gamma: float) -> None:
    """Appends meetings to the ledger, one layer after the other."""
    for t, some in enumerate(gossip.layers(met, ledger.clients)):
        ledger.append(Meetings(t, met[some], flown[some], gamma))


# How much noise.


def calibrate_noise(
    matrix: Float[Tensor, "n n"],
    *,
    epsilon: float,
    delta: float,
    clip: float,
    pairs: Sequence[tuple[int, int]] | None = None,
    spread: float | None = None,
    dim: int = 1,
) -> PlannedNoise:
    """Noise and rounds of `synchronous` with which no pair exceeds (epsilon, delta).

    More rounds need more noise, and more noise needs fewer rounds. The result has the
    smallest number of rounds that is enough for the noise it needs. On every graph, a
    client's neighbours learn its whole noisy input. So `pairs=None` needs the noise of
    local privacy.

    Args:
        matrix: symmetric and doubly stochastic.
        epsilon: the largest epsilon of the pairs.
        delta: the delta of the pairs.
        clip: the largest length of a row.
        pairs: pairs (client, observer); by default all, which is local privacy.
        spread: a public bound on (1/n) sum |x_v - x_bar|^2, by default clip^2.
        dim: the number of coordinates of a row.
    """
    n, local = len(matrix), replacement_sensitivity(clip) / mu_of(epsilon, delta)
    gap = 1 - contraction([matrix])
    spread = clip**2 if spread is None else spread
    observers = sorted({v for _, v in pairs or ()})
    known: dict[int, float] = {}

    def noise_after(rounds: int) -> float:
        if pairs is None:
            return local
        if rounds not in known:
            ledger = Ledger(n, (Input(0, torch.ones(n).bool(), 1.0, 1.0),))
            for event in exchanges(matrix, rounds):
                ledger.append(event)
            found = exact_losses(ledger, [Observer((v,)) for v in observers]).share
            share = max(float(found[u, observers.index(v)]) for u, v in pairs)
            # If an observer learns nothing, no noise is needed, but `stopping_time`
            # needs some.
            known[rounds] = local * max(share, 1e-12) ** 0.5
        return known[rounds]

    return plan_noise(
        noise_after,
        lambda noise: stopping_time(gap**0.5, n, noise, spread=spread, dim=dim),
    )
