"""How long things take in virtual time: computing, sending, waiting to meet.

Every time is a pure function of names: that of client i's computation number c depends
on (seed, i, c) alone, that of message number c between i and k on (seed, {i, k}, c). So
both ends of an edge know the same times, a site draws exactly its own rows of what a
simulation draws, and resuming is exact. Laws, with u uniform on (0, 1), z normal:

    constant(s)               s
    exponential(mean)         -mean log u
    lognormal(median, sigma)  median exp(sigma z)
    pareto(least, alpha)      least u^(-1/alpha), of mean least alpha / (alpha - 1)
    uniform(low, high)        low + (high - low) u
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from .checks import InputError, call, integer, number, one_of
from .seeds import key, mix

# Within these limits no law overflows: alpha 0.1 and sigma 50 reach 1e160 and 1e186.
_FROM_ZERO = {"at_least": 0.0, "at_most": 1e12}
_POSITIVE = {"above": 0.0, "at_most": 1e12}
_Rules = Mapping[str, Mapping[str, Mapping[str, float]]]
_LAWS: _Rules = {
    "constant": {"s": _FROM_ZERO},
    "exponential": {"mean": _POSITIVE},
    "lognormal": {"median": _POSITIVE, "sigma": {"at_least": 0.0, "at_most": 50.0}},
    "pareto": {"least": _POSITIVE, "alpha": {"at_least": 0.1}},
    "uniform": {"low": _FROM_ZERO, "high": _FROM_ZERO},
}
_AVAILABILITIES: _Rules = {"always": {}, "on_off": {"on": _POSITIVE, "off": _POSITIVE}}
_COUNT = {"at_least": 0.0, "at_most": 1e6}
_SPEEDS: _Rules = {"stragglers": {"count": _COUNT, "factor": _POSITIVE}}
_CYCLES = 1e6  # periods on and off are summed up from time 0, so not for ever
_BLOCK = 4096


@runtime_checkable
class Clock(Protocol):
    """When clients may begin to compute, and how long it takes them."""

    def durations(
        self, clients: Int[Tensor, " n"], first: Int[Tensor, " n"], count: int
    ) -> Float64[Tensor, "n {count}"]:
        """Row j holds times first[j] .. first[j] + count - 1 of client clients[j].

        Clients are identities, not positions; numbers of computations count from 0.
        """

    def ready(self, client: int, time: float) -> float:
        """When a client that wants to begin at `time` may begin."""


def clock(
    law: str,
    speeds: Sequence[float] | Tensor | str | None = None,
    availability: str | None = None,
    seed: int = 0,
) -> Clock:
    """A clock whose times are drawn from a law.

    Args:
        law: of one computation, in seconds; see the module.
        speeds: factors of time, one per client (10 is ten times slower), or
            `stragglers(count, factor)`, where clients 0 .. count - 1 have the factor.
        availability: `always`, or `on_off(on, off)`: periods of exponential lengths
            with these means alternate, and a client begins only while on; what has
            begun goes on until done. It is on at time 0, as at any other, with
            probability on / (on + off).
        seed: names the streams.
    """
    integer("seed", seed, at_least=0)
    _setting("law", law, _LAWS)
    word, means = _setting("availability", availability or "always", _AVAILABILITIES)
    periods = _Periods(*means, stream=key(seed, "on")) if word == "on_off" else None
    return _Drawn(law, *_factors(speeds), key(seed, "compute"), periods)


@dataclass(frozen=True)
class _Drawn:
    law: str
    factors: Tensor  # of clients 0, 1, ..., the last one of all others
    known: int | None  # how many clients there are, if that is known
    stream: int
    periods: _Periods | None

    def durations(
        self, clients: Int[Tensor, " n"], first: Int[Tensor, " n"], count: int
    ) -> Float64[Tensor, "n {count}"]:
        _identities("clients", clients, self.known)
        factors = self.factors[clients.clamp(max=len(self.factors) - 1), None]
        return factors * _draw(self.law, self.stream, clients[:, None], first, count)

    def ready(self, client: int, time: float) -> float:
        return time if self.periods is None else self.periods.ready(client, time)


class _Periods:
    """When clients are on. What was summed up is kept: a memory, not a state."""

    def __init__(self, on: float, off: float, *, stream: int) -> None:
        self.on, self.off, self.stream = on, off, stream
        self._ends: dict[int, list[float]] = {}

    def ready(self, client: int, time: float) -> float:
        """`time` while the client is on, else the end of the period that is off."""
        integer("client", client, at_least=0)
        number("time", time, at_least=0, at_most=_CYCLES * (self.on + self.off))
        ends = self._ends.get(client, [0.0])
        while ends[-1] <= time:
            ends = self._ends[client] = self._sums(client, 16 + len(ends))
        period = bisect_right(ends, time)  # even ones are on
        return ends[period] if period % 2 else time

    def _sums(self, client: int, cycles: int) -> list[float]:
        """Ends of periods. Draw 0 says how the client begins, then one for each."""
        name, first = torch.tensor([[client]]), torch.tensor([0])
        draws = _uniforms(self.stream, name, first, 1 + 2 * cycles)[0]
        means = torch.tensor([self.on, self.off], dtype=torch.float64).repeat(cycles)
        lengths = means * -_log(draws[1:])
        if float(draws[0]) >= self.on / (self.on + self.off):
            lengths[0] = 0
        return lengths.cumsum(0).tolist()


def trace(path: str | Path, *, clients: int | None = None) -> Clock:
    """A clock that replays measured times; a client's list starts again at its end.

    Args:
        path: a CSV file with the columns client, number and seconds.
        clients: how many there must be; None takes as many as the file names.
    """
    found = _measured(Path(path))
    total = max(found) + 1 if clients is None else clients
    for client in sorted({*found, *range(total)}):
        own = found.get(client, {})
        if not own or client >= total:
            rule = f"must have times of clients 0 to {total - 1} and nobody else"
            has = f"has {len(own)} of client {client}"
            raise InputError(f"the trace {path} {rule}, but it {has}.")
        if max(own) >= len(own):
            rule = f"must number the times of client {client} 0, 1, ..."
            missing = min(set(range(max(own))) - set(own))
            raise InputError(f"the trace {path} {rule}, but {missing} is missing.")
    lists = [[found[i][c] for c in range(len(found[i]))] for i in range(total)]
    lengths = torch.tensor([len(times) for times in lists])
    seconds = torch.tensor(list(chain(*lists)), dtype=torch.float64)
    return _Replayed(seconds, lengths.cumsum(0) - lengths, lengths)


def _measured(path: Path) -> dict[int, dict[int, float]]:
    """Seconds by client and number."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(f"cannot read the trace {path}: {error}.") from error
    if not rows:
        raise InputError(f"the trace {path} must have times, but it has no rows.")
    found: dict[int, dict[int, float]] = {}
    for line, row in enumerate(rows, 1):
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
class _Replayed:
    seconds: Tensor  # all clients' times, one list behind the other
    starts: Tensor  # (N,) where the list of each begins
    lengths: Tensor  # (N,)

    def durations(
        self, clients: Int[Tensor, " n"], first: Int[Tensor, " n"], count: int
    ) -> Float64[Tensor, "n {count}"]:
        _identities("clients", clients, len(self.starts))
        numbers = _numbers(first, count) % self.lengths[clients, None]
        return self.seconds[self.starts[clients, None] + numbers]

    def ready(self, client: int, time: float) -> float:
        return time


