"""The most that a method may ask clients, if earlier answers decide its questions.

A method that chooses by losses asks more questions whenever it tries something, and
nobody knows in advance how often it tries. So we run the method without data several
times. Each run has other losses, and is called a scenario. We plan every round like the
most expensive round of all scenarios. The first round may be special, and has its own
plan. For later rounds, there is one plan for active clients and one for absent clients.
Training ends if the method asks for more than planned. It spends less if the method
asks for less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from jaxtyping import Bool
from torch import Tensor

SCENARIOS, _ROUNDS = 8, 16
"""The number of scenarios, and of rounds in each. A scenario has this number of rounds
even if training has fewer, so that a method tries all that it may try."""

Cost = TypeVar("Cost")


def scenario_rounds(actives: Sequence[Bool[Tensor, " n"]]) -> list[Bool[Tensor, " n"]]:
    """(N,) which clients take part in each round of a scenario; repeats `actives`."""
    return [actives[t % len(actives)] for t in range(_ROUNDS)]


def largest_costs(
    scenarios: Sequence[Sequence[Sequence[Cost]]],
    actives: Sequence[Bool[Tensor, " n"]],
    larger: Callable[[Cost, Cost], Cost],
    nothing: Cost,
) -> list[list[Cost]]:
    """What the beginning and each round may cost each client.

    Args:
        scenarios: costs of the beginning and of all rounds, for each scenario.
        actives: which clients take part in each round of training.
        larger: the larger of two costs.
        nothing: the cost of no release.
    """
    n, tried = len(actives[0]), scenario_rounds(actives)

    later = range(2, len(tried) + 1)

    def most(rounds: Sequence[int], i: int) -> Cost:
        found = nothing
        for costs in scenarios:
            for t in rounds:
                found = larger(found, costs[t][i])
        return found

    by_client = [
        {
            active: most([t for t in later if bool(tried[t - 1][i]) == active], i)
            for active in (True, False)
        }
        for i in range(n)
    ]
    early = [[most([t], i) for i in range(n)] for t in (0, 1)]
    return early + [
        [by_client[i][bool(active[i])] for i in range(n)] for active in actives[1:]
    ]
