"""Canaries with rows that an auditor chooses: can we tell which of two rows was sent?

Privacy holds for all data, so an auditor may choose the row of a client (a canary). The
auditor gives a mechanism rows ref + L u ("in") and ref - L u ("out"). Here ref is the
part of the row that everybody knows, u has length 1, and L is far larger than the clip
C. A correct mechanism releases ref + C u and ref - C u with noise of deviation s. The
log likelihood ratio of in against out, over R releases z_1 .. z_R of one canary,

    2 C sum_t <z_t - ref_t, u> / s^2,

is N(mu^2/2, mu^2) for a canary that is in, and N(-mu^2/2, mu^2) for a canary that is
out, with mu = 2 C sqrt(R) / s. The auditor calls a canary in if the ratio is positive.
Its right and wrong calls bound mu from below (`bounds.mu_of_rates`).

A receiver sees only the messages that it gets. The messages are linear in all released
rows, with known weights. The receiver decides by the likelihood ratio of all messages
together.

Reference:
    Nasr, Hayes, Steinke, Balle, Tramer, Jagielski, Carlini, Thakurta, Terzis, "Tight
    auditing of differentially private machine learning", USENIX Security 2023,
    arXiv 2302.07956.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from ... import seeds
from ..accounting.ledger import Event, Exchange, Input, Release
from ..mechanisms.rows import Mechanism
from .bounds import mu_of_rates

TRIALS = 2048
"""Number of canaries that are in, and of those that are out."""

_NUMBERS = 8_000_000
"""The most numbers that one test releases."""

_FAR = 3.0
"""How far canaries are beyond the clip, in standard deviations of the noise."""

_SAME = 1e-9
"""Two noises or sensitivities count as equal up to this relative difference."""


class Decisions(NamedTuple):
    """How many canaries were called in."""

    found: int
    members: int  # that were in
    wrong: int
    others: int  # that were out
    mu: float  # of one canary, if the mechanism is correct

    @property
    def right(self) -> int:
        """Number of right calls."""
        return self.found + self.others - self.wrong

    @property
    def guesses(self) -> int:
        """Number of all calls."""
        return self.members + self.others

    def at_least(self, confidence: float) -> float:
        """A lower bound on mu, with this confidence."""
        counts = self.found, self.members, self.wrong, self.others
        return mu_of_rates(*counts, confidence=confidence)

    def could(self, confidence: float) -> float:
        """The lower bound on mu if all calls were right."""
        return mu_of_rates(
            self.members, self.members, 0, self.others, confidence=confidence
        )


def decisions(inside: Tensor, outside: Tensor, mu: float) -> Decisions:
    """The calls, from log likelihood ratios of canaries in and canaries out."""
    counts = [(int((ratio > 0).sum()), len(ratio)) for ratio in (inside, outside)]
    return Decisions(*counts[0], *counts[1], mu)


def row_canaries(mechanism: Mechanism, releases: int, columns: int) -> Decisions:
    """How well an observer of all releases of a client tells canaries apart.

    Args:
        mechanism: releases rows with noise.
        releases: how often one canary is released; we may take fewer to save time.
        columns: the number of columns of a row; we use at most two.
    """
    columns = min(columns, 2)
    releases = max(1, min(releases, _NUMBERS // (2 * TRIALS * columns)))
    rng = torch.Generator().manual_seed(1)
    ref = torch.randn(2 * TRIALS, columns, generator=rng, dtype=torch.float64)
    u = torch.randn(2 * TRIALS, columns, generator=rng, dtype=torch.float64)
    u = u / u.norm(dim=1, keepdim=True)
    signs = _signs()
    x = ref + signs[:, None] * _length(mechanism) * u
    along = torch.zeros_like(signs)
    for t in range(releases):
        stream = seeds.key(mechanism.seed, "audit", "canaries", t)
        z = mechanism.release(x, ref, stream, torch.arange(len(x)))
        along += ((z - ref) * u).sum(1)
    ratio = 2 * mechanism.clip * along / mechanism.noise**2
    mu = 2 * mechanism.clip * math.sqrt(releases) / mechanism.noise
    return decisions(ratio[signs > 0], ratio[signs < 0], mu)


def _signs() -> Float64[Tensor, " c"]:
    one = torch.ones(TRIALS, dtype=torch.float64)
    return torch.cat([one, -one])


def _length(mechanism: Mechanism) -> float:
    return mechanism.clip + _FAR * mechanism.noise


# Receivers.


class View(NamedTuple):
    """What a receiver sees: messages, linear in released rows."""

    weights: Float64[Tensor, "m s"]  # of each row in each message
    senders: Tensor  # (s,) who sent each row

    def mu(self, sender: int, unit: float) -> float:
        """Mu of canaries of the sender, if one row that it sends has the mu `unit`."""
        return unit * math.sqrt(max(0.0, float(self._shift(sender) @ self._by(sender))))

    def ratios(self, sender: int, rows: Float64[Tensor, "c s"], unit: float) -> Tensor:
        """Log likelihood ratios of canaries, from rows in units of their noise."""
        return unit * (rows @ self.weights.T) @ self._by(sender)

    def _shift(self, sender: int) -> Tensor:
        return self.weights[:, self.senders == sender].sum(1)

    def _by(self, sender: int) -> Tensor:
        noise = self.weights @ self.weights.T
        return torch.linalg.pinv(noise, hermitian=True) @ self._shift(sender)


def view_of(
    events: Sequence[Event], clients: int, receiver: int, mechanism: Mechanism
) -> View:
    """The messages that a receiver sees, of all rows that the mechanism released.

    It ignores other releases, such as losses, sums and comparisons.

    Args:
        events: the events of a ledger, in their order.
        clients: how many there are.
        receiver: the client that looks; it knows its own rows.
        mechanism: how rows were released.
    """
    sent = [event for event in events if _is_row(event, mechanism)]
    senders = [k for event in sent for k in _senders(event, receiver)]
    held = torch.zeros(clients, len(senders), dtype=torch.float64)
    before, seen, place, round_ = held, [], 0, -1
    for event in sent:
        if isinstance(event, Exchange):
            heard = event.links[event.links[:, 1] == receiver, 0].cpu()
            seen.append(held[heard])
            w = event.weights.to_dense().double().cpu()
            before = before if event.round == round_ else held
            mixed = event.gamma * w @ held + (1 - event.gamma) * before
            before, held, round_ = held, mixed, event.round
            continue
        mine = _senders(event, receiver)
        new = torch.zeros_like(held)
        new[mine, torch.arange(place, place + len(mine))] = 1.0
        place += len(mine)
        if isinstance(event, Input):
            held = held + new
            seen.append(new[[receiver]])
        else:
            seen.append(new[mine])
    weights = torch.cat([held[:0], *seen])
    return View(weights[weights.abs().sum(1) > 0], torch.tensor(senders))


def _is_row(event: Event, mechanism: Mechanism) -> bool:
    if isinstance(event, Exchange):
        return True
    if not isinstance(event, Input | Release):
        return False
    same = math.isclose(event.noise, mechanism.noise, rel_tol=_SAME)
    whole = math.isclose(event.sensitivity, 2 * mechanism.clip, rel_tol=_SAME)
    summed = isinstance(event, Release) and event.summed
    return same and whole and not summed


def _senders(event: Event, receiver: int) -> list[int]:
    """The clients whose rows in an event reveal something to the receiver."""
    if isinstance(event, Input):
        found: list[int] = event.who.nonzero()[:, 0].tolist()
        return found
    if isinstance(event, Release):
        found = event.links[event.links[:, 1] == receiver, 0].tolist()
        return found
    return []


def pair_canaries(mechanism: Mechanism, view: View, sender: int) -> Decisions:
    """How well a receiver tells canaries of a sender apart.

    All other clients send rows that the receiver knows, with noise.

    Args:
        mechanism: releases rows with noise.
        view: what the receiver sees.
        sender: the client whose rows are canaries.
    """
    signs, unit = _signs(), 2 * mechanism.clip / mechanism.noise
    rows = torch.zeros(len(signs), len(view.senders), dtype=torch.float64)
    for j, one in enumerate(view.senders.tolist()):
        x = signs * _length(mechanism) if one == sender else torch.zeros_like(signs)
        stream = seeds.key(mechanism.seed, "audit", "pairs", j)
        ref = torch.zeros(len(x), 1, dtype=x.dtype)
        z = mechanism.release(x[:, None], ref, stream, torch.arange(len(x)))
        rows[:, j] = z[:, 0] / mechanism.noise
    ratio = view.ratios(sender, rows, unit)
    return decisions(ratio[signs > 0], ratio[signs < 0], view.mu(sender, unit))


def heard_events(events: Sequence[Event], clients: int) -> list[Event]:
    """The events of the first rounds, few enough to send all canaries through."""
    most, count = _NUMBERS // (2 * TRIALS), 0
    found: list[Event] = []
    for event in events:
        if isinstance(event, Input):
            count += int(event.who.sum())
        elif isinstance(event, Release):
            count += -(-len(event.links) // clients)
        if count > most and found:
            break
        found.append(event)
    last = found[-1].round if found else 0
    cut = len(found) < len(events) and events[len(found)].round == last
    return [e for e in found if e.round < last] if cut and last else found
