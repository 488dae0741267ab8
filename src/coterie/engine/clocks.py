"""How long things take in virtual time: computing, messages, and gaps between rings.

Every time is a pure function of a few whole numbers. The time of client i's computation
c depends only on (seed, i, c). The time of message c between clients i and k depends
only on (seed, {i, k}, c). So both ends of an edge know the same times, and resuming is
exact. A site draws only its own times, and gets the same times as a simulation.
`coterie.engine.laws` has the distributions (laws).
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from ..checks import InputError, integer, number
from ..graphs.capacities import RingTimes
from ..graphs.files import numbered_rows
from ..seeds import key
from .laws import (
    LAWS,
    POSITIVE,
    Rules,
    draw,
    identities,
    log,
    numbers,
    setting,
    uniforms,
)

_AVAILABILITIES: Rules = {"always": {}, "on_off": {"on": POSITIVE, "off": POSITIVE}}
_COUNT = {"at_least": 0.0, "at_most": 1e6}
_SPEEDS: Rules = {"stragglers": {"count": _COUNT, "factor": POSITIVE}}
_CYCLES = 1e6  # the most on-off cycles, because they are summed up from time 0
_BLOCK = 4096


@runtime_checkable
class Clock(Protocol):
    """Says when clients may begin to compute, and how long computations take."""

    def durations(
        self, clients: Int[Tensor, " n"], first: Int[Tensor, " n"], count: int
    ) -> Float64[Tensor, "n {count}"]:
        """Durations: row j has numbers first[j] .. first[j] + count - 1 of clients[j].

        `clients` are identities, not positions. Computations are numbered from 0.
        """

    def ready(self, client: int, time: float) -> float:
        """When a client that wants to begin at `time` may begin."""


def clock(
    law: str,
    speeds: Sequence[float] | Tensor | str | None = None,
    availability: str | None = None,
    seed: int = 0,
) -> Clock:
    """A clock whose times are drawn from a distribution.

    Args:
        law: the distribution of the time of one computation, in seconds; see `laws`.
        speeds: factors of the times, one per client (10 is ten times slower), or
            `stragglers(count, factor)`: clients 0 .. count - 1 have this factor.
        availability: `always`, or `on_off(on, off)`: each client is on and off in turn,
            for exponential times with these means. A client begins computations only
            while it is on, and always finishes them. At any time, also at time 0, it is
            on with probability on / (on + off).
        seed: selects the random streams.
    """
    integer("seed", seed, at_least=0)
    setting("law", law, LAWS)
    word, means = setting("availability", availability or "always", _AVAILABILITIES)
    periods = _Periods(*means, stream=key(seed, "on")) if word == "on_off" else None
    return _LawClock(law, *_factors(speeds), key(seed, "compute"), periods)


@dataclass(frozen=True)
class _LawClock:
    law: str
    factors: Tensor  # of clients 0, 1, ...; the last is for all others
    known: int | None  # the number of clients, if known
    stream: int
    periods: _Periods | None

    def durations(
        self, clients: Int[Tensor, " n"], first: Int[Tensor, " n"], count: int
    ) -> Float64[Tensor, "n {count}"]:
        identities("clients", clients, self.known)
        factors = self.factors[clients.clamp(max=len(self.factors) - 1), None]
        return factors * draw(self.law, self.stream, clients[:, None], first, count)

    def ready(self, client: int, time: float) -> float:
        return time if self.periods is None else self.periods.ready(client, time)


class _Periods:
    """The periods in which clients are on. Sums are stored only to save time."""

    def __init__(self, on: float, off: float, *, stream: int) -> None:
        self.on, self.off, self.stream = on, off, stream
        self._ends: dict[int, list[float]] = {}

    def ready(self, client: int, time: float) -> float:
        """`time` if the client is on at `time`; otherwise the end of the off period."""
        integer("client", client, at_least=0)
        number("time", time, at_least=0, at_most=_CYCLES * (self.on + self.off))
        ends = self._ends.get(client, [0.0])
        while ends[-1] <= time:
            ends = self._ends[client] = self._sums(client, 16 + len(ends))
        period = bisect_right(ends, time)  # even ones are on
        return ends[period] if period % 2 else time

    def _sums(self, client: int, cycles: int) -> list[float]:
        """The ends of periods. Draw 0 says whether the client is on at time 0."""
        name, first = torch.tensor([[client]]), torch.tensor([0])
        draws = uniforms(self.stream, name, first, 1 + 2 * cycles)[0]
        means = torch.tensor([self.on, self.off], dtype=torch.float64).repeat(cycles)
        lengths = means * -log(draws[1:])
        if float(draws[0]) >= self.on / (self.on + self.off):
            lengths[0] = 0
        return lengths.cumsum(0).tolist()


def trace(path: str | Path, *, clients: int | None = None) -> TraceClock:
    """A clock that uses measured times, and repeats each client's list of times.

    Args:
        path: a CSV file with the columns client, number and seconds.
        clients: the number of clients (None: as many as the file names).
    """
    found = _read_seconds(Path(path))
    total = max(found) + 1 if clients is None else clients
    gap = _missing(found)
    if gap < total or max(found) >= total:
        client = gap if gap < total else min(i for i in found if i >= total)
        rule = f"must have times of clients 0 to {total - 1} and nobody else"
        has = f"has {len(found.get(client, {}))} of client {client}"
        raise InputError(f"the trace {path} {rule}, but it {has}.")
    for client, own in sorted(found.items()):
        if _missing(own) < len(own):
            rule = f"must number the times of client {client} 0, 1, ..."
            raise InputError(
                f"the trace {path} {rule}, but {_missing(own)} is missing."
            )
    lists = [[found[i][c] for c in range(len(found[i]))] for i in range(total)]
    lengths = torch.tensor([len(times) for times in lists])
    seconds = torch.tensor(list(chain(*lists)), dtype=torch.float64)
    return TraceClock(seconds, lengths.cumsum(0) - lengths, lengths)


def _missing(numbered: Collection[int]) -> int:
    """The smallest whole number that is missing."""
    return next(i for i in range(len(numbered) + 1) if i not in numbered)


def _read_seconds(path: Path) -> dict[int, dict[int, float]]:
    """Seconds by client and number."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = numbered_rows(file)
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(f"cannot read the trace {path}: {error}.") from error
    if not rows:
        raise InputError(f"the trace {path} must have times, but it has no rows.")
    found: dict[int, dict[int, float]] = {}
    for line, row in rows:
        try:
            client, c = int(row["client"]), int(row["number"])
            own, time = found.setdefault(client, {}), float(row["seconds"])
            if min(client, c) < 0 or c in own or not 0 < time < math.inf:
                raise ValueError
            own[c] = time
        except KeyError as error:
            raise InputError(f"the trace {path} has no column {error}.") from None
        except (TypeError, ValueError):
            rule = "a client from 0 on, a number of its own from 0 on and seconds > 0"
            got = list(row.values())
            raise InputError(
                f"row {line} of the trace {path} must have {rule}, got {got}."
            ) from None
    return found


