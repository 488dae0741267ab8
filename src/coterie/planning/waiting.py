"""What waiting costs, from how long clients computed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from .. import checks
from ..engine.clocks import Clock
from ..scores.words import percent

_TASKS = 1000
"""So many tasks of each client are looked at; a trace is repeated."""


class WaitingCost(NamedTuple):
    """Rounds in which everybody waits, against tasks in which nobody does."""

    round: float  # mean time of a round: of its slowest task
    speed_up: float  # by which more gradients arrive where nobody waits
    idle: Float64[Tensor, " n"]  # share of time for which each client waits in rounds
    weights: Float64[Tensor, " n"]  # of the losses that constant small steps minimise


def waiting_of(clock: Clock, clients: int) -> WaitingCost:
    """What it would save these clients not to wait.

    With equal tasks, `speed_up` is `mean_m s_max / s_m`, as in Table 3.2; times that
    vary make rounds longer still.
    """
    names = torch.arange(clients)
    times = clock.durations(names, torch.zeros_like(names), _TASKS)
    mean, longest = times.mean(1), float(times.max(0).values.mean())
    rate = 1 / checks.positive("times", mean, clients)
    return WaitingCost(
        longest,
        float((longest / mean).mean()),
        1 - mean / longest,
        rate / rate.sum(),
    )


def waiting_sentences(found: WaitingCost, names: list[str]) -> list[str]:
    """The same for people."""
    slow = int(found.idle.argmin())
    share, even = float(found.weights[slow]), 1 / len(names)
    return [
        f"A round takes {found.round:.3g} s, in which clients wait for "
        f"{percent(float(found.idle.mean()))} of their time on average. Without "
        f"waiting, {found.speed_up:.2g} times as many gradients arrive in the same "
        "time.",
        f"The slowest, {names[slow]}, then counts {share:.2g} in a common "
        f"model, not {even:.2g}; personal models need not be common.",
    ]
