"""The cost of waiting, from the time that clients take to compute."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from .. import checks
from ..engine.clocks import Clock
from ..scores.words import percent

_TASKS = 1000
"""Number of tasks of each client that count; a shorter trace is repeated."""


class WaitingCost(NamedTuple):
    """Rounds in which all clients wait, compared with tasks without waiting."""

    round: float  # mean time of a round: of its slowest task
    speed_up: float  # how many times as many gradients arrive without waiting
    idle: Float64[Tensor, " n"]  # share of its time in rounds that each client waits
    weights: Float64[Tensor, " n"]  # of losses in what small constant steps minimise


def waiting_of(clock: Clock, clients: int) -> WaitingCost:
    """How much time these clients would save without waiting.

    If all tasks of a client take equally long, `speed_up` is `mean_m s_max / s_m`, as
    in Table 3.2. Times that vary make rounds even longer.
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
    """The cost of waiting in sentences."""
    slow = int(found.idle.argmin())
    share, even = float(found.weights[slow]), 1 / len(names)
    return [
        f"A round takes {found.round:.3g} s, in which clients wait for "
        f"{percent(float(found.idle.mean()))} of their time on average. Without "
        f"waiting, {found.speed_up:.2g} times as many gradients arrive in the same "
        "time.",
        f"The slowest, {names[slow]}, then has weight {share:.2g} in a common model "
        f"instead of {even:.2g}. Personal models need not follow these weights.",
    ]