@dataclass(frozen=True)
class TraceClock:
    """A clock of measured times."""

    seconds: Tensor  # the lists of times of all clients, joined
    starts: Tensor  # (N,) where the list of each begins
    lengths: Tensor  # (N,)

    def __len__(self) -> int:
        return len(self.starts)

    def durations(
        self, clients: Int[Tensor, " n"], first: Int[Tensor, " n"], count: int
    ) -> Float64[Tensor, "n {count}"]:
        """The measured times; see `Clock`."""
        identities("clients", clients, len(self))
        which = numbers(first, count) % self.lengths[clients, None]
        return self.seconds[self.starts[clients, None] + which]

    def ready(self, client: int, time: float) -> float:
        """At once; see `Clock`."""
        return time


@runtime_checkable
class LinkDelays(Protocol):
    """How long messages travel."""

    def delays(
        self, edges: Int[Tensor, "e 2"], first: Int[Tensor, " e"], count: int
    ) -> Float64[Tensor, "e {count}"]:
        """Delays: row j has numbers first[j] .. of messages over the edge edges[j]."""

    def relay_delays(
        self, clients: Int[Tensor, " n"], first: Int[Tensor, " n"], count: int
    ) -> Float64[Tensor, "n {count}"]:
        """Delays: row j has those between clients[j] and the relay of messages."""


@dataclass(frozen=True)
class Delays:
    """Message delays with one distribution for all edges, equal in both directions.

    Attributes:
        law: the distribution of the delay of one message, in seconds; see `laws`.
        seed: selects the random streams.
    """

    law: str
    seed: int = 0

    def __post_init__(self) -> None:
        setting("law", self.law, LAWS)
        integer("seed", self.seed, at_least=0)

    def delays(
        self, edges: Int[Tensor, "e 2"], first: Int[Tensor, " e"], count: int
    ) -> Float64[Tensor, "e {count}"]:
        """Delays: row j has numbers first[j] .. first[j] + count - 1 of edges[j]."""
        return draw(self.law, key(self.seed, "delay"), _pairs(edges), first, count)

    def relay_delays(
        self, clients: Int[Tensor, " n"], first: Int[Tensor, " n"], count: int
    ) -> Float64[Tensor, "n {count}"]:
        """Delays: row j has those between clients[j] and the relay of messages."""
        identities("clients", clients)
        return draw(self.law, key(self.seed, "relay"), clients[:, None], first, count)


