"""The synchronous loop over rounds: a generator, from which the caller takes rounds.

for r in run_rounds(algorithm, simulation, x, rounds=100, seed=0):
    print(r.t, r.info)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from .. import seeds
from ..checks import integer, number
from ..types import Algorithm, ClientsInRounds, Info, Oracle, State, Traffic, traffic_of


class Lapse(NamedTuple):
    """What happened in virtual time during a round."""

    time: float  # at its end
    updates: int  # the number of answers that arrived
    delays: list[int]  # of these answers, if nobody waits
    spans: list[tuple[int, float, float]]  # position of a client, from when to when
    busy: Float64[Tensor, " n"]  # seconds of computing since the start
    idle: Float64[Tensor, " n"]  # seconds without computing since the start
    tasks: Int[Tensor, " n"]  # the number of tasks finished


class Round(NamedTuple):
    """One finished round."""

    t: int  # counted from 1
    state: State
    info: Info
    gradients: Float[Tensor, " n"]  # of single samples, of each client at hand
    active: Bool[Tensor, " m"]  # which of all clients took part
    traffic: Traffic = (
        Traffic()
    )  # values that clients at hand sent, or got from a server
    lapse: Lapse | None = None  # None without a clock


def participants(clients: int, share: float, seed: int, t: int) -> Bool[Tensor, " n"]:
    """(N,) which clients take part in round t: a random, non-empty set of fixed size.

    >>> participants(5, 0.4, seed=0, t=1).sum()
    tensor(2)
    """
    chosen = max(1, round(share * clients))
    order = torch.randperm(clients, generator=seeds.generator(seed, "active", t))
    return torch.zeros(clients, dtype=torch.bool).index_fill(0, order[:chosen], True)


def init_oracle(federated: ClientsInRounds) -> Oracle:
    """The oracle for `init`.

    Its messages are not counted, because all clients of a study begin with one model.
    """
    return federated.at(0, purpose="init")


def run_rounds(
    algorithm: Algorithm,
    federated: ClientsInRounds,
    x: Float[Tensor, "n d"],
    *,
    rounds: int,
    seed: int = 0,
    participation: float = 1.0,
    start: tuple[int, State] | None = None,
) -> Iterator[Round]:
    """Yields rounds 1 .. rounds of an algorithm.

    Args:
        algorithm: what to run.
        federated: the clients.
        x: starting models.
        rounds: the last round.
        seed: selects the random streams of the loop.
        participation: share of the clients that take part in a round.
        start: a finished round and its state, from which to go on.
    """
    integer("rounds", rounds, at_least=1)
    number("participation", participation, above=0, at_most=1)
    done, state = start or (0, algorithm.init(x, init_oracle(federated)))
    for t in range(done + 1, rounds + 1):
        active = participants(len(federated), participation, seed, t)
        oracle = federated.at(t, active)
        rng = seeds.generator(seed, "algorithm", t)
        state, info = algorithm.step(state, oracle, rng)
        alone = len(oracle.active) == len(federated)
        traffic = traffic_of(oracle.sent, None if alone else oracle.mine)
        yield Round(t, state, info, oracle.gradients, active, traffic)
