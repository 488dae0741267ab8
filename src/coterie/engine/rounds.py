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
from ..checks import InputError, integer, number
from ..types import (
    Algorithm,
    ClientsInPlace,
    ClientsInRounds,
    Info,
    Oracle,
    State,
    Traffic,
    traffic_of,
)
from .states import Change, changes_in_place, shared_memory, take_rows


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
    change: Change | None = None  # in place; None: earlier states stay as they were


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
    in_place: bool = False,
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
        in_place: whether rows of the state may change in its memory. If only some
            clients take part, a round then touches no other rows, if the state of the
            method allows it (`OwnRows`). The state of a round, and that of `start`, is
            valid until the next round begins.
    """
    integer("rounds", rounds, at_least=1)
    number("participation", participation, above=0, at_most=1)
    done, state = start or (0, algorithm.init(x, init_oracle(federated)))
    if in_place and isinstance(federated, ClientsInPlace) and federated.holds_all:
        some = int(participants(len(federated), participation, seed, 0).sum())
        if some < len(federated) and changes_in_place(state):
            of = algorithm, federated, shared_memory(state, x)
            for t in range(done + 1, rounds + 1):
                active = participants(len(federated), participation, seed, t)
                yield (now := _round_in_place(*of, state, t, active, seed))
                state = now.state
                assert now.change is not None  # it was made in place
                now.change.forget()
            return
    for t in range(done + 1, rounds + 1):
        active = participants(len(federated), participation, seed, t)
        oracle = federated.at(t, active)
        rng = seeds.generator(seed, "algorithm", t)
        state, info = algorithm.step(state, oracle, rng)
        alone = len(oracle.active) == len(federated)
        traffic = traffic_of(oracle.sent, None if alone else oracle.mine)
        yield Round(t, state, info, oracle.gradients, active, traffic)


def _round_in_place(
    algorithm: Algorithm,
    federated: ClientsInPlace,
    shared: set[int],
    state: State,
    t: int,
    active: Bool[Tensor, " n"],
    seed: int,
) -> Round:
    """A round in which only rows of active clients are copied, and written back."""
    oracle = federated.those_at(t, active)
    who = oracle.present.nonzero()[:, 0]
    rng = seeds.generator(seed, "algorithm", t)
    # Only the step holds the copies, so that it can free what it no longer needs.
    new, told = algorithm.step(take_rows(state, who), oracle, rng)
    change = Change(shared)
    try:
        before, state = state, change.put_rows(state, who, new)
        del new
        if algorithm.away is not None:
            state = algorithm.away(before, state, oracle.present)
        info = algorithm.info(state) | {
            name: value for name, value in told.items() if not _has_rows(value)
        }
        _refuse_lost(told, info)
        gradients = torch.zeros(len(active), dtype=oracle.gradients.dtype)
        gradients[who.cpu()] = oracle.gradients
        return Round(
            *(t, state, info, gradients, active, traffic_of(oracle.sent)), change=change
        )
    except BaseException:
        change.undo()
        raise


def _has_rows(value: Tensor | float) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _refuse_lost(told: Info, info: Info) -> None:
    """Refuses rows of `told` that are not in `info`."""
    for name in told:
        if name not in info:
            raise InputError(
                f"a step reports rows of {name!r}, so the algorithm must have an "
                "`info` that reports them for all clients, because its rounds are "
                "computed in place."
            )