@dataclass(frozen=True)
class Delays:
    """How long messages travel: the same law on every edge, equal in both directions.

    Attributes:
        law: of one message, in seconds; see the module.
        seed: names the streams.
    """

    law: str
    seed: int = 0

    def __post_init__(self) -> None:
        _setting("law", self.law, _LAWS)
        integer("seed", self.seed, at_least=0)

    def delays(
        self, edges: Int[Tensor, "e 2"], first: Int[Tensor, " e"], count: int
    ) -> Float64[Tensor, "e {count}"]:
        """Row j holds delays first[j] .. first[j] + count - 1 of the edge edges[j]."""
        return _draw(self.law, key(self.seed, "delay"), _pairs(edges), first, count)


@dataclass(frozen=True)
class Rings:
    """When edges ring: on each a Poisson process that both its ends know.

    Ring number c is at the sum of gaps 0 .. c, exponential with mean 1 / rate.

    Attributes:
        edges: identities of the two ends, in any order; no pair twice.
        rates: rings per second, one for each edge.
        seed: names the streams.
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
        """Row j holds when rings first[j] .. first[j] + count - 1 of which[j] happen.

        Args:
            which: positions in `edges`.
            first: numbers of rings, from 0.
            count: how many for each.
            since: when the rings before `first` happened, 0 if none did; None sums up
                all gaps before, to exactly the same.
        """
        if since is None:
            since = self.rates.new_zeros(len(which))
            for start in range(0, max(first.tolist(), default=0), _BLOCK):
                begin = torch.full_like(first, start)
                earlier = _numbers(begin, _BLOCK) < first[:, None]
                since = _sums(since, self._gaps(which, begin, _BLOCK) * earlier)[:, -1]
        return _sums(since, self._gaps(which, first, count))

    def _gaps(self, which: Tensor, first: Tensor, count: int) -> Tensor:
        stream, pairs = key(self.seed, "ring"), _pairs(self.edges)[which]
        units = -_log(_uniforms(stream, pairs, first, count))
        return units / self.rates[which, None]


def _sums(since: Tensor, gaps: Tensor) -> Tensor:
    """Running sums, one by one from the left, so that blocks of any size agree."""
    return torch.cat([since[:, None], gaps], 1).cumsum(1)[:, 1:]


def _setting(name: str, text: str, rules: _Rules) -> tuple[str, tuple[float, ...]]:
    """The word and the numbers of a setting, checked."""
    word, values = call(name, text)
    limits = rules[one_of(name, word, rules)]
    if len(values) != len(limits):
        raise InputError(f"`{name}` {word} takes {len(limits)} numbers, got {text!r}.")
    for value, (argument, limit) in zip(values, limits.items(), strict=True):
        number(f"{name} {argument}", value, **limit)
    if word == "uniform":
        number(f"{name} high", values[1], at_least=values[0])
    return word, values


def _factors(
    speeds: Sequence[float] | Tensor | str | None,
) -> tuple[Tensor, int | None]:
    """Factors of the first clients and of all others; how many clients there are."""
    listed, known = [], None
    if isinstance(speeds, str):
        _, (count, factor) = _setting("speeds", speeds, _SPEEDS)
        if count % 1:
            raise InputError(f"`speeds count` must be a whole number, got {count}.")
        listed = [factor] * int(count)
    elif speeds is not None:
        listed = speeds.tolist() if isinstance(speeds, Tensor) else list(speeds)
        known = len(listed)
        for client, value in enumerate(listed):
            number(f"speeds[{client}]", value, **_POSITIVE)
    return torch.tensor([*listed, 1.0], dtype=torch.float64), known


def _identities(name: str, names: Tensor, known: int | None = None) -> None:
    wrong = names < 0 if known is None else (names < 0) | (names >= known)
    if wrong.any():
        rule = "at least 0" if known is None else f"between 0 and {known - 1}"
        raise InputError(f"`{name}` must be {rule}, got {int(names[wrong][0])}.")


def _pairs(edges: Int[Tensor, "e 2"]) -> Int[Tensor, "e 2"]:
    """The edges with the smaller identity first: an edge has no direction."""
    _identities("edges", edges)
    loops = edges[:, 0] == edges[:, 1]
    if loops.any():
        pair = edges[loops][0].tolist()
        raise InputError(f"`edges` must join two different clients, got {pair}.")
    return edges.sort(dim=1).values


def _numbers(first: Int[Tensor, " n"], count: int) -> Int[Tensor, "n {count}"]:
    """Row j is first[j] .. first[j] + count - 1."""
    _identities("first", first)
    return first[:, None] + torch.arange(integer("count", count, at_least=0))


def _uniforms(
    stream: int, names: Int[Tensor, "n k"], first: Int[Tensor, " n"], count: int
) -> Float64[Tensor, "n {count}"]:
    """Row j holds draws number first[j] .. of its k names, inside (0, 1)."""
    state = torch.tensor(stream)
    for name in names.long().unbind(1):
        state = mix(state + mix(name))
    z = mix(state[:, None] + mix(_numbers(first.long(), count)))
    # 52 bits and a half fit into a double; one more bit, and some would round to 1.
    return (((z >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52


def _draw(
    law: str,
    stream: int,
    names: Int[Tensor, "n k"],
    first: Int[Tensor, " n"],
    count: int,
) -> Float64[Tensor, "n {count}"]:
    """Row j holds times number first[j] .. of its k names."""
    word, values = call("law", law)
    if word == "lognormal":
        # Box and Muller (1958): z = sqrt(-2 log u) sin(pi v), v uniform on (-1/2, 1/2).
        draws = _uniforms(stream, names, 2 * first.long(), 2 * count)
        u, v = draws[:, ::2], draws[:, 1::2] - 0.5
        z = _exp(_log(-2 * _log(u)) / 2) * _sin(math.pi * v)
        return values[0] * _exp(values[1] * z)
    u = _uniforms(stream, names, first, count)
    if word == "constant":
        return torch.full_like(u, values[0])
    if word == "exponential":
        return -values[0] * _log(u)
    if word == "pareto":
        return values[0] * _exp(-_log(u) / values[1])
    return values[0] + (values[1] - values[0]) * u


# Only sums, products and quotients, which IEEE 754 rounds in one way. Functions of
# libraries differ in the last digit, by machine and by the place of a value in a block.
_ARTANH = [1 / (2 * k + 1) for k in range(12)]
_EXP = [1 / math.factorial(k) for k in range(15)]
_SIN = [(-1) ** k / math.factorial(2 * k + 1) for k in range(12)]


def _series(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """The sum of coefficients[k] x^k."""
    total = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total


def _log(x: Tensor) -> Tensor:
    """With x = m 2^e: log m + e log 2, where log m = 2 artanh((m - 1) / (m + 1))."""
    m, e = torch.frexp(x)
    low = m < math.sqrt(0.5)
    m, e = torch.where(low, 2 * m, m), e.double() - low.double()
    s = (m - 1) / (m + 1)
    return 2 * s * _series(s * s, _ARTANH) + e * math.log(2)


def _exp(x: Tensor) -> Tensor:
    """A power 2^k, k whole, written as bits, times exp(x - k log 2)."""
    k = (x / math.log(2)).round()
    power = ((k.long() + 1023) << 52).view(torch.float64)
    return power * _series(x - k * math.log(2), _EXP)


def _sin(x: Tensor) -> Tensor:
    return x * _series(x * x, _SIN)
