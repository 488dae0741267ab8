"""The most that a method may ask, over scenarios, if questions depend on answers.

A method that chooses by losses asks more when it tries something. Nobody knows in
advance how often it does. So we run it without data several times, with other losses,
and plan every round as the most expensive one in any run. The first round may be
special, and has its own plan. Later rounds have one plan for active and one for absent
clients. Training ends if it asks for more, and spends less if it asks for less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from jaxtyping import Bool
from torch import Tensor

SCENARIOS, _ROUNDS = 8, 16
"""Number of runs and of rounds in each: enough for whatever a method may try, even if
training has fewer rounds."""

Cost = TypeVar("Cost")


def scenario_rounds(actives: Sequence[Bool[Tensor, " n"]]) -> list[Bool[Tensor, " n"]]:
    """(N,) which clients take part in each round of a scenario; the run repeats."""
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
        actives: which clients take part in each round of the run.
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