@dataclass(frozen=True)
class Rings:
    """When the clocks of edges ring: Poisson processes that both ends can compute.

    The time of ring c is the sum of gaps 0 .. c, which are exponential with mean 1 /
    rate.

    Attributes:
        edges: identities of the two ends, in any order; all pairs must be different.
        rates: rings per second, one for each edge.
        seed: selects the random streams.
    """

    edges: Int[Tensor, "e 2"]
    rates: Float64[Tensor, " e"]
    seed: int = 0

    def __post_init__(self) -> None:
        integer("seed", self.seed, at_least=0)
        pairs, copies = _pairs(self.edges).unique(dim=0, return_counts=True)
        if (copies > 1).any():
            pair = pairs[copies > 1][0].tolist()
            raise InputError(f"`edges` must differ, but {pair} is there twice.")
        if len(self.rates) != len(pairs):
            rule = f"one entry per edge, {len(pairs)}, got {len(self.rates)}"
            raise InputError(f"`rates` must have {rule}.")
        for edge, rate in enumerate(self.rates.tolist()):
            number(f"rates[{edge}]", rate, at_least=1e-12, at_most=1e12)

    def times(
        self,
        which: Int[Tensor, " m"],
        first: Int[Tensor, " m"],
        count: int,
        since: Float64[Tensor, " m"] | None = None,
    ) -> Float64[Tensor, "m {count}"]:
        """Times: row j has rings first[j] .. first[j] + count - 1 of edge which[j].

        Args:
            which: positions in `edges`.
            first: numbers of the first rings, from 0.
            count: the number of rings of each edge.
            since: the time of the ring before `first`, or 0 if there is none. With
                None, we compute this time; results are exactly the same.
        """
        if since is None:
            since = self.rates.new_zeros(len(which))
            for start in range(0, max(first.tolist(), default=0), _BLOCK):
                begin = torch.full_like(first, start)
                earlier = numbers(begin, _BLOCK) < first[:, None]
                since = _sums(since, self._gaps(which, begin, _BLOCK) * earlier)[:, -1]
        return _sums(since, self._gaps(which, first, count))

    def until(self, time: float) -> RingTimes:
        """All rings up to that time."""
        number("time", time, above=0)
        every = torch.arange(len(self.rates))
        # The probability that an edge rings more often is below e^-40: for a Poisson
        # number of mean m, P(Z >= m + x) <= exp(-x^2 / (m + x)). In that case we draw
        # more.
        count = int(2 * float(self.rates.max()) * time) + 40
        times = self.times(every, torch.zeros_like(every), count)
        while float(times[:, -1].min()) <= time:
            count *= 2
            times = self.times(every, torch.zeros_like(every), count)
        edge, _ = torch.where(times <= time)
        found = times[times <= time]
        order = found.argsort(stable=True)
        return RingTimes(found[order], edge[order])

    def _gaps(self, which: Tensor, first: Tensor, count: int) -> Tensor:
        stream, pairs = key(self.seed, "ring"), _pairs(self.edges[which])
        units = -log(uniforms(stream, pairs, first, count))
        return units / self.rates[which, None]


def _sums(since: Tensor, gaps: Tensor) -> Tensor:
    """Running sums, added from the left: blocks of any size give the same bits."""
    return torch.cat([since[:, None], gaps], 1).cumsum(1)[:, 1:]


def _factors(
    speeds: Sequence[float] | Tensor | str | None,
) -> tuple[Tensor, int | None]:
    """Factors of the first clients and of all others, and the number of clients."""
    listed, known = [], None
    if isinstance(speeds, str):
        _, (count, factor) = setting("speeds", speeds, _SPEEDS)
        if count % 1:
            raise InputError(f"`speeds count` must be a whole number, got {count}.")
        listed = [factor] * int(count)
    elif speeds is not None:
        listed = speeds.tolist() if isinstance(speeds, Tensor) else list(speeds)
        known = len(listed)
        for client, value in enumerate(listed):
            number(f"speeds[{client}]", value, **POSITIVE)
    return torch.tensor([*listed, 1.0], dtype=torch.float64), known


def _pairs(edges: Int[Tensor, "e 2"]) -> Int[Tensor, "e 2"]:
    """The edges with the smaller identity first: an edge has no direction."""
    identities("edges", edges)
    loops = edges[:, 0] == edges[:, 1]
    if loops.any():
        pair = edges[loops][0].tolist()
        raise InputError(f"`edges` must join two different clients, got {pair}.")
    return edges.sort(dim=1).values
